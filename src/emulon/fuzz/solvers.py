"""Looped transformers and register machines, against their algorithms in Arb."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from emulon.certify import Domain
from emulon.fuzz import judge
from emulon.fuzz.draws import (
    a_dtype,
    a_guise,
    dtype_named,
    first_of_batch,
    numbers,
    require_meant,
    stored,
    table,
    tensor,
)
from emulon.fuzz.kind import Kind, Values, Violation
from emulon.looped import (
    CausalLoopedGradientDescent,
    CausalLoopedNewton,
    LoopedGradientDescent,
    LoopedNewton,
    LoopedTransformer,
)
from emulon.looped.newton import start_scale
from emulon.machine import RegisterProgram
from emulon.machine.programs import batch_gradient_descent, moving_average, sgd, sherman_morrison

SOLVERS = ("gradient descent", "newton", "causal gradient descent", "causal newton")
PROGRAMS = ("sgd", "sherman_morrison", "batch_gradient_descent", "moving_average")


def solver_of(values: Values, domain: Domain) -> Any:
    options = {"horizon": max(1, values["horizon"]), "dtype": dtype_named(values["dtype"])}
    if values["which"] == "newton":
        return LoopedNewton(domain, values["tolerance"], **options)
    if values["which"] == "causal newton":
        return CausalLoopedNewton(domain, values["ridge"], values["tolerance"], **options)
    kind = LoopedGradientDescent if values["which"] == "gradient descent" else CausalLoopedGradientDescent
    return kind(domain, values["tolerance"], **options)


def exact_predictions(which: str, solver: Any, x: Any, y: Any, query: Any, loops: int) -> list[Any]:
    """One for the query; of a decoder one for every position, the first of which knows nothing."""
    rows, ys, ask = [judge.balls(row) for row in x], judge.balls(y), judge.balls(query)
    if which == "gradient descent":
        step = {"step_size": solver.step_size}
        return [judge.dot(ask, judge.descended(rows, ys, lambda t: t, step, loops))]
    if which == "newton":
        return [judge.newton(rows, ys, ask, start_scale(solver.domain), loops)]
    points, zero = [*rows, ask], judge.balls([0.0])
    found = zero
    for i in range(1, len(points)):
        if which == "causal gradient descent":
            step = {"step_size": solver.step_size}
            weights = judge.descended(rows[:i], ys[:i], lambda t: t, step, loops)
        else:
            weights = _ridge(rows[:i], ys[:i], solver, loops)
        found = [*found, judge.dot(points[i], weights)]
    return found


def _ridge(rows: Any, ys: Any, solver: Any, loops: int) -> list[Any]:
    """M_T·mean yx, M_0 = αH, H = mean xxᵀ + λI; α is a number that the solver says."""
    count, width = len(rows), range(len(rows[0]))
    columns = [[row[k] for row in rows] for k in width]
    ridge = judge.balls([solver.ridge])[0]
    gram = [[judge.dot(columns[i], columns[j]) / count + (ridge if i == j else 0) for j in width] for i in width]
    moment = [judge.dot(column, ys) / count for column in columns]
    return judge.applied(judge.schulz(gram, solver.solver.scale, loops), moment)


def judged_solver(values: Values, solver: LoopedTransformer, parts: tuple[Any, Any, Any]) -> None:
    """Promise and audit after so many loops."""
    guise, dtype, loops = values["guise"], values["dtype"], values["loops"]
    run = solver.run(*parts, loops=loops)  # type: ignore[operator]  # every solver of a regression has it
    prediction = first_of_batch(run.prediction, guise)
    require_meant(guise, *parts)
    x, y, query = (stored(values[name], dtype, guise) for name in ("x", "y", "query"))

    def exact() -> list[Any]:
        return exact_predictions(values["which"], solver, x, y, query, loops)

    judge.promised("audit", prediction, run.audit, exact)
    judge.promised("certificate", prediction, run.certificate, exact)


class Looped(Kind, name="looped"):
    """Looped transformers on a domain that is drawn around the data, or tightly around it."""

    weight = 2.0

    def draw(self, random: Random) -> dict[str, Any]:
        which = random.choice(SOLVERS)
        samples, features = random.randint(1, 6), random.randint(1, 2 if which == "causal newton" else 3)
        x = table(random, samples, features)
        loops = random.randint(0, 8)
        return {
            "which": which,
            "x": x,
            "y": numbers(random, samples, random.choice((1.0, 1.0, 1e-3, 1e6))),
            "query": numbers(random, features),
            "loops": loops,
            "horizon": loops + random.choice((0, 0, 3, -1)),
            "ridge": random.choice((0.1, 1.0, 1e-3)),
            "tolerance": random.choice((None, None, 1e-2, 1e-6)),
            "margin": random.choice((1.0, 1.001, 1.5)),
            "dtype": a_dtype(random),
            "guise": a_guise(random),
        }

    def check(self, values: Values) -> None:
        dtype, guise = values["dtype"], values["guise"]
        x, y, query = (tensor(values[name], dtype, guise) for name in ("x", "y", "query"))
        judged_solver(values, solver_of(values, Domain.covering(x, y, query, values["margin"])), (x, y, query))


def program_of(values: Values) -> RegisterProgram:
    samples, features = len(values["x"]), len(values["x"][0])
    ridge, step = values["ridge"], values["step_size"]
    made: dict[str, Callable[[], RegisterProgram]] = {
        "sgd": lambda: sgd(features, samples, step, ridge=ridge),
        "sherman_morrison": lambda: sherman_morrison(features, samples, ridge),
        "batch_gradient_descent": lambda: batch_gradient_descent(features, samples, step, values["steps"], ridge=ridge),
        "moving_average": lambda: moving_average(samples, values["decay"]),
    }
    return made[values["which"]]()


def exact_learner(values: Values, x: Any, y: Any) -> list[Any]:
    """ŷ_i for every position, from the examples before it."""
    which = values["which"]
    rows, ys = [judge.balls(row) for row in x], judge.balls(y)
    step, ridge, decay = (judge.balls([values[name]])[0] for name in ("step_size", "ridge", "decay"))
    zero = judge.balls([0.0])[0]
    if which == "moving_average":
        out = [zero]
        for one in ys[:-1]:
            # The program's own second factor, 1 − decay, is a float.
            out.append(decay * out[-1] + judge.balls([1 - values["decay"]])[0] * one)
        return out
    out, w = [], [zero] * len(rows[0])
    for i, row in enumerate(rows):
        if which == "sherman_morrison":
            w = _solved(rows[:i], ys[:i], ridge, len(row))
        if which == "batch_gradient_descent" and i:
            # Its penalty is λ‖w‖², of gradient 2λw.
            numbers_ = {"step_size": values["step_size"], "l2": 2 * values["ridge"]}
            w = judge.descended(rows[:i], ys[:i], lambda t: t, numbers_, values["steps"])
        out.append(judge.dot(w, row))
        if which == "sgd":
            residual = judge.dot(w, row) - ys[i]
            w = [a - step * (b * residual + 2 * ridge * a) for a, b in zip(w, row, strict=True)]
    return out


def _solved(rows: Any, ys: Any, ridge: Any, width: int) -> list[Any]:
    from flint import arb_mat

    columns = [[row[k] for row in rows] for k in range(width)]
    gram = [[judge.dot(a, b) + (ridge if i == j else 0) for j, b in enumerate(columns)] for i, a in enumerate(columns)]
    moment = [[judge.dot(column, ys)] for column in columns]
    return [row[0] for row in arb_mat(gram).solve(arb_mat(moment)).tolist()]


def judged_machine(values: Values, machine: Any) -> None:
    """Promise and audit of a machine's run, at every position."""
    dtype, guise = values["dtype"], values["guise"]
    xs, ys = (tensor(values[name], dtype, guise) for name in ("x", "y"))
    prompt = machine.program.prompt
    run = machine.run(**prompt.fill(xs, ys))
    seen = first_of_batch(prompt.predictions(run.result), guise)
    require_meant(guise, xs, ys)
    x, y = (stored(values[name], dtype, guise) for name in ("x", "y"))
    if not seen.isfinite().all():
        raise Violation(f"predictions that are not finite: {seen.tolist()}")
    judge.promised("audit", seen, run.audit, lambda: exact_learner(values, x, y))
    judge.promised("certificate", seen, run.certificate, lambda: exact_learner(values, x, y))


class Machine(Kind, name="machine"):
    """Programs of the register machine."""

    def draw(self, random: Random) -> dict[str, Any]:
        which = random.choice(PROGRAMS)
        samples = random.randint(1, 5)
        x = table(random, samples, 1 if which == "moving_average" else random.randint(1, 3))
        return {
            "which": which,
            "x": x,
            "y": numbers(random, samples, random.choice((1.0, 1.0, 1e-6, 30.0))),
            "step_size": random.choice((0.1, 0.01, 0.5)),
            "ridge": random.choice((0.0, 0.1, 1.0)),
            "steps": random.randint(0, 4),
            "decay": random.choice((0.9, 0.5, 0.0)),
            "dtype": a_dtype(random),
            "guise": a_guise(random),
        }

    def check(self, values: Values) -> None:
        judged_machine(values, program_of(values).compile(dtype_named(values["dtype"])))
