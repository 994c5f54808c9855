"""A network whose weights stand in the prompt gives what it gives in PyTorch, on the module that runs algorithms."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from small_networks import ACTIVATIONS, perceptron, random, small_encoder, two_norms
from torch import nn

from emulon import Interpreter, compile_network
from emulon.certify.interpolation import Interpolation, holds
from emulon.core.errors import BadShape, EmulonError, NotCertified, OutOfDomain
from emulon.expressions import parse
from emulon.models import AlgoFormer, Looped
from emulon.networks import Box, Expression, Heads, heads_of
from emulon.networks.builder import lower
from emulon.networks.elementwise import Gate, GatePhase
from emulon.networks.layers import ValueRanges, states
from emulon.networks.softmaxes import UNITS, softmax_for

f64 = torch.float64


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_interpreter_runs_every_network_and_its_promises_hold(name, cases, interpreter):
    case = cases[name]
    run = interpreter.run(case.program, case.x)
    error = (run.outputs - case.wanted).abs().max().item()
    # PyTorch rounds, too.
    assert error <= 1e-9 and error <= run.audit.bound + 1e-14
    assert run.audit.bound <= run.certificate.bound <= 1e-6
    assert run.sha256 == (interpreter.sha256, interpreter.sha256)
    own, x = Interpreter.fitting(case.program), case.x[:2]
    fast, reference = (own.run(case.program, x, mode=mode) for mode in ("fast", "reference"))
    assert (fast.outputs - reference.outputs).abs().max() <= 1e-12
    # On one interpreter after another a certificate is the current one's.
    assert run.certificate == case.program.certificate_on(interpreter.identity)
    assert fast.certificate == case.program.certificate_on(own.identity)


def test_the_same_interpreter_runs_algorithms(algorithms, regression, interpreter):
    before = interpreter.sha256
    for program in algorithms:
        run = interpreter.run(program, *regression)
        assert run.sha256 == (before, before) and run.audit.bound < 1e-4


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_a_domain_gives_ranges_by_interval_arithmetic(name):
    network, x = perceptron(ACTIVATIONS[name]), 6 * torch.rand(200, 5, dtype=f64) - 3
    program = compile_network(network, Box(*(torch.full((5,), end, dtype=f64) for end in (-3.0, 3.0))))
    run = Interpreter.fitting(program).run(program, x)
    assert run.certificate.verify(run.outputs, network(x).detach()) < 1e-9
    assert len(run.certificate.assumes) == 1 and run.certificate.proved
    for register, phase in zip(states(program.layers, run.inputs), program.phases, strict=True):
        assert (register >= phase.ranges.output.lo).all() and (register <= phase.ranges.output.hi).all()


def test_an_audit_sees_what_is_wrong(cases, interpreter):
    run = interpreter.run(cases["gelu"].program, cases["gelu"].x[:8])
    first = interpreter.run(run.program, cases["gelu"].x[:1])
    assert run.statistics()[-1].distance == pytest.approx(first.audit.bound, rel=1e-3, abs=0.0)
    spoilt = run.register.clone()
    spoilt[3, 0, 1] += 1e-5
    assert 0.99e-5 < replace(run, register=spoilt).audit.bound < 1.01e-5
    with pytest.raises(NotCertified):
        run.audit.verify(spoilt, run.register)


def test_a_gate_errs_near_its_kink_as_much_as_it_says():
    program = compile_network(nn.Sequential(nn.ReLU()), 4.0, tolerance=1e-6, shape=(1,))
    near = torch.linspace(0, 8, 400, dtype=f64) / program.phases[0].sharpness
    x = torch.cat([-near, near, torch.linspace(-4, 4, 101, dtype=f64)]).unsqueeze(-1)
    run = Interpreter.fitting(program).run(program, x)
    error = run.certificate.verify(run.outputs, x.clamp(min=0))
    assert 0.9 * run.certificate.bound < error <= 1e-6


# The power of two in the key is 1, 2 or more: e^{−8·key}·size·sharpness is above 0.2785 or below.
DECIDED = [(0.5, 16.0), (3.0, 2.0**12), (1e4, 2.0**26), (820.0, 1.0), (1.2e6, 2.0)]
UNDECIDED = [(840.0, 1.0), (1.3e6, 2.0)]


@pytest.mark.parametrize(("size", "sharpness"), DECIDED + UNDECIDED)
def test_a_gate_read_from_nearer_stays_within_its_bound(size, sharpness):
    """Fast, queries end where the losing token's share, at twice the worst relative error, is below the gate's own."""
    box = Box(*(torch.full((9,), end, dtype=f64) for end in (-size, size)))
    layer = Gate(name="0 relu", reads=(0,), low=0.25, kinked=True)
    phase = GatePhase(layer, ValueRanges(box, box.widened(0.1)), sharpness)
    assert phase.farthest == (16.0 if (size, sharpness) in DECIDED else math.inf)
    x = torch.linspace(-size, size, 9, dtype=f64).reshape(1, 1, 9)
    interpreter = Interpreter(phase.capacity)
    off = (phase.fast(interpreter, x) - torch.maximum(x, 0.25 * x)).abs().max().item()
    assert off <= phase.own_error(interpreter.identity)
    silu = replace(phase, layer=replace(layer, low=0.0, kinked=False), sharpness=1.0)
    assert silu.farthest == math.inf


# Deeper networks


class Mixed(nn.Module):
    """A forward of its own: a residual sum, a product, a scale, a shift, a part used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.sine = nn.Linear(3, 3), nn.Linear(3, 2), Expression("sin(t)")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + torch.tanh(self.inner(x))
        return self.sine(self.outer(hidden * self.inner(hidden) / 2 - 0.5))


