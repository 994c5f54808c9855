"""Cases of gradient descent on any loss: a step, a descent and a program, against the algorithm in Arb."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from flint import arb
from hypothesis import strategies as st

from emulon.algorithms import ALGORITHMS, Algorithm, GradientDescent, as_loss
from emulon.constructions import DescentInContext
from emulon.interpreter import Interpreter, compile
from fuzz import oracle
from fuzz.data import dtype_named, dtypes, sizes, stored, tables, targets, tensors
from fuzz.oracle import Case, Violation, rational, require_certified, sign


@dataclass(frozen=True)
class ExactLoss:
    """ℓ′ in Arb, of t and then of the loss's parameter; `link` says what t is made of."""

    slope: Callable[..., Any]
    link: str = "residual"
    parameter: str = ""


def positive(t: Any) -> Any:
    return t.max(arb(0))


LOSSES = {
    "squared": ExactLoss(lambda t: t),
    "huber": ExactLoss(lambda t, delta: t.max(-delta).min(delta), parameter="delta"),
    "log_cosh": ExactLoss(lambda t: t.tanh()),
    "tukey": ExactLoss(lambda t, c: t * positive(1 - (t / c) ** 2) ** 2, parameter="c"),
    "quantile": ExactLoss(lambda t, tau: rational("0.5") - tau + rational("0.5") * sign(t), parameter="tau"),
    "logistic": ExactLoss(lambda t: -1 / (1 + t.exp()), "margin"),
    "squared_hinge": ExactLoss(lambda t: -2 * positive(1 - t), "margin"),
    "perceptron": ExactLoss(lambda t: arb(-1) if sign(t) <= 0 else arb(0), "margin"),
    "poisson": ExactLoss(lambda t: t.exp(), "rate"),
    # Losses that users might write.
    "sqrt(1 + t**2)": ExactLoss(lambda t: t / (1 + t * t).sqrt()),
    "t**4/4": ExactLoss(lambda t: t**3),
    "t**2/2 + Abs(t)": ExactLoss(lambda t: t + sign(t)),
    "log(1 + exp(3*t)) - t": ExactLoss(lambda t: 3 / (1 + (-3 * t).exp()) - 1),
    "Max(t, 0)**2 + t**2/20": ExactLoss(lambda t: 2 * positive(t) + t / 10),
    "5*t**2": ExactLoss(lambda t: 10 * t),
    "cos(t)": ExactLoss(lambda t: -t.sin()),
}
ONLY_INTERPRETED = ("heavy_ball", "nesterov", "fista", "mini_batch_descent")
# What each named algorithm minimises.
LOSS_OF = {
    **dict.fromkeys(("linear_regression", "ridge", "lasso", "elastic_net", *ONLY_INTERPRETED), "squared"),
    "huber_regression": "huber",
    "log_cosh_regression": "log_cosh",
    "quantile_regression": "quantile",
    "poisson_regression": "poisson",
    "logistic_regression": "logistic",
    "squared_hinge": "squared_hinge",
    "perceptron": "perceptron",
}
PARAMETERS = {"delta": (0.5, 1.35, 1e-3), "tau": (0.5, 0.25, 0.9), "c": (4.685, 1.0)}
parameters = {name: st.sampled_from(choices) for name, choices in PARAMETERS.items()}
# Of all algorithms at once; each takes its own.
settings = {
    "steps": st.sampled_from((0, 1, 2, 3, 5, 8, 12)),
    "step_size": st.sampled_from((None, None, None, 0.1, 0.5, 1e-3, 3.0)),
    "penalty": st.sampled_from((0.1, 0.1, 0.0, 1.0, 1e-6)),
    "l1_ratio": st.sampled_from((0.5, 0.25, 0.0, 1.0)),
    "momentum": st.sampled_from((0.9, 0.5, 0.0)),
    "batch": st.sampled_from((1, 2, 3, 16)),
    **parameters,
}


def loss_of(case: Case) -> ExactLoss:
    return LOSSES[LOSS_OF.get(case["algorithm"], case["algorithm"])]


def written(case: Case) -> str:
    """The loss of a case as its user writes it, `huber(1.35)`."""
    name, parameter = case["algorithm"], loss_of(case).parameter
    return f"{name}({case[parameter]!r})" if parameter else str(name)


