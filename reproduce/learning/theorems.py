"""Theorems 1 and 2: register machines over sizes, error against certificate, depth and width against the O(·)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from emulon.algorithms import RidgeRegression
from emulon.certify import Domain, Spectrum
from emulon.identification import prefix_weights
from emulon.machine import RegisterProgram, Transformer
from emulon.machine.programs import sgd, sherman_morrison
from emulon.report.figure import Figure, Panel, Series
from reproduce.bounded import largest, normal
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

# The largest error allowed, and how far an exponent read off two sizes may exceed the O(·).
ASKED, SLACK = 1e-6, 0.1
# Domains on which there is a finite bound: ‖x‖ ≤ 1, |y| ≤ 1.
REACH, WEIGHT = 1.0, 4.0

Build = Callable[[int, int, Domain | None], RegisterProgram]
# What the algorithm predicts at every position from the examples before it.
Exact = Callable[[Tensor, Tensor], Tensor]


def over_sizes(setting: Setting, build: Build, exact: Exact) -> Numbers:
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
        row = {
            "features": features,
            "examples": examples,
            "error": _error(bounded, exact, *in_ball(draw, sizes["datasets"], samples, features)),
            "gaussian": _error(open_ended, exact, *gaussian(draw, sizes["datasets"], samples, features)),
        }
        rows.append(row | {"bound": bounded.certificate.bound, "depth": bounded.depth, "width": bounded.width})
    return {"one example": rows[: len(by_features)], "many examples": rows[len(by_features) :]}


def _error(machine: Transformer, exact: Exact, xs: Tensor, ys: Tensor) -> float:
    """The largest over datasets and positions, against the algorithm on every prefix."""
    return largest(machine.predict(xs, ys), exact(xs, ys))


def in_ball(draw: torch.Generator, batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """‖x‖ = 1 and y uniform in ±1."""
    xs = normal(draw, batch, samples, features)
    ys = 2 * torch.rand(batch, samples, dtype=torch.float64, generator=draw) - 1
    return xs / xs.norm(dim=-1, keepdim=True), ys


def gaussian(draw: torch.Generator, batch: int, samples: int, features: int) -> tuple[Tensor, Tensor]:
    """The paper's data: x, w ~ N(0, I), y = w·x."""
    xs, w = normal(draw, batch, samples, features), normal(draw, batch, 1, features)
    return xs, (xs * w).sum(dim=-1)


def growth(rows: Sequence[Numbers], what: str, over: str) -> float:
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


# With λ = 0 and w₀ = 0 a single step would only be α·y·x: neither is zero here.
STEP, PENALTY = 0.05, 0.2


def initial(features: int) -> Tensor:
    """w₀ of norm 1, every entry different."""
    w = torch.tensor([(-1.0) ** k * (k + 1) for k in range(features)], dtype=torch.float64)
    return torch.nn.functional.normalize(w, dim=0)


def descent_program(features: int, samples: int, domain: Domain | None) -> RegisterProgram:
    return sgd(features, samples, STEP, ridge=PENALTY, initial=initial(features), domain=domain)


def one_after_the_other(xs: Tensor, ys: Tensor) -> Tensor:
    """w_i·x_i with w ← w − α(x(w·x − y) + 2λw) (Eq. 11), one example after the other."""
    w, predictions = initial(xs.shape[-1]).expand(len(xs), -1), []
    for x, y in zip(xs.unbind(1), ys.unbind(1), strict=True):
        predictions.append((w * x).sum(dim=-1))
        w = w - STEP * (x * (predictions[-1] - y).unsqueeze(-1) + 2 * PENALTY * w)
    return torch.stack(predictions, dim=1)


def theorem_1(setting: Setting) -> Numbers:
    return over_sizes(setting, descent_program, one_after_the_other)


THEOREM_1 = Claim(
    "learning-theorem-1",
    "Akyürek et al. 2022, Theorem 1",
    "A transformer computes the prediction after one step of gradient descent on an in-context example.",
    "O(1) layers and O(d) width; O(N) layers for N examples",
    {
        "small": Scale(
            0.2, {"features": [8, 16, 32, 64, 128], "fixed": 8, "examples": [1, 5, 10, 20, 40], "datasets": 64}
        )
    },
    *(theorem_1, partial(judge, order=1), figure),
    differs="λ = 0.2 and w₀ of norm 1; the chain of instructions takes +2λ of its Eq. 11, where the appendix has −2λ, "
    "and GELU's quadratic coefficient is 1/√(2π). A bound needs a bounded domain: it is stated for ‖x‖ ≤ 1, |y| ≤ 1.",
)

RIDGE = 1.0


def update_program(features: int, samples: int, domain: Domain | None) -> RegisterProgram:
    return sherman_morrison(features, samples, RIDGE, domain=domain)


def ridge_on_prefixes(xs: Tensor, ys: Tensor) -> Tensor:
    """Ridge regression, solved anew on every prefix."""
    return (prefix_weights(RidgeRegression(RIDGE), xs, ys)[:, :-1] * xs).sum(dim=-1)


def theorem_2(setting: Setting) -> Numbers:
    return over_sizes(setting, update_program, ridge_on_prefixes)


THEOREM_2 = Claim(
    "learning-theorem-2",
    "Akyürek et al. 2022, Theorem 2",
    "A transformer predicts by a Sherman–Morrison update: ridge regression in closed form.",
    "O(1) layers and O(d²) width; O(N) layers for N examples",
    {"small": Scale(0.3, {"features": [4, 8, 16, 24], "fixed": 8, "examples": [1, 5, 10, 20], "datasets": 64})},
    *(theorem_2, partial(judge, order=2), figure),
    differs="Exact ridge regression is solved anew on every prefix. λ = 1; a bound needs a bounded domain: it is "
    "stated for ‖x‖ ≤ 1, |y| ≤ 1.",
)
