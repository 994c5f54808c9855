"""A machine's run is measured against its own instructions, carried out in balls of twice the precision."""

import pytest
import torch
from exact_learners import exact_batch, exact_ridge, exact_sgd
from machine_cases import CASES

from emulon.certify.balls import Ball, FloatBall
from emulon.machine import carry_out
from emulon.machine.carry_out import carried_out, distance
from emulon.machine.programs import batch_gradient_descent, sgd, sherman_morrison

f64, f32 = torch.float64, torch.float32
LEARNERS = {
    "sgd": (lambda: sgd(3, 6, 0.05, ridge=0.1), lambda xs, ys: exact_sgd(xs, ys, 0.05, 0.1)),
    "sherman_morrison": (lambda: sherman_morrison(3, 6, 0.5), lambda xs, ys: exact_ridge(xs, ys, 0.5)),
    "batch": (lambda: batch_gradient_descent(3, 6, 0.1, 4), lambda xs, ys: exact_batch(xs, ys, 0.1, 4)),
}


@pytest.mark.parametrize("kind", [Ball, FloatBall])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_carried_out_is_what_it_must_be(case, kind):
    program, inputs = case.program(), case.draw(3, f64, corners=False)
    held = carried_out(program, inputs, kind)[program.output.name]
    exact = case.exact(**inputs)
    whole = program.output.enclosed(held)
    torch.testing.assert_close(whole.high, exact.reshape(whole.high.shape), rtol=1e-13, atol=1e-13)
    assert whole.radius.max() < (1e-19 if kind is Ball else 1e-11)


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


def test_where_float64_does_not_tell_twice_the_precision_is_asked(monkeypatch):
    machine = LEARNERS["sgd"][0]().compile()
    run = machine.run(**machine.program.prompt.fill(torch.ones(6, 3, dtype=f64), torch.ones(6, dtype=f64)))
    run.result[-1] += 1e-3
    assert distance(machine.program, run.inputs, "guess", run.result).max() >= 1e-3 * (1 - 1e-6)
    monkeypatch.setattr(carry_out, "NOTICED", 0.0)
    assert run.audit.bound == pytest.approx(1e-3, rel=1e-6)
