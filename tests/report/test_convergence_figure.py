"""Gradient descent and Newton in one figure, drawn from numbers alone."""

import torch

from emulon.looped import ConvergenceCurve, convergence
from emulon.report.convergence import convergence_figure


def test_both_solvers_and_their_exact_iterates_are_in_one_figure() -> None:
    generator = torch.Generator().manual_seed(0)
    xs = torch.randn(2, 12, 3, dtype=torch.float64, generator=generator)
    ys = (xs @ torch.ones(3, 1, dtype=torch.float64)).squeeze(-1)
    curves = convergence(xs, ys, xs[:, 0], gradient_loops=30, newton_loops=8)
    picture = convergence_figure(curves)
    assert picture.startswith("<svg")
    for curve in curves:
        assert f"{curve.name}, transformer" in picture and f"{curve.name}, exact" in picture


def test_another_curve_gives_another_picture() -> None:
    one, other = (ConvergenceCurve("newton", values, (1.0, 0.1), 1.0) for values in ((1.0, 0.1), (1.0, 0.01)))
    assert convergence_figure([one]) != convergence_figure([other])
