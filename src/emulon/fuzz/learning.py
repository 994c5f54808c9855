"""Gradient descent on any loss: a step, a descent and a program on the interpreter, against the algorithm in Arb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from torch import Tensor

from emulon.algorithms import ALGORITHMS, Algorithm, GradientDescent, as_loss
from emulon.constructions import DescentInContext, GradientStep
from emulon.fuzz import judge
from emulon.fuzz.draws import (
    a_dtype,
    a_guise,
    a_scale,
    dtype_named,
    first_of_batch,
    numbers,
    require_meant,
    sizes,
    stored,
    table,
    targets,
    tensor,
)
from emulon.fuzz.functions import domain_of
from emulon.fuzz.grammar import rational, side
from emulon.fuzz.kind import Kind, Undecided, Values, Violation
from emulon.interpreter import Interpreter, compile
from emulon.interpreter.plan import Plan
from emulon.interpreter.run import DescentRun


@dataclass(frozen=True)
class ExactLoss:
    """ℓ′ in Arb, t first and then the parameter; `link` says what t is made of."""

    slope: Callable[..., Any]
    link: str = "residual"
    parameter: str = ""


def _zero() -> Any:
    return judge.balls([0.0])[0]


def _tukey(t: Any, c: Any) -> Any:
    return t * (1 - (t / c) ** 2).max(_zero()) ** 2


LOSSES = {
    "squared": ExactLoss(lambda t: t),
    "huber": ExactLoss(lambda t, delta: t.max(-delta).min(delta), parameter="delta"),
    "log_cosh": ExactLoss(lambda t: t.tanh()),
    "tukey": ExactLoss(_tukey, parameter="c"),
    "quantile": ExactLoss(lambda t, tau: rational("0.5") - tau + rational("0.5") * side(t), parameter="tau"),
    "logistic": ExactLoss(lambda t: -1 / (1 + t.exp()), "margin"),
    "squared_hinge": ExactLoss(lambda t: -2 * (1 - t).max(_zero()), "margin"),
    "perceptron": ExactLoss(lambda t: rational("-1") if side(t) <= 0 else _zero(), "margin"),
    "poisson": ExactLoss(lambda t: t.exp(), "rate"),
    # Losses that users might write.
    "sqrt(1 + t**2)": ExactLoss(lambda t: t / (1 + t * t).sqrt()),
    "t**4/4": ExactLoss(lambda t: t**3),
    "t**2/2 + Abs(t)": ExactLoss(lambda t: t + side(t)),
    "log(1 + exp(3*t)) - t": ExactLoss(lambda t: 3 / (1 + (-3 * t).exp()) - 1),
    "Max(t, 0)**2 + t**2/20": ExactLoss(lambda t: 2 * t.max(_zero()) + t / 10),
    "5*t**2": ExactLoss(lambda t: 10 * t),
    "cos(t)": ExactLoss(lambda t: -t.sin()),
}
# Those that only the interpreter runs.
NOT_PLAIN = ("heavy_ball", "nesterov", "fista", "mini_batch_descent")
SQUARED = ("linear_regression", "ridge", "lasso", "elastic_net", *NOT_PLAIN)
# What each named algorithm minimises.
LOSS_OF = {
    **dict.fromkeys(SQUARED, "squared"),
    "huber_regression": "huber",
    "log_cosh_regression": "log_cosh",
    "quantile_regression": "quantile",
    "poisson_regression": "poisson",
    "logistic_regression": "logistic",
    "squared_hinge": "squared_hinge",
    "perceptron": "perceptron",
}
PARAMETERS = {"delta": (0.5, 1.35, 1e-3), "tau": (0.5, 0.25, 0.9), "c": (4.685, 1.0)}


def settings(random: Random) -> dict[str, Any]:
    """Of all algorithms at once; each takes its own."""
    return {
        "steps": random.choice((0, 1, 2, 3, 5, 8, 12)),
        "step_size": random.choice((None, None, None, 0.1, 0.5, 1e-3, 3.0)),
        "penalty": random.choice((0.1, 0.1, 0.0, 1.0, 1e-6)),
        "l1_ratio": random.choice((0.5, 0.25, 0.0, 1.0)),
        "momentum": random.choice((0.9, 0.5, 0.0)),
        "batch": random.choice((1, 2, 3, 16)),
        **{name: random.choice(choices) for name, choices in PARAMETERS.items()},
    }


def algorithm_of(values: Values) -> Algorithm:
    """A named algorithm with those of its fields that the case sets, or descent on a user's loss."""
    name = values["algorithm"]
    if name in ALGORITHMS:
        made = ALGORITHMS[name]
        wanted = {field.name for field in fields(made)}  # type: ignore[arg-type]  # every named one is a dataclass
        return made(**{key: value for key, value in values.items() if key in wanted})
    options = {"step_size": values["step_size"], "l2": values["penalty"]}
    return GradientDescent(as_loss(written(values)), values["steps"], **options)


