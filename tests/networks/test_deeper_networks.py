"""Normalisations, convolutions, attention, residual sums and whole learners by prompt."""

import copy
from dataclasses import replace

import pytest
import torch
from small_networks import one_norm, random, small_encoder, two_norms
from torch import nn

from emulon import compile_network
from emulon.certify.interpolation import Interpolation, holds
from emulon.core.errors import BadNetwork, OutOfDomain
from emulon.expressions import parse
from emulon.interpreter.identity_grid import identity_grid
from emulon.models import AlgoFormer, Looped
from emulon.networks import Expression, Heads, NetworkProgram, NetworkRun, heads_of
from emulon.networks.builder import lower
from emulon.networks.layers import states
from emulon.networks.products import Norm
from emulon.networks.softmaxes import UNITS, softmax_for


def ran(network: nn.Module, x: torch.Tensor, **options) -> tuple[NetworkProgram, NetworkRun]:
    """Compiled on x and run on it; close to PyTorch, and within its audit."""
    program = compile_network(network, data=x, **options)
    run = program(x)
    with torch.no_grad():
        wanted = copy.deepcopy(network).double()(x.double())
    error = (run.outputs - wanted).abs().max().item()
    assert run.outputs.shape == wanted.shape and error <= 1e-9 and error <= run.audit.bound + 1e-13
    return program, run


class Mixed(nn.Module):
    """A forward of its own: a residual sum, a product, a scale, a shift, a part used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer, self.sine = nn.Linear(3, 3), nn.Linear(3, 2), Expression("sin(t)")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x + torch.tanh(self.inner(x))
        return self.sine(self.outer(hidden * self.inner(hidden) / 2 - 0.5))


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_forward_of_ones_own_is_followed():
    torch.manual_seed(0)
    ran(Mixed(), random(10, 3))


@pytest.mark.parametrize(("network", "message"), [(Branching(), "cannot be followed"), (nn.GRU(3, 3), "a GRU")])
def test_what_cannot_be_followed_is_refused(network, message):
    with pytest.raises(BadNetwork, match=message):
        compile_network(network, 1.0, shape=(3,))


def test_images_are_convolved_pooled_and_normalised():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(2, 3, 2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 2))
    network(torch.randn(8, 1, 4, 4))  # statistics for the norm
    program, run = ran(network.eval(), random(5, 1, 4, 4))
    assert program.out_shape == (2,) and run.certificate.bound < 1e-7


def test_norms_hold_over_long_ranges_of_the_variance(warm):
    norms = [phase for phase in ran(*two_norms())[0].phases if isinstance(phase.layer, Norm)]
    fine = [norm.phases[2].phases[3].ranges.inputs.ends for norm in norms]
    assert len(norms) == 2 and all(hi <= 16 * lo for lo, hi in fine)


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
        s = torch.linspace(lo, hi, 50, dtype=torch.float64)
        found = root.grid.numbers.weights(s.numpy()) @ root.grid.numbers.values
        assert root.grid.lo <= lo and hi <= root.grid.hi
        assert abs(found * s.sqrt().numpy() - 1).max() < 1e-12


def test_a_norm_is_refused_where_intervals_reach_a_constant_row():
    with pytest.raises(OutOfDomain, match="give data"):
        compile_network(nn.LayerNorm(4), 1.0, shape=(4,))


@pytest.fixture(scope="module")
def encoder(warm) -> tuple[nn.Module, torch.Tensor, NetworkProgram]:
    return small_encoder(), random(6, 3, 4), ran(small_encoder(), random(6, 3, 4))[0]


def test_an_encoder_layer_runs_faithfully_too(encoder):
    network, x, program = encoder
    faithful = program(x[:1], mode="reference").outputs
    assert (faithful - network(x[:1]).detach()).abs().max() <= 1e-9


def test_certificates_hold_through_norms_and_say_so_where_they_cannot(encoder):
    network, x, program = encoder
    run = program(x)
    assert 0 < run.certificate.verify(run.outputs, network(x).detach()) < run.certificate.bound < 1e-3
    norms = [number for number, layer in enumerate(program.layers, start=1) if isinstance(layer, Norm)]
    assert len(norms) == 2
    # An input that is off by 1 tells nothing of 1/√v, and yet a norm's answers are at most √width = 2 in size.
    found = program.errors(identity_grid(program.capacity.reach), 1.0)
    for last in norms:
        most = 2.001 + program.phases[last - 1].ranges.output.size
        assert (found[last].bound.each <= most).all() and not found[last].known.any()


def test_no_sample_of_a_norm_is_farther_apart_than_its_errors_travel(warm):
    (network, x), before = one_norm(), 1e-6
    program = compile_network(network, data=x)
    found = program.errors(identity_grid(program.capacity.reach), before)[-1].bound.each[-1]
    torch.manual_seed(0)
    moved = x + before * (2 * torch.rand(200, 40, 6, dtype=torch.float64) - 1).sign()
    seen = (program.exact(moved) - program.exact(x)).abs().flatten(0, 1).amax(dim=0)
    assert (seen <= found).all() and (found <= 40 * seen.max()).all()


def test_an_encoder_layer_attends_between_positions_only(encoder):
    _, x, program = encoder
    alone, together = program(x[:1]).outputs, program(x).outputs[:1]
    assert (alone - together).abs().max() <= 1e-12
    shorter = program(x[:, :2]).outputs
    assert shorter.shape == (6, 2, 4) and (shorter - program.exact(x[:, :2])).abs().max() <= 1e-9


def test_an_encoder_in_training_mode_is_refused():
    with pytest.raises(BadNetwork, match="training mode with dropout"):
        compile_network(nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), data=random(2, 3, 4))


def test_a_mask_hides_what_lies_ahead_on_both_paths():
    torch.manual_seed(0)
    network = Heads(*(torch.randn(2, 3, 4, dtype=torch.float64) / 2 for _ in range(3)), causal=True)
    x = random(5, 4, 4)
    program, _ = ran(network, x)
    for mode in ("fast", "reference"):
        first, whole = (program(part, mode=mode).outputs for part in (x[:, :2], x))
        assert (first - whole[:, :2]).abs().max() <= 1e-13


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
