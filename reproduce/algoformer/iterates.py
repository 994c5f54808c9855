"""A looped transformer beside the exact iterates of its solver: what the claims about AlgoFormer's theorems share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from emulon.looped import LoopedTransformer
from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.convergence import gradient_iterates
from reproduce.claim import CannotTest, Numbers, Scale, ScaleName, Setting, Verdict

Built = TypeVar("Built", bound=LoopedTransformer)
# Any error will do: as many heads as the theorem has. No tolerance: the heads that float64 rewards.
TWO, OURS = "the theorem's two heads", "ours"
WAYS = {TWO: math.inf, OURS: None}
ASKED = {TWO: 1e-5, OURS: 1e-9}


def compare(
    setting: Setting,
    build: Callable[[float | None], Built],
    run: Callable[[Built, int], Tensor],
    exact: Callable[[Built, int], Tensor],
) -> Numbers:
    """Errors and bounds after 0, 1, … loops, with the heads of the theorem and with ours."""
    loops, found = setting.sizes["loops"], {}
    for done, (name, tolerance) in enumerate(WAYS.items()):
        setting.report_progress(name, done / len(WAYS))
        model = build(tolerance)
        errors = (run(model, loops) - exact(model, loops)).abs().reshape(loops + 1, -1).amax(dim=1)
        found[name] = {
            "errors": errors.tolist(),
            "bounds": [promise(model, step) for step in range(loops + 1)],
            "sizes": {part: [size.layers, size.heads] for part, size in model.frame.sizes.items()},
            "stated": {part: [size.layers, size.heads] for part, size in model.frame.stated.items()},
        }
    return found


def promise(model: LoopedTransformer, loops: int) -> float:
    bound = model.certificate_after(loops).bound
    if not math.isfinite(bound):
        raise CannotTest(f"these data are too badly conditioned for a promise after {loops} loops; try another --seed")
    return bound


def judge(numbers: Numbers) -> Verdict:
    """Small errors, none above its bound, and in the theorem's way no more layers and heads than it states."""
    theirs = numbers[TWO]
    size, stated = theirs["sizes"], theirs["stated"]
    within = all(size[part][0] <= stated[part][0] and size[part][1] <= stated[part][1] for part in stated)
    kept = all(e <= b for each in numbers.values() for e, b in zip(each["errors"], each["bounds"], strict=True))
    worst = {name: max(each["errors"]) for name, each in numbers.items()}
    small = all(worst[name] <= asked for name, asked in ASKED.items())
    loop = numbers[OURS]["sizes"]["loop"][1]
    return Verdict.that(
        within and kept and small,
        f"{worst[TWO]:.1e} with two heads in the loop, {worst[OURS]:.1e} with {loop}",
        f"largest error of {len(theirs['errors']) - 1} loops ({ASKED[TWO]:.0e} and {ASKED[OURS]:.0e} asked), "
        f"{'none' if kept else 'some'} above its bound; layers×heads {_written(size)} (stated: {_written(stated)})",
    )


def _written(sizes: Numbers) -> str:
    return ", ".join(f"{part} {layers}×{heads}" for part, (layers, heads) in sizes.items())


def figure(numbers: Numbers) -> Figure:
    series = []
    for name, each in numbers.items():
        steps = range(len(each["errors"]))
        label = f"{name}, {each['sizes']['loop'][1]} heads" if name == OURS else name
        series.append(Series(f"{label}: error", steps, each["errors"]))
        series.append(Series(f"{label}: bound", steps, each["bounds"], "dashes", of=series[-1].label))
    return Figure([Panel("loops", "largest error against exact iterates", series, log_y=True)])


def regression(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    """xs, ys and a query of noiseless linear problems: x, w ~ N(0, I)."""
    draw = torch.Generator().manual_seed(setting.seed)
    problems, samples, features = (setting.sizes[key] for key in ("problems", "samples", "features"))
    points = torch.randn(problems, samples + 1, features, dtype=torch.float64, generator=draw)
    weights = torch.randn(problems, features, 1, dtype=torch.float64, generator=draw)
    xs = points[:, :-1]
    return xs, (xs @ weights).squeeze(-1), points[:, -1]


def descent(xs: Tensor, labels: Tensor, query: Tensor, step_size: float, loops: int) -> Tensor:
    """A_k·query for k = 0, …, loops; labels (..., samples, outputs). Each output is a regression of its own."""
    each = labels.mT
    return gradient_iterates(
        xs.unsqueeze(-3).expand(*each.shape, xs.shape[-1]),
        each,
        query.unsqueeze(-2).expand(*each.shape[:-1], query.shape[-1]),
        step_size,
        loops,
    )


PROBLEM = {"samples": 40, "features": 20, "loops": 50}
SCALES: dict[ScaleName, Scale] = {
    "small": Scale(0.1, {**PROBLEM, "problems": 4}),
    "paper": Scale(0.5, {**PROBLEM, "problems": 32}),
}