def written(values: Values) -> str:
    """The loss of a case as its user writes it, `huber(1.35)`."""
    name = values["algorithm"]
    parameter = LOSSES[name].parameter
    return f"{name}({values[parameter]!r})" if parameter else str(name)


def exact_loss(values: Values) -> tuple[ExactLoss, Callable[[Any], Any]]:
    """Of an algorithm or a loss by name: the loss, and its slope with the parameter put in."""
    name = str(values["algorithm"])
    loss = LOSSES[LOSS_OF.get(name, name)]
    if not loss.parameter:
        return loss, loss.slope
    # A parameter is the decimal number that was written.
    return loss, lambda t: loss.slope(t, rational(repr(values[loss.parameter])))


def exact_weights(
    values: Values, rows: Sequence[Sequence[float]], ys: Sequence[float], given: Mapping[str, float], steps: int
) -> list[Any]:
    """The algorithm in Arb, on these numbers, from the case's `w` where it has one."""
    loss, slope = exact_loss(values)
    x, y, fixed = [judge.balls(row) for row in rows], judge.balls(ys), None
    if loss.link == "margin":
        x, y = [[label * one for one in row] for row, label in zip(x, y, strict=True)], [_zero()] * len(y)
    if loss.link == "rate":
        fixed = [judge.dot(y, [row[k] for row in x]) / len(x) for k in range(len(x[0]))]
        y = [_zero()] * len(y)
    start = judge.balls(given["start"]) if "start" in given else None  # type: ignore[arg-type]  # a list, that one
    return judge.descended(x, y, slope, given, steps, fixed=fixed, start=start)


def numbers_of(plan: Plan) -> dict[str, float]:
    numbers = {name: getattr(plan, name) for name in ("step_size", "l2", "l1", "momentum", "accelerated")}
    return numbers | {"batch": plan.batch or 0}


def judged_run(values: Values, run: DescentRun, given: Sequence[Tensor]) -> None:
    """Promise and audit of a run of descent."""
    dtype, guise = values["dtype"], values["guise"]
    require_meant(guise, *given)
    rows, ys = (stored(values[name], dtype, guise) for name in ("x", "y"))
    plan = run.plan

    def exact() -> list[Any]:
        return exact_weights(values, rows, ys, numbers_of(plan), plan.steps)

    weights = first_of_batch(run.weights, guise)
    if not weights.isfinite().all():
        raise Violation(f"weights that are not finite: {weights.tolist()}")
    judge.promised("audit", weights, run.audit, exact)
    if not run.entered_band:
        judge.promised("certificate", weights, run.certificate, exact)


def drawn_run(random: Random, names: Sequence[str]) -> dict[str, Any]:
    name = random.choice(names)
    samples, features = sizes(random)
    x = table(random, samples, features)
    own = settings(random)
    if name in LOSSES and own["step_size"] is None and random.random() < 0.9:
        own["step_size"] = 0.05  # the step that a user's loss needs
    return {
        "algorithm": name,
        **own,
        "x": x,
        "y": targets(random, x, LOSSES[LOSS_OF.get(name, name)].link),
        "tolerance": random.choice((1e-2, 1e-4, 1e-6, 1e-8, 1e-10)),
        "dtype": a_dtype(random),
        "guise": a_guise(random),
    }


