"""Audits by the thousand: small runs of everything that audits itself, built once, on data drawn anew each time."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from emulon.algorithms import ALGORITHMS
from emulon.certify import Domain, Spectrum
from emulon.constructions import DescentInContext
from emulon.fuzz.draws import dtype_named, numbers, tensor
from emulon.fuzz.kind import Kind, Values
from emulon.fuzz.learning import LOSS_OF, LOSSES, judged_run
from emulon.fuzz.solvers import PROGRAMS, SOLVERS, judged_machine, judged_solver, program_of, solver_of
from emulon.interpreter import Interpreter, compile

SAMPLES, FEATURES, STEPS, LOOPS = 4, 2, 6, 6
DOMAIN = Domain(SAMPLES, FEATURES, x=1.0, y=1.0, w=4.0)
# |x| ≤ 1 in two features: the largest eigenvalue is at most 2, and the steepest loss has curvature 2.
STEP = 0.25
CONSTRUCTED = ("linear_regression", "ridge", "lasso", "huber_regression", "log_cosh_regression", "logistic_regression")
FIXED = {
    "step_size": 0.1,
    "ridge": 0.5,
    "steps": 3,
    "decay": 0.9,
    "horizon": LOOPS,
    "tolerance": None,
    "guise": "plain",
}


class Auditing(Kind, name="audit"):
    """No audit below the error of its run: programs, descent in context, looped transformers, register machines."""

    weight = 20.0

    def draw(self, random: Random) -> dict[str, Any]:
        which = random.choice(
            [*(f"interpreter {name}" for name in LOSS_OF), *(f"descent {name}" for name in CONSTRUCTED)]
            + [f"looped {name}" for name in SOLVERS] * 3
            + [f"machine {name}" for name in PROGRAMS] * 3
        )
        features = 1 if which == "machine moving_average" else FEATURES
        name = which.partition(" ")[2]
        return {
            "which": which,
            "x": [_within(random, features) for _ in range(SAMPLES)],
            "y": _targets(random, LOSSES[LOSS_OF[name]].link if name in LOSS_OF else "residual"),
            "query": _within(random, features),
            "loops": random.randint(0, LOOPS),
            "dtype": random.choice(("float64", "float64", "float32")),
        }

    def check(self, values: Values) -> None:
        family, _, name = values["which"].partition(" ")
        dtype = values["dtype"]
        case = {**FIXED, "delta": 1.35, "tau": 0.5, **values, "which": name, "algorithm": name}
        x, y = (tensor(values[key], dtype) for key in ("x", "y"))
        if family == "interpreter":
            interpreter, program = _interpreted(name, dtype)
            judged_run(case, interpreter.run(program, x, y), (x, y))
        elif family == "descent":
            judged_run(case, _constructed(name, dtype).run(x, y), (x, y))
        elif family == "looped":
            judged_solver(case, _solver(name, dtype), (x, y, tensor(values["query"], dtype)))
        else:
            judged_machine(case, _machine(name, dtype))


def _within(random: Random, count: int) -> list[float]:
    """In [−1, 1], with zeros, ties, ends and tiny numbers among them."""
    ordinary = [max(-1.0, min(1.0, value)) for value in numbers(random, count, 0.7)]
    special = random.random() < 0.25
    return [random.choice((0.0, 1.0, -1.0, 0.5, 1e-9, 1e-310, value)) if special else value for value in ordinary]


def _targets(random: Random, link: str) -> list[float]:
    if link == "margin":
        return [random.choice((-1.0, 1.0)) for _ in range(SAMPLES)]
    return [abs(value) if link == "rate" else value for value in _within(random, SAMPLES)]


@cache
def _interpreted(name: str, dtype: str) -> tuple[Interpreter, Any]:
    algorithm = ALGORITHMS[name](steps=STEPS, step_size=STEP)  # type: ignore[call-arg]  # every named one takes both
    program = compile(algorithm, DOMAIN, 1e-6, dtype_named(dtype))
    return Interpreter.fitting(program), program


@cache
def _constructed(name: str, dtype: str) -> DescentInContext:
    descent = ALGORITHMS[name](steps=STEPS, step_size=STEP).descent  # type: ignore[call-arg, attr-defined]  # as above
    penalties = {"l2": descent.l2, "l1": descent.l1}
    options = {"steps": STEPS, "step_size": STEP, "dtype": dtype_named(dtype), **penalties}
    return DescentInContext(descent.loss, DOMAIN, points=17, **options)


@cache
def _solver(name: str, dtype: str) -> Any:
    spectrum = Spectrum(smallest=0.02) if name == "newton" else Spectrum()
    domain = Domain(SAMPLES, FEATURES, x=1.0, y=1.0, w=0.0, spectrum=spectrum)
    return solver_of({**FIXED, "which": name, "dtype": dtype}, domain)


@cache
def _machine(name: str, dtype: str) -> Any:
    features = 1 if name == "moving_average" else FEATURES
    return program_of({**FIXED, "which": name, "x": [[0.0] * features] * SAMPLES}).compile(dtype_named(dtype))
