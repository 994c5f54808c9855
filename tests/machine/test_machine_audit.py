"""A machine's run is measured against its own instructions, evaluated in balls of twice the precision."""

import pytest
import torch
from exact_learners import LEARNERS
from machine_cases import CASES
from oracle import expected

from emulon.certify.balls import Ball, FloatBall
from emulon.machine.evaluate import evaluate
from emulon.machine.programs import batch_gradient_descent

f64, f32 = torch.float64, torch.float32


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_is_evaluated_as_the_oracle_does(case):
    program, inputs = case.program(), case.draw(4)
    exact = expected(program, inputs, program.output.name)
    for kind, widest in ((Ball, 1e-19), (FloatBall, 1e-11)):
        whole = program.output.enclosed(evaluate(program, inputs, kind)[program.output.name])
        torch.testing.assert_close(whole.high, exact, rtol=1e-13, atol=1e-13)
        assert whole.radius.max() < widest


@pytest.mark.parametrize("dtype", [f64, f32])
@pytest.mark.parametrize("name", LEARNERS)
def test_an_audit_holds_and_says_something_where_the_promise_does_not(name, dtype):
    make, exact = LEARNERS[name]
    machine = make().compile(dtype)
    draw = torch.Generator().manual_seed(0)
    xs = torch.randn(4, 6, 3, dtype=f64, generator=draw).clamp(-2, 2).to(dtype)
    ys = torch.randn(4, 6, dtype=f64, generator=draw).clamp(-2, 2).to(dtype)
    run = machine.run(**machine.program.prompt.fill(xs, ys))
    seen = machine.program.prompt.predictions(run.result).double()
    error = run.audit.verify(seen, exact(xs.double(), ys.double()))
    assert run.audit.scope == "run" and error <= run.audit.bound < min(1e-2, run.certificate.bound)
    # The whole register is bounded, at every token: the predictions stand at every other one.
    assert run.audit.bound < 100 * error


def test_a_single_example_has_no_past_and_is_audited():
    machine = batch_gradient_descent(2, 1, 0.1, 2).compile()
    run = machine.run(**machine.program.prompt.fill(torch.ones(1, 2, dtype=f64), torch.ones(1, dtype=f64)))
    assert run.audit.bound < 1e-9


def test_a_wrong_result_is_noticed(monkeypatch):
    machine = LEARNERS["sgd"][0]().compile()
    inputs = machine.program.prompt.fill(torch.ones(6, 3, dtype=f64), torch.ones(6, dtype=f64))
    for noticed in (0.5, 0.0):  # at 0 the balls of twice the precision are asked
        monkeypatch.setattr("emulon.machine.evaluate.NOTICED", noticed)
        run = machine.run(**inputs)
        run.result[-1] += 1e-3
        assert run.audit.bound == pytest.approx(1e-3, rel=1e-6)