class Interpreted(Kind, name="interpreter"):
    """Every named algorithm, and descent on users' losses, as programs of the interpreter."""

    weight = 3.0

    def draw(self, random: Random) -> dict[str, Any]:
        names = [*LOSS_OF, *(name for name in LOSSES if name not in LOSS_OF.values())]
        return {**drawn_run(random, names), "path": random.choice(("fast", "fast", "faithful"))}

    def check(self, values: Values) -> None:
        dtype, guise = values["dtype"], values["guise"]
        x, y = (tensor(values[name], dtype, guise) for name in ("x", "y"))
        program = compile(algorithm_of(values), data=(x, y), tolerance=values["tolerance"], dtype=dtype_named(dtype))
        run = Interpreter.fitting(program).run(program, x, y, values["path"])
        judged_run(values, run, (x, y))


class Descending(Kind, name="descent"):
    """The same as constructions: gradient descent in context."""

    weight = 2.0

    def draw(self, random: Random) -> dict[str, Any]:
        return drawn_run(random, [name for name in LOSS_OF if name not in NOT_PLAIN] + ["sqrt(1 + t**2)"])

    def check(self, values: Values) -> None:
        dtype, guise = values["dtype"], values["guise"]
        x, y = (tensor(values[name], dtype, guise) for name in ("x", "y"))
        made = DescentInContext.of(algorithm_of(values), x, y, values["tolerance"], dtype=dtype_named(dtype))
        judged_run(values, made.run(x, y), (x, y))


class Stepping(Kind, name="gradient step"):
    """One (proximal) step from anywhere."""

    def draw(self, random: Random) -> dict[str, Any]:
        name = random.choice(list(LOSSES))
        samples, features = sizes(random)
        x = table(random, samples, features)
        return {
            "algorithm": name,
            "step_size": random.choice((0.1, 0.5, 1.0, 1e-3)),
            "l2": random.choice((0.0, 0.0, 0.3, 4.0)),
            "l1": random.choice((0.0, 0.0, 0.2, 2.0)),
            **{key: random.choice(choices) for key, choices in PARAMETERS.items()},
            "x": x,
            "y": targets(random, x, LOSSES[name].link),
            "w": numbers(random, features, a_scale(random, 0.95)),
            "room": random.choice((1.0, 1.0, 1.5, 0.9)),
            "tolerance": random.choice((1e-1, 1e-2, 1e-4, 1e-6)),
            "dtype": a_dtype(random),
            "guise": a_guise(random),
        }

    def check(self, values: Values) -> None:
        dtype, guise = values["dtype"], values["guise"]
        x, y, w = (tensor(values[key], dtype, guise) for key in ("x", "y", "w"))
        loss, _ = exact_loss(values)
        given = {key: values[key] for key in ("step_size", "l2", "l1")}
        domain = domain_of(values, x, y, w)
        made = GradientStep(written(values), domain, values["tolerance"], dtype=dtype_named(dtype), **given)
        out = first_of_batch(made(x, y, w), guise)
        require_meant(guise, x)
        rows, ys, ws = (stored(values[key], dtype, guise) for key in ("x", "y", "w"))
        bands = made.certificate.bands

        def exact() -> list[Any]:
            if bands:
                _require_outside(loss.link, rows, ys, ws, bands)
            return exact_weights(values, rows, ys, {**given, "start": ws}, 1)

        judge.promised("step", out, made.certificate, exact)


def _require_outside(link: str, rows: Any, ys: Any, ws: Any, bands: Any) -> None:
    for row, target in zip(rows, judge.balls(ys), strict=True):
        score = judge.dot(judge.balls(row), judge.balls(ws))
        at = score * target if link == "margin" else score - target if link == "residual" else score
        if any(not (at < band.lo or at > band.hi) for band in bands):
            raise Undecided("in a band")
