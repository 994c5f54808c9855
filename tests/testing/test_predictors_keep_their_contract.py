"""Everything that predicts passes `predictor_checks`: algorithms, references, learners, machines, looped, programs."""

import pytest
import torch
from sklearn.linear_model import Ridge as SklearnRidge

from emulon.algorithms import (
    ALGORITHMS,
    LassoRegression,
    LeastSquares,
    NearestNeighbours,
    NewtonLeastSquares,
    OnlineSGD,
    PreviousTarget,
    Ridge,
    RidgeRegression,
    ShermanMorrisonRidge,
    Zero,
)
from emulon.certify import Domain
from emulon.constructions import DescentInContext
from emulon.core.predictor import FunctionPredictor, as_predictor
from emulon.identification import REFERENCES
from emulon.interpreter import compile
from emulon.looped import CausalLoopedGradientDescent, LoopedGradientDescent, LoopedNewton
from emulon.machine.programs import sgd, sherman_morrison
from emulon.models import Learner
from emulon.tasks import Linear
from emulon.testing import predictor_checks

XS, YS = Linear(3, noise=0.3).held_out(0, 6, 9).pairs
DATA = XS, YS
EVERY = ("order", "rotation", "scale")
STEP = Ridge(0.1).resolved_step_size(XS[:, :8], YS[:, :8]).min().item()
EXACT = Ridge(0.1, steps=20, step_size=STEP)


def labelled(kind):
    """The data as this algorithm takes it."""
    if kind in ("logistic_regression", "squared_hinge", "perceptron"):
        return XS, torch.where(YS > 0, 1.0, -1.0).double()
    return (XS, YS.abs().round()) if kind == "poisson_regression" else DATA


def covering():
    return Domain.covering(XS[:, :8], YS[:, :8], XS[:, 8], margin=1.1)


def mean(xs, ys, x_query):
    """The zeros show NaN, wherever it was."""
    return ys.mean(-1) + 0 * xs.sum((-1, -2)) + 0 * x_query.sum(-1)


def learner(name):
    torch.manual_seed(0)
    options = {"loops": 4, "window": 2} if name in ("looped", "algoformer") else {}
    return Learner.registry[name](4, 1, 17, width=16, heads=2, **options)


# How it is made, and how the checks are called.
CASES = {
    "least squares": (LeastSquares, {"invariances": EVERY}),
    "ridge regression": (lambda: RidgeRegression(0.3), {"invariances": EVERY}),
    "sherman-morrison": (lambda: ShermanMorrisonRidge(0.3), {"invariances": EVERY}),
    "online sgd": (lambda: OnlineSGD(0.02), {"invariances": ("rotation", "scale")}),
    "lasso path": (lambda: LassoRegression(0.1), {"invariances": ("order",)}),
    "newton": (lambda: NewtonLeastSquares(8), {"invariances": EVERY}),
    "zero": (Zero, {"invariances": EVERY}),
    "previous target": (PreviousTarget, {"invariances": ("rotation", "scale")}),
    "neighbours": (NearestNeighbours, {"invariances": EVERY}),
    "weighted neighbours": (lambda: NearestNeighbours(weighted=True), {"invariances": EVERY}),
    "estimator": (lambda: as_predictor(SklearnRidge(alpha=0.3)), {"invariances": EVERY}),
    "function": (lambda: as_predictor(mean), {"invariances": EVERY}),
    "function of one": (lambda: FunctionPredictor(RidgeRegression(0.3).predict, each=True), {"invariances": EVERY}),
    "construction": (lambda: as_predictor(DescentInContext.of(EXACT, XS[:, :8], YS[:, :8], 1e-6)), {"data": DATA}),
    "program": (lambda: compile(EXACT, data=(XS[:, :8], YS[:, :8]), tolerance=1e-6), {"data": DATA}),
    "looped descent": (lambda: as_predictor(LoopedGradientDescent(covering(), horizon=5), loops=5), {"data": DATA}),
    "looped newton": (lambda: as_predictor(LoopedNewton(covering(), horizon=5), loops=5), {"data": DATA}),
    "causal descent": (
        lambda: as_predictor(CausalLoopedGradientDescent(covering(), horizon=5), loops=5),
        {"data": DATA},
    ),
    "machine sgd": (lambda: as_predictor(sgd(3, 9, 0.05).compile()), {"data": DATA}),
    "machine ridge": (lambda: as_predictor(sherman_morrison(3, 9, 1.0).compile()), {"data": DATA, "tolerance": 1e-6}),
}
for kind, algorithm in ALGORITHMS.items():
    CASES[kind] = (lambda algorithm=algorithm: algorithm(steps=20), {"data": labelled(kind), "invariances": ("order",)})
for name in Learner.registry:
    CASES[f"learner {name}"] = (lambda name=name: learner(name), {"tolerance": 1e-6})
for reference in REFERENCES.values():
    setting = {one.name: value for one, value in ((reference.integer, 3), (reference.continuous, 0.01)) if one}
    CASES[f"reference {reference.name}"] = (lambda reference=reference, setting=setting: reference.fitted(setting), {})


@pytest.mark.parametrize("case", CASES)
def test_predictor(case):
    make, options = CASES[case]
    for _, check in predictor_checks(make(), **options):
        check()
