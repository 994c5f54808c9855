"""Cases of looped transformers and register machines against their algorithms in Arb, and audits by the thousand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flint import arb, arb_mat
from hypothesis import strategies as st

from emulon.certify import Domain
from emulon.looped import CausalLoopedGradientDescent, LoopedGradientDescent, LoopedNewton
from emulon.looped.newton import start_scale
from emulon.machine import RegisterProgram
from emulon.machine.programs import batch_gradient_descent, moving_average, sgd, sherman_morrison
from fuzz import oracle
from fuzz.data import dtype_named, dtypes, numbers, scales, sizes, stored, tables, tensors
from fuzz.oracle import Case, Violation, dot, matvec, require_certified

SOLVERS = ("gradient descent", "newton", "causal gradient descent")
PROGRAMS = ("sgd", "sherman_morrison", "batch_gradient_descent", "moving_average")


@st.composite
def loops(draw: Any) -> Case:
    """Looped transformers on a domain around the data."""
    samples, features = draw(sizes(5))
    options = {
        "which": st.sampled_from(SOLVERS),
        "x": tables(samples, features),
        "y": numbers(samples, draw(scales(57))),
        "query": numbers(features),
        "loops": st.integers(0, 6),
        "horizon": st.integers(1, 6),
        "tolerance": st.sampled_from((None, None, 1e-2, 1e-6)),
        "slack": st.sampled_from((1.0, 1.001, 1.5)),
    }
    return draw(st.fixed_dictionaries({**options, "dtype": dtypes}))


def check_loop(case: Case) -> None:
    parts = tensors(case, "x", "y", "query")
    check_solver(case, solver_of(case, Domain.covering(*parts, case["slack"])), parts)


def solver_of(case: Case, domain: Domain) -> Any:
    options = {"horizon": case["horizon"], "dtype": dtype_named(case["dtype"])}
    if case["which"] == "newton":
        return LoopedNewton(domain, case["tolerance"], **options)
    kind = LoopedGradientDescent if case["which"] == "gradient descent" else CausalLoopedGradientDescent
    return kind(domain, case["tolerance"], **options)


def check_solver(case: Case, solver: Any, parts: list[Any]) -> None:
    """Audit and certificate after so many loops."""
    run = solver.run(*parts, loops=case["loops"])
    prediction = run.prediction
    require_certified("audit", prediction, run.audit, lambda: exact_predictions(case, solver))
    require_certified("certificate", prediction, run.certificate, lambda: exact_predictions(case, solver))


def exact_predictions(case: Case, solver: Any) -> list[Any]:
    """One for the query; of a decoder one for every position, the first of which has seen no example."""
    x, ys, query = stored(case, "x", "y", "query")
    which, count = case["which"], case["loops"]
    rows, ys, query = [oracle.balls(row) for row in x], oracle.balls(ys), oracle.balls(query)

    def descended(samples: int) -> list[Any]:
        step = {"step_size": solver.step_size}
        return oracle.descended(rows[:samples], ys[:samples], lambda t: t, step, count)

    if which == "gradient descent":
        return [dot(query, descended(len(rows)))]
    if which == "newton":
        gram, moment = oracle.normal_equations(rows, ys)
        return [dot(query, matvec(oracle.newton_schulz(gram, start_scale(solver.domain), count), moment))]
    points = [*rows, query]
    return [arb(0), *(dot(points[i], descended(i)) for i in range(1, len(points)))]


@st.composite
def machines(draw: Any) -> Case:
    which, (samples, features) = draw(st.sampled_from(PROGRAMS)), draw(sizes(5))
    options = {
        "x": tables(samples, 1 if which == "moving_average" else features),
        "y": numbers(samples, draw(st.sampled_from((1.0, 1.0, 1e-6, 10.0)))),
        "step_size": st.sampled_from((0.1, 0.01, 0.5)),
        "ridge": st.sampled_from((0.0, 0.1, 1.0)),
        "steps": st.integers(0, 4),
        "decay": st.sampled_from((0.9, 0.5, 0.0)),
    }
    return {"which": which} | draw(st.fixed_dictionaries({**options, "dtype": dtypes}))


def program_of(case: Case) -> RegisterProgram:
    samples, features = len(case["x"]), len(case["x"][0])
    ridge, step = case["ridge"], case["step_size"]
    made: dict[str, Callable[[], RegisterProgram]] = {
        "sgd": lambda: sgd(features, samples, step, ridge=ridge),
        "sherman_morrison": lambda: sherman_morrison(features, samples, ridge),
        "batch_gradient_descent": lambda: batch_gradient_descent(features, samples, step, case["steps"], ridge=ridge),
        "moving_average": lambda: moving_average(samples, case["decay"]),
    }
    return made[case["which"]]()


def check_machine(case: Case) -> None:
    check_register_run(case, program_of(case).compile(dtype_named(case["dtype"])))


def check_register_run(case: Case, machine: Any) -> None:
    """Audit and certificate of a machine's run, at every position."""
    prompt = machine.program.prompt
    run = machine.run(**prompt.fill(*tensors(case, "x", "y")))
    predictions = prompt.predictions(run.result)
    if not predictions.isfinite().all():
        raise Violation(f"predictions that are not finite: {predictions.tolist()}")
    require_certified("audit", predictions, run.audit, lambda: exact_learner(case))
    require_certified("certificate", predictions, run.certificate, lambda: exact_learner(case))


def exact_learner(case: Case) -> list[Any]:
    """ŷ_i for every position, from the examples before it."""
    which, (x, y) = case["which"], stored(case, "x", "y")
    rows, ys = [oracle.balls(row) for row in x], oracle.balls(y)
    step, ridge, decay = (arb(case[name]) for name in ("step_size", "ridge", "decay"))
    if which == "moving_average":
        out = [arb(0)]
        for one in ys[:-1]:
            # The program's own second factor, 1 − decay, is a float.
            out.append(decay * out[-1] + arb(1 - case["decay"]) * one)
        return out
    out, w = [], [arb(0)] * len(rows[0])
    for i, row in enumerate(rows):
        if which == "sherman_morrison" and i:
            gram, moment = oracle.normal_equations(rows[:i], ys[:i], ridge)
            w = [one[0] for one in arb_mat(gram).solve(arb_mat([[one] for one in moment])).tolist()]
        if which == "batch_gradient_descent" and i:
            # Its penalty is λ‖w‖², of gradient 2λw.
            plan = {"step_size": case["step_size"], "l2": 2 * case["ridge"]}
            w = oracle.descended(rows[:i], ys[:i], lambda t: t, plan, case["steps"])
        out.append(dot(w, row))
        if which == "sgd":
            residual = dot(w, row) - ys[i]
            w = [a - step * (b * residual + 2 * ridge * a) for a, b in zip(w, row, strict=True)]
    return out