def images() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 3, 2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 2))
    network(torch.randn(8, 1, 4, 4))  # statistics for the norm
    return network.eval(), random(5, 1, 4, 4)


DEEPER = {
    "a forward of its own": (lambda: (Mixed(), random(10, 3)), 1e-9),
    "images": (images, 1e-7),
    "an encoder": (lambda: (small_encoder(), random(6, 3, 4)), 1e-3),
    "a mask": (lambda: (Heads(*(random(3, 2, 3, 4) / 2).unbind(), causal=True), random(5, 4, 4)), 1e-8),
    "two norms": (two_norms, 1.0),
}


@pytest.mark.parametrize("name", DEEPER)
def test_a_deeper_network_is_within_its_audit_and_its_certificate(name, warm):
    torch.manual_seed(0)
    make, certified = DEEPER[name]
    network, x = make()
    program = compile_network(network, data=x)
    run = program(x)
    with torch.no_grad():
        wanted = copy.deepcopy(network).double()(x.double())
    error = (run.outputs - wanted).abs().max().item()
    assert run.outputs.shape == wanted.shape and error <= 1e-9 and error <= run.audit.bound + 1e-13
    assert run.audit.bound <= run.certificate.bound < certified
    alone, faithful = program(x[:1]).outputs, program(x[:1], mode="reference").outputs
    assert (alone - run.outputs[:1]).abs().max() <= 1e-12 and (faithful - alone).abs().max() <= 1e-9
    if program.is_sequence:  # and of fewer positions
        shorter = program(x[:, :2])
        assert (shorter.outputs - program.exact(x[:, :2])).abs().max() <= 1e-9
        hidden = (shorter.outputs - run.outputs[:, :2]).abs().max() <= 1e-13
        assert hidden == (name == "a mask")


@pytest.mark.parametrize("unit", UNITS)
def test_what_comes_with_the_package_is_proved_again(unit):
    softmax = softmax_for(*unit)
    claimed = Interpolation(softmax.interpolation, 0.0, softmax.deviation, softmax.size)
    assert holds(softmax.grid.numbers, parse(softmax.f), *unit[1:3], claimed)
    lower = replace(claimed, error=softmax.interpolation / 8)
    assert not holds(softmax.grid.numbers, parse(softmax.f), *unit[1:3], lower)


def test_squares_and_roots_of_all_magnitudes_are_one_softmax_each():
    one, other = softmax_for("t**2", -3.0, 4.0, 1e-9), softmax_for("t**2", -60.0, 1.0, 1e-9)
    assert torch.equal(one.grid.slopes, 16 * other.grid.slopes) and other.interpolation == 256 * one.interpolation
    for lo, hi in ((0.3, 1.2), (5.0, 19.9), (1e-4, 3e-4)):
        root = softmax_for("1/sqrt(t)", lo, hi, 1e-9)
        s = torch.linspace(lo, hi, 50, dtype=f64)
        found = root.grid.numbers.weights(s.numpy()) @ root.grid.numbers.values
        assert root.grid.lo <= lo and hi <= root.grid.hi
        assert abs(found * s.sqrt().numpy() - 1).max() < 1e-12