def slope_of(case: Case) -> Callable[[Any], Any]:
    """ℓ′ with its parameter, which is the decimal number that was written."""
    loss = loss_of(case)
    return (lambda t: loss.slope(t, rational(repr(case[loss.parameter])))) if loss.parameter else loss.slope


def algorithm_of(case: Case) -> Algorithm:
    """A named algorithm with those of its fields that the case sets, or descent on a user's loss."""
    if made := ALGORITHMS.get(case["algorithm"]):
        wanted = {field.name for field in fields(made)}
        return made(**{key: value for key, value in case.items() if key in wanted})
    return GradientDescent(as_loss(written(case)), case["steps"], step_size=case["step_size"], l2=case["penalty"])


def exact_weights(case: Case, plan: Mapping[str, float], steps: int, start: Sequence[float] | None = None) -> list[Any]:
    """The algorithm in Arb, on the numbers of the case."""
    link, (rows, ys) = loss_of(case).link, stored(case, "x", "y")
    x, y, fixed = [oracle.balls(row) for row in rows], oracle.balls(ys), None
    if link == "margin":
        x, y = [[label * one for one in row] for row, label in zip(x, y, strict=True)], [arb(0)] * len(y)
    if link == "rate":
        fixed = [oracle.dot(y, [row[k] for row in x]) / len(x) for k in range(len(x[0]))]
        y = [arb(0)] * len(y)
    begin = None if start is None else oracle.balls(start)
    return oracle.descended(x, y, slope_of(case), plan, steps, fixed=fixed, start=begin)


def check_run(case: Case, run: Any) -> None:
    """Audit and certificate of a run of descent."""
    plan = run.plan
    values = {name: getattr(plan.descent, name) for name in ("step_size", "l2", "l1", "momentum", "accelerated")}
    values["batch"] = plan.descent.batch or 0
    weights = run.weights
    if not weights.isfinite().all():
        raise Violation(f"weights that are not finite: {weights.tolist()}")
    require_certified("audit", weights, run.audit, lambda: exact_weights(case, values, plan.steps))
    if not run.entered_band:
        require_certified("certificate", weights, run.certificate, lambda: exact_weights(case, values, plan.steps))


@st.composite
def runs(draw: Any, names: Sequence[str], **more: st.SearchStrategy[Any]) -> Case:
    name, (samples, features) = draw(st.sampled_from(names)), draw(sizes())
    own, x = draw(st.fixed_dictionaries(settings)), draw(tables(samples, features))
    if name in LOSSES and own["step_size"] is None and draw(st.integers(0, 9)):
        own["step_size"] = 0.05  # the step that a user's loss needs
    case = {"algorithm": name, **own, "x": x, "y": draw(targets(x, loss_of({"algorithm": name}).link))}
    tolerance = st.sampled_from((1e-2, 1e-4, 1e-6, 1e-8, 1e-10))
    return case | draw(st.fixed_dictionaries({"tolerance": tolerance, **more, "dtype": dtypes}))


def programs() -> st.SearchStrategy[Case]:
    """Every named algorithm, and descent on users' losses."""
    names = [*LOSS_OF, *(name for name in LOSSES if name not in LOSS_OF.values())]
    return runs(names, mode=st.sampled_from(("fast", "fast", "reference")))


def check_program(case: Case) -> None:
    x, y = tensors(case, "x", "y")
    dtype = dtype_named(case["dtype"])
    program = compile(algorithm_of(case), data=(x, y), tolerance=case["tolerance"], dtype=dtype)
    check_run(case, Interpreter.fitting(program).run(program, x, y, case["mode"]))


def descents() -> st.SearchStrategy[Case]:
    return runs([name for name in LOSS_OF if name not in ONLY_INTERPRETED] + ["sqrt(1 + t**2)"])


def check_descent(case: Case) -> None:
    """The same as constructions: gradient descent in context."""
    x, y = tensors(case, "x", "y")
    made = DescentInContext.of(algorithm_of(case), x, y, case["tolerance"], dtype=dtype_named(case["dtype"]))
    check_run(case, made.run(x, y))
