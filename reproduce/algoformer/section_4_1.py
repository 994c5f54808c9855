"""Section 4.1: Newton's method in the loop converges superlinearly, gradient descent linearly."""

from __future__ import annotations

from dataclasses import asdict

import torch

from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.convergence import convergence
from reproduce.bounded import normal
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

# The distance to least squares that is asked for; transformer and exact iterates must reach it at the same loop.
NEAR = 1e-7


def run(setting: Setting) -> Numbers:
    """|prediction − least squares'| after every loop of both transformers, and of their exact iterates."""
    samples, features = setting.sizes["samples"], setting.sizes["features"]
    draw = torch.Generator().manual_seed(setting.seed)
    xs, w, query = normal(draw, samples, features), *normal(draw, 2, features)
    loops = {f"{name}_loops": setting.sizes[name] for name in ("gradient", "newton")}
    curves = convergence(xs, xs @ w, query, **loops)
    return {"curves": [asdict(curve) | {"reaches": curve.reaches(NEAR)} for curve in curves]}


def judge(numbers: Numbers) -> Verdict:
    """Newton takes fewer loops than descent, and both as many as without a transformer."""
    descent, newton = numbers["curves"]
    arrived = None not in (*descent["reaches"], *newton["reaches"])
    same = all(curve["reaches"][0] == curve["reaches"][1] for curve in (descent, newton))
    ours = f"{NEAR:g} of least squares after {newton['reaches'][0]} loops of Newton, {descent['reaches'][0]} of descent"
    reason = "the exact iterates take as many" if same else "the exact iterates take another number"
    return Verdict.that(arrived and same and newton["reaches"][0] < descent["reaches"][0], ours, reason)


def figure(numbers: Numbers) -> Figure:
    series = []
    for curve in numbers["curves"]:
        every = max(1, len(curve["exact"]) // 30)
        loops = range(len(curve["transformer"]))
        series.append(Series(f"{curve['name']}, transformer", loops, curve["transformer"]))
        series.append(Series(f"{curve['name']}, exact", loops[::every], curve["exact"][::every], "dots"))
    return Figure([Panel("loops", "distance to least squares", series, log_y=True)])


CLAIM = Claim(
    name="algoformer-section-4.1",
    source="Gao et al. 2024, Section 4.1",
    statement="Newton's method in the loop converges superlinearly, where gradient descent converges linearly.",
    theirs="superlinear against linear convergence (no number is given)",
    scales={"small": Scale(0.1, {"samples": 40, "features": 20, "gradient": 600, "newton": 24})},
    run=run,
    judge=judge,
    figure=figure,
)