def test_one_head_of_a_random_gpt2():
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(n_embd=8, n_head=2, n_layer=1)).eval()
    attention = model.h[0].attn
    with torch.no_grad():
        attention.c_proj.weight.copy_(torch.eye(8))
        seen: list[torch.Tensor] = []
        attention.register_forward_hook(
            lambda _, given, options, out: seen.extend([*given, *options.values(), out[0]]), with_kwargs=True
        )
        model.double()(inputs_embeds=random(3, 4, 8))
        x, wanted = seen[0], seen[-1][..., 4:]
    run = compile_network(heads_of(attention, [1]), data=x)(x)
    assert (run.outputs - wanted).abs().max() <= 1e-9 and run.certificate.bound < 1e-8


@pytest.mark.parametrize("kind", [Looped, AlgoFormer])
def test_a_looped_learner_is_written_in_layers(kind):
    torch.manual_seed(0)
    learner = kind(3, 1, 7, width=4, heads=2, layers=1, init=0.5, loops=2, window=1).double()
    x = random(2, 7, 3)
    *_, last = states(lower(learner, (7, 3)).layers, x)
    assert (last - learner(x).detach()).abs().max() <= 1e-12


# Other weights, by changing the prompt


def test_a_low_rank_update_in_the_prompt_is_the_one_in_pytorch(cases, interpreter):
    case, before = cases["tanh"], interpreter.sha256
    left, right = (random(size, 2) / 8 for size in (6, 7))
    other = copy.deepcopy(case.network)
    with torch.no_grad():
        other[2].weight += left @ right.T
        wanted = other(case.x)
    run = interpreter.run(case.program.with_weights("2", weight=other[2].weight), case.x)
    assert (run.outputs - wanted).abs().max() <= 1e-9 and run.audit.bound <= 1e-9
    assert (wanted - case.wanted).abs().max() > 1e-2 and run.sha256 == (before, before)
    assert torch.equal(case.program.layers[2].weight, case.network[2].weight)


def test_two_heads_are_exchanged_by_prompt():
    one, other = (random(2, 3, 1, 2, 3) / 2).unbind()
    x = random(4, 3, 3)
    program = compile_network(Heads(*one), data=torch.cat([x, 1.5 * x]))
    switched = program.with_weights("0 attention", **dict(zip(("w_q", "w_k", "w_v"), other, strict=True)), data=x)
    assert (switched(x).outputs - Heads(*other)(x)).abs().max() <= 1e-9
    assert (program(x).outputs - Heads(*one)(x)).abs().max() <= 1e-9


def test_an_edit_that_leaves_the_ranges_is_refused_by_the_run_or_given_data(cases):
    case = cases["tanh"]
    weight = 10 * case.program.layers[0].weight
    with pytest.raises(OutOfDomain, match="0 0 linear"):
        case.program.with_weights("0", weight=weight)(case.x)
    assert case.program.with_weights("0", weight=weight, data=case.x)(case.x).audit.bound < 1e-9


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"layer": "9", "weight": torch.zeros(7, 5)}, EmulonError, "no layer of Sequential at '9' with weight"),
        ({"layer": "0", "weight": torch.zeros(2, 2)}, BadShape, r"has shape \(7, 5\), and is given \(2, 2\)"),
        ({"layer": "0", "weight": torch.full((7, 5), torch.nan)}, OutOfDomain, "contains NaN"),
        ({"layer": "0"}, EmulonError, "no layer"),
    ],
)
def test_a_bad_edit_is_refused(cases, arguments, error, message):
    with pytest.raises(error, match=message):
        cases["tanh"].program.with_weights(**arguments)


def test_a_program_stays_as_it_was_when_its_module_is_trained_further():
    network, x = nn.Linear(2, 2).double(), torch.ones(1, 2, dtype=f64)
    program = compile_network(network, 1.0)
    before = program(x).outputs
    network.weight.data.mul_(2)
    network.bias.data.add_(1)
    assert torch.equal(program(x).outputs, before)
