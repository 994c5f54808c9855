"""What a program promises is what its phases add to the state, as often and as far as errors grow."""

from dataclasses import replace

import pytest
import torch
from by_hand import BOUNDS, phase, program

from emulon.certify import Domain
from emulon.interpreter import Interpreter
from emulon.interpreter.identity_grid import identity_grid
from emulon.interpreter.phase import phase_terms
from emulon.interpreter.program import SAMPLED

PENALTY = phase(domain=Domain(3, 3, 1.0, 0.0, 2.0), name="proximal", readout="rest")
PENALTY = replace(PENALTY, proved=replace(BOUNDS, interpolation=1e-4))


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_promise_is_both_phases_and_what_a_start_ahead_rounds_times_the_growth(accelerated: bool) -> None:
    """Steps of 1/4 keep 0.9 of the state, a penalty all of it; w + β·(w − before), up to 3/2, is rounded four times."""
    made = program(PENALTY, l1=0.1, accelerated=accelerated)
    line, u = identity_grid(made.capacity.reach), 2.0**-53
    first, second = phase_terms(made.gradient, line), phase_terms(PENALTY, line)
    wanted = {name: first[name] + second[name] for name in first}
    wanted["rounding"] += 4 * u / (1 - 4 * u) * 1.5 * accelerated
    found = made.certificate_on(line)
    grown = {name: value * made.plan.certified_growth for name, value in wanted.items()}
    assert made.plan.certified_growth > 2 and found.terms == pytest.approx(grown, rel=1e-12, abs=0.0)
    assert found.bound == pytest.approx(sum(grown.values()), rel=1e-12)


def test_nothing_is_proved_that_any_of_its_parts_does_not_prove() -> None:
    line, good = identity_grid(200.0), program(PENALTY, l1=0.1, curvature_reach=1e3)
    assert good.certificate_on(line).proved
    unproved = [replace(each, proved=replace(each.proved, proved=False)) for each in good.phases]
    for changed in (
        replace(good, gradient=unproved[0]),
        replace(good, proximal=unproved[1]),
        good.changed(curvature_reach=0.0),
    ):
        found = changed.certificate_on(line)
        assert not found.proved and found.note == SAMPLED


def test_called_a_program_runs_on_the_smallest_interpreter_that_fits() -> None:
    made, x = program(steps=2), torch.linspace(-0.1, 0.1, 15, dtype=torch.float64).reshape(5, 3)
    run = made(x, x[:, 0], "reference")
    assert run.interpreter.capacity.tokens == made.capacity.tokens == 15 and run.weights.abs().max() > 0
    torch.testing.assert_close(run.weights, Interpreter.fitting(made).run(made, x, x[:, 0]).weights, rtol=0, atol=1e-12)
