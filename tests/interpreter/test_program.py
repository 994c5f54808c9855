"""What a program promises is what its phases add to the state, as often and as far as errors grow."""

from dataclasses import replace

import torch
from by_hand import BOUNDS, phase, program

from emulon.certify import Domain
from emulon.interpreter import Interpreter
from emulon.interpreter.identity_grid import identity_grid
from emulon.interpreter.program import SAMPLED

PENALTY = phase(domain=Domain(3, 3, 1.0, 0.0, 2.0), name="proximal", readout="rest")
PENALTY = replace(PENALTY, proved=replace(BOUNDS, interpolation=1e-4))


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
