"""Whole programs against the exact algorithms, at every position."""

from __future__ import annotations

import pytest
import torch
from exact_learners import exact_batch, exact_moving_average, exact_ridge, exact_sgd, gaussian_data, unit_data

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.core.errors import BadShape, OutOfDomain
from emulon.machine.programs import batch_gradient_descent, moving_average, sgd, sherman_morrison

STEP = 0.05
START = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
UNIT = Domain(8, 4, x=1.0, y=1.0, w=4.0, spectrum=Spectrum(norm=1.0))
# A program, the exact algorithm, its depth, and the largest error on the data of its domain.
CASES = {
    "sgd": (lambda: sgd(4, 8, STEP), lambda xs, ys: exact_sgd(xs, ys, STEP), 15, 1e-6),
    "longer, wider sgd": (lambda: sgd(8, 16, STEP), lambda xs, ys: exact_sgd(xs, ys, STEP), 31, 1e-6),
    "sgd with ridge from a start": (
        lambda: sgd(3, 6, STEP, ridge=0.3, initial=START),
        lambda xs, ys: exact_sgd(xs, ys, STEP, 0.3, START),
        11,
        1e-10,
    ),
    "one step of sgd": (  # Theorem 1: O(1) layers, whatever the number of examples
        lambda: sgd(3, 5, STEP, initial=START, steps=1),
        lambda xs, ys: exact_sgd(xs, ys, STEP, initial=START, window=1),
        3,
        1e-10,
    ),
    **{
        f"sherman_morrison {ridge}": (
            lambda ridge=ridge: sherman_morrison(4, 8, ridge),
            lambda xs, ys, ridge=ridge: exact_ridge(xs, ys, ridge),
            29,
            1e-5,
        )
        for ridge in (1.0, 0.01)
    },
    "batch": (lambda: batch_gradient_descent(4, 8, STEP), lambda xs, ys: exact_batch(xs, ys, STEP, 1), 3, 1e-9),
    "moving average": (lambda: moving_average(9, 0.8), lambda xs, ys: exact_moving_average(ys, 0.8), 8, 1e-12),
    "sgd in a narrow domain": (lambda: sgd(4, 8, STEP, domain=UNIT), lambda xs, ys: exact_sgd(xs, ys, STEP), 15, 1e-9),
    "ridge in a narrow domain": (
        lambda: sherman_morrison(4, 8, 1.0, domain=UNIT),
        lambda xs, ys: exact_ridge(xs, ys, 1.0),
        29,
        1e-9,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_program_is_the_exact_algorithm_at_every_position(name: str) -> None:
    make, exact, depth, most = CASES[name]
    model, narrow = make().compile(), "narrow" in name
    prompt = model.program.prompt
    xs, ys = (unit_data if narrow else gaussian_data)(16, prompt.samples, prompt.features)
    error = model.certificate.verify(model.predict(xs, ys), exact(xs, ys))
    print(f"{name}: error {error:.1e}, certificate {model.certificate.bound:.1e}, width {model.width}")
    assert error < most and model.depth == depth
    assert model.certificate.bound < 1e-5 or not narrow
    if name.endswith("sgd"):
        assert model.width <= 4 * prompt.features + 20  # the paper: O(d) (and O(N + d) with its one-hot codes)


def test_sherman_morrison_depth_and_width_grow_as_the_paper_says() -> None:
    """Depth O(N), free of d; width O(d²), free of N."""
    shapes = {(d, n): sherman_morrison(d, n).compile() for d, n in [(2, 4), (2, 8), (4, 4), (8, 4)]}
    assert shapes[2, 8].depth - shapes[2, 4].depth == 4 * 4
    assert shapes[2, 4].depth == shapes[8, 4].depth
    assert shapes[2, 8].width == shapes[2, 4].width
    assert shapes[8, 4].width <= 8**2 + 6 * 8 + 24


def test_everything_goes_through_causal_softmax_attention() -> None:
    xs, ys = gaussian_data(2, 4, 2)
    model = sgd(2, 4, STEP).compile()
    with Trace() as trace:
        model.predict(xs, ys)
    assert len(trace.records) == model.depth
    for record in trace.records:
        assert record.weights.triu(1).abs().max() == 0
        assert (record.weights.sum(-1) - 1).abs().max() < 1e-12


def test_data_outside_the_domain_are_refused() -> None:
    xs, ys = gaussian_data(2, 4, 2)
    model = sgd(2, 4, STEP).compile()
    with pytest.raises(OutOfDomain, match="x reaches"):
        model.predict(100 * xs, ys)
    with pytest.raises(OutOfDomain, match="NaN"):
        model.predict(xs * float("nan"), ys)
    with pytest.raises(BadShape, match="xs has shape"):
        model.predict(xs[:, :3], ys)


def test_an_iterate_that_leaves_its_domain_is_refused_while_it_runs() -> None:
    """A step size that makes SGD diverge: no bound holds, so the stream is watched and the instruction named."""
    xs, ys = gaussian_data(2, 8, 2)
    model = sgd(2, 8, 3.0).compile()
    with pytest.raises(OutOfDomain, match=r"instruction \d+ \(aff w"):
        model.predict(xs, ys)
