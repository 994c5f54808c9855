"""Register machines over sizes: error against certificate, depth and width against the theorem's O(·)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from emulon.certify import Domain, Spectrum
from emulon.machine import RegisterProgram, Transformer
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Numbers, Setting, Verdict

# The largest error that is called a success, and what an exponent read off two sizes may exceed the O(·) by.
ASKED, SLACK = 1e-6, 0.1
# Domains on which a finite error can be promised: ‖x‖ ≤ 1, |y| ≤ 1.
REACH, WEIGHT = 1.0, 4.0

Build = Callable[[int, int, Domain | None], RegisterProgram]
# What the algorithm predicts at every position from the examples before it.
Exact = Callable[[Tensor, Tensor], Tensor]


def measure(setting: Setting, build: Build, exact: Exact) -> Numbers:
    """Over the features with one example, and over the examples with a fixed number of features."""
    sizes = setting.sizes
    by_features = [(features, 1) for features in sizes["features"]]
    by_examples = [(sizes["fixed"], examples) for examples in sizes["examples"]]
    rows = []
    for done, (features, examples) in enumerate(by_features + by_examples):
        setting.report_progress(f"d = {features}, N = {examples}", done / len(by_features + by_examples))
        samples = examples + 1  # and the query
        draw = torch.Generator().manual_seed(setting.seed)
        domain = Domain(samples, features, x=REACH, y=REACH, w=WEIGHT, spectrum=Spectrum(norm=REACH))
        bounded = build(features, samples, domain).compile()
        open_ended = build(features, samples, None).compile()
        rows.append(
            {
                "features": features,
                "examples": examples,
                "error": _error(bounded, exact, *in_ball(draw, sizes["datasets"], samples, features)),
                "bound": bounded.certificate.bound,
                "gaussian": _error(open_ended, exact, *gaussian(draw, sizes["datasets"], samples, features)),
                "depth": bounded.depth,
                "width": bounded.width,
            }
        )
    return {"one example": rows[: len(by_features)], "many examples": rows[len(by_features) :]}


def _error(machine: Transformer, exact: Exact, xs: Tensor, ys: Tensor) -> float:
    """The largest over datasets and positions, against the algorithm on every prefix."""
    return (machine.predict(xs, ys) - exact(xs, ys)).abs().max().item()


def in_ball(draw: torch.Generator, batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """‖x‖ = 1 and y uniform in ±1."""
    xs = torch.randn(batch, samples, features, dtype=torch.float64, generator=draw)
    ys = 2 * torch.rand(batch, samples, dtype=torch.float64, generator=draw) - 1
    return xs / xs.norm(dim=-1, keepdim=True), ys


def gaussian(draw: torch.Generator, batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """The paper's data: x, w ~ N(0, I), y = w·x."""
    xs = torch.randn(batch, samples, features, dtype=torch.float64, generator=draw)
    w = torch.randn(batch, 1, features, dtype=torch.float64, generator=draw)
    return xs, (xs * w).sum(dim=-1)


def growth(rows: list[Numbers], what: str, over: str) -> float:
    """The exponent r with what ≈ over^r, between the last two sizes, where constants matter least."""
    before, last = rows[-2:]
    return math.log(last[what] / before[what]) / math.log(last[over] / before[over])


def judge(numbers: Numbers, order: int) -> Verdict:
    """One example: O(1) layers and a width of O(d^order). Many: O(N) layers, the same width. Errors below bounds."""
    single, many = numbers["one example"], numbers["many examples"]
    rows = [*single, *many]
    kept = all(row["error"] <= row["bound"] for row in rows)
    worst, gaussian = (max(row[key] for row in rows) for key in ("error", "gaussian"))
    width, depth = growth(single, "width", "features"), growth(many, "depth", "examples")
    shaped = len({row["depth"] for row in single}) == 1 and len({row["width"] for row in many}) == 1
    slow = width <= order + SLACK and depth <= 1 + SLACK
    return Verdict.that(
        kept and shaped and slow and max(worst, gaussian) <= ASKED,
        f"error {worst:.1e} (‖x‖ ≤ 1), {gaussian:.1e} (Gaussian); {single[0]['depth']} layers for one example, width "
        f"{single[-1]['width']} at d = {single[-1]['features']}; {many[-1]['depth']} layers at N = "
        f"{many[-1]['examples']}",
        f"{'no error' if kept else 'an error'} above its bound, {ASKED:.0e} asked; width ~ d^{width:.2f} (O(d^{order}) "
        f"stated); depth {'the same for every d' if shaped else 'varies with d'}, ~ N^{depth:.2f} over N examples",
    )


def figure(numbers: Numbers) -> Figure:
    panels = []
    for rows, over, label in (
        (numbers["one example"], "features", "features d, one example"),
        (numbers["many examples"], "examples", "examples N"),
    ):
        x = [row[over] for row in rows]
        errors = Series("error, ‖x‖ ≤ 1", x, [row["error"] for row in rows])
        bounds = Series("its bound", x, [row["bound"] for row in rows], "dashes", of=errors.label)
        plain = Series("error, Gaussian data", x, [row["gaussian"] for row in rows])
        panels.append(Panel(label, "largest error", [errors, bounds, plain], log_x=True, log_y=True))
        shape = [Series(key, x, [row[key] for row in rows]) for key in ("depth", "width")]
        panels.append(Panel(label, "layers, width", shape, log_x=True, log_y=True))
    return Figure(panels)
