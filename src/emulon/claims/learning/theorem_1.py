"""Theorem 1: a transformer makes a step of gradient descent on an in-context example."""

from __future__ import annotations

from functools import partial

from emulon.algorithms import OnlineSGD
from emulon.certify import Domain
from emulon.claims.claim import Claim, Numbers, Scale, Setting
from emulon.claims.learning import machines
from emulon.machine import RegisterProgram
from emulon.machine.programs import sgd

STEP = 0.05


def build(features: int, samples: int, domain: Domain | None) -> RegisterProgram:
    return sgd(features, samples, STEP, domain=domain)


def run(setting: Setting) -> Numbers:
    return machines.measure(setting, build, OnlineSGD(STEP))


CLAIM = Claim(
    name="learning-theorem-1",
    source="Akyürek et al. 2022, Theorem 1",
    statement="A transformer computes the prediction after one step of gradient descent on an in-context example.",
    theirs="O(1) layers and O(d) width; O(N) layers for N examples",
    scales={
        "small": Scale(
            0.1, {"features": [4, 8, 16, 32, 64], "fixed": 4, "examples": [1, 4, 8, 16, 32], "datasets": 64}
        ),
        "paper": Scale(
            0.2, {"features": [8, 16, 32, 64, 128], "fixed": 8, "examples": [1, 5, 10, 20, 40], "datasets": 64}
        ),
    },
    run=run,
    judge=partial(machines.judge, order=1),
    figure=machines.figure,
    differs="The chain of instructions takes +2λ of its Eq. 11, where the appendix has −2λ, and GELU's quadratic "
    "coefficient is 1/√(2π). A bound needs a bounded domain: it is promised for ‖x‖ ≤ 1, |y| ≤ 1.",
)
