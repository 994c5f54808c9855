"""Theorem 2: a transformer predicts by a Sherman–Morrison update, and so by ridge regression."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from emulon.algorithms import RidgeRegression
from emulon.certify import Domain
from emulon.identification import prefix_weights
from emulon.machine import RegisterProgram
from emulon.machine.programs import sherman_morrison
from reproduce.claim import Claim, Numbers, Scale, Setting
from reproduce.learning import machines

RIDGE = 1.0


def build(features: int, samples: int, domain: Domain | None) -> RegisterProgram:
    return sherman_morrison(features, samples, RIDGE, domain=domain)


def exact(xs: Tensor, ys: Tensor) -> Tensor:
    """Ridge regression, solved anew on every prefix."""
    return (prefix_weights(RidgeRegression(RIDGE), xs, ys)[:, :-1] * xs).sum(dim=-1)


def run(setting: Setting) -> Numbers:
    return machines.measure(setting, build, exact)


CLAIM = Claim(
    name="learning-theorem-2",
    source="Akyürek et al. 2022, Theorem 2",
    statement="A transformer predicts by a Sherman–Morrison update: ridge regression in closed form.",
    theirs="O(1) layers and O(d²) width; O(N) layers for N examples",
    scales={
        "small": Scale(0.1, {"features": [2, 4, 8, 16], "fixed": 3, "examples": [1, 2, 4, 8, 16], "datasets": 64}),
        "paper": Scale(0.3, {"features": [4, 8, 16, 24], "fixed": 8, "examples": [1, 5, 10, 20], "datasets": 64}),
    },
    run=run,
    judge=partial(machines.judge, order=2),
    figure=machines.figure,
    differs="Exact ridge regression is solved anew on every prefix. λ = 1; a bound needs a bounded domain: it is "
    "promised for ‖x‖ ≤ 1, |y| ≤ 1.",
)
