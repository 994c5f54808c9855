"""A network whose weights stand in the prompt gives what it gives in PyTorch, on the module that runs algorithms."""

import math
from dataclasses import replace

import pytest
import torch
from small_networks import ACTIVATIONS, perceptron
from torch import nn

from emulon import Interpreter, compile_network
from emulon.core.errors import NotCertified
from emulon.networks import Box, classes_of
from emulon.networks.elementwise import FunctionPhase, Gate, GatePhase
from emulon.networks.layers import ValueRanges, states


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_interpreter_runs_every_network_and_its_promises_hold(name, cases, interpreter):
    case = cases[name]
    run = interpreter.run(case.program, case.x)
    error = (run.outputs - case.wanted).abs().max().item()
    # PyTorch rounds, too.
    assert error <= 1e-9 and error <= run.audit.bound + 1e-14
    assert run.audit.bound <= run.certificate.bound <= 1e-6
    assert run.sha256 == (interpreter.sha256, interpreter.sha256)


def test_the_same_interpreter_runs_algorithms(algorithms, regression, interpreter):
    before = interpreter.sha256
    for program in algorithms:
        run = interpreter.run(program, *regression)
        assert run.sha256 == (before, before) and run.audit.bound < 1e-4


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu"])
def test_the_faithful_path_gives_what_the_fast_one_gives(name, cases):
    case = cases[name]
    own, x = Interpreter.fitting(case.program), case.x[:2]
    fast, faithful = (own.run(case.program, x, mode=mode).outputs for mode in ("fast", "reference"))
    assert (fast - faithful).abs().max() <= 1e-12


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_domain_gives_ranges_by_interval_arithmetic(name):
    network, x = perceptron(ACTIVATIONS[name]), 6 * torch.rand(200, 5, dtype=torch.float64) - 3
    box = Box(torch.full((5,), -3.0, dtype=torch.float64), torch.full((5,), 3.0, dtype=torch.float64))
    program = compile_network(network, box, tolerance=1e-9)
    run = Interpreter.fitting(program).run(program, x)
    assert run.certificate.verify(run.outputs, network(x).detach()) < 1e-9
    assert len(run.certificate.assumes) == 1 and run.certificate.proved
    for register, phase in zip(states(program.layers, run.inputs), program.phases, strict=True):
        assert (register >= phase.ranges.output.lo).all() and (register <= phase.ranges.output.hi).all()


def test_a_certificate_has_a_term_for_every_layer_and_what_follows_multiplies_it(cases):
    program = cases["relu"].program
    terms = program.certificate.terms
    assert list(terms) == [layer.name for layer in program.layers] and min(terms.values()) > 0
    last = program.phases[-1]
    doubled = replace(last, layer=replace(last.layer, weight=2 * last.layer.weight))
    wider = replace(program, phases=(*program.phases[:-1], doubled)).certificate.terms
    for name in list(terms)[:-1]:
        assert wider[name] == pytest.approx(2 * terms[name], rel=1e-6, abs=0.0)


def test_an_audit_sees_what_is_wrong(cases, interpreter):
    run = interpreter.run(cases["gelu"].program, cases["gelu"].x[:8])
    first = interpreter.run(run.program, cases["gelu"].x[:1])
    assert run.statistics()[-1].distance == pytest.approx(first.audit.bound, rel=1e-3, abs=0.0)
    spoilt = run.register.clone()
    spoilt[3, 0, 1] += 1e-5
    bound = replace(run, register=spoilt).audit.bound
    assert 0.99e-5 < bound < 1.01e-5
    with pytest.raises(NotCertified):
        run.audit.verify(spoilt, run.register)


def test_a_program_runs_on_one_interpreter_after_another(cases, interpreter):
    program, x = cases["relu"].program, cases["relu"].x
    for machine in (interpreter, Interpreter.fitting(program), interpreter):
        run = machine.run(program, x)
        assert run.certificate == program.certificate_on(machine.identity) and run.audit.bound < 1e-9


def test_a_gate_errs_near_its_kink_as_much_as_it_says():
    program = compile_network(nn.Sequential(nn.ReLU()), 4.0, tolerance=1e-6, shape=(1,))
    gate = program.phases[0]
    near = torch.linspace(0, 8, 400, dtype=torch.float64) / gate.sharpness
    x = torch.cat([-near, near, torch.linspace(-4, 4, 101, dtype=torch.float64)]).unsqueeze(-1)
    run = Interpreter.fitting(program).run(program, x)
    error = run.certificate.verify(run.outputs, x.clamp(min=0))
    assert 0.9 * run.certificate.bound < error <= 1e-6


def test_silu_is_exact_and_gelu_a_grid(cases):
    silu, gelu = (cases[name].program.phases[1] for name in ("silu", "gelu"))
    assert isinstance(silu, GatePhase) and silu.sharpness == 1.0
    assert isinstance(gelu, FunctionPhase)


def test_logits_name_classes():
    assert classes_of(torch.tensor([[0.1], [-0.1]])).tolist() == [1, 0]
    assert classes_of(torch.tensor([[0.1, 0.3, 0.2]])).tolist() == [1]


# The power of two in the key is 1, 2 or more: e^{−8·key}·size·sharpness is above 0.2785 or below.
DECIDED = [(0.5, 16.0), (3.0, 2.0**12), (1e4, 2.0**26), (820.0, 1.0), (1.2e6, 2.0)]
UNDECIDED = [(840.0, 1.0), (1.3e6, 2.0)]


@pytest.mark.parametrize(("size", "sharpness"), DECIDED + UNDECIDED)
def test_a_gate_read_from_nearer_stays_within_its_bound(size, sharpness):
    """Fast, queries end where the losing token's share, at twice the worst relative error, is below the gate's own."""
    box = Box(*(torch.full((9,), end, dtype=torch.float64) for end in (-size, size)))
    layer = Gate(name="0 relu", reads=(0,), low=0.25, kinked=True)
    phase = GatePhase(layer, ValueRanges(box, box.widened(0.1)), sharpness)
    assert phase.farthest == (16.0 if (size, sharpness) in DECIDED else math.inf)
    x = torch.linspace(-size, size, 9, dtype=torch.float64).reshape(1, 1, 9)
    interpreter = Interpreter(phase.capacity)
    off = (phase.fast(interpreter, x) - torch.maximum(x, 0.25 * x)).abs().max().item()
    assert off <= phase.own_error(interpreter.identity)
    silu = replace(phase, layer=replace(layer, low=0.0, kinked=False), sharpness=1.0)
    assert silu.farthest == math.inf
