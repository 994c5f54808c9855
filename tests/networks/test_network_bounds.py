"""What every layer adds to the error, and what it makes of errors before it: each bound against a second computation.

`bounds` has all of them again, scalar by scalar; `judge` has the exact networks, in Arb.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import bounds
import judge
import pytest
import random_networks
import torch
from bounds import LIFT, Error, Registers
from small_networks import learner, one_norm, random, small_encoder, trained_norm, two_norms
from torch import Tensor, nn

from emulon import compile_network
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import identity_grid
from emulon.networks import Heads, NetworkProgram
from emulon.networks.arithmetic import BALLS
from emulon.networks.attention import Attention, AttentionPhase
from emulon.networks.compiler import compile_iteration
from emulon.networks.elementwise import Function, FunctionPhase, Gate, GatePhase
from emulon.networks.layers import AttentionRanges, Box, ErrorBound, ValueRanges, evaluated, require_in_range
from emulon.networks.maps import Constant, Linear, LinearPhase, Product, ReciprocalRoot, affine_interval
from emulon.networks.planning import SPARE, VOID, with_ranges
from emulon.networks.program import distance_by_arb
from emulon.networks.softmaxes import softmax_for

f64 = torch.float64


def numbers(*parts) -> Tensor:
    return torch.tensor(parts, dtype=f64)


def about(value: float | list[float], rel: float = 1e-12):
    return pytest.approx(value, rel=rel, abs=0.0)


def activations() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    parts = [nn.LeakyReLU(0.25), nn.SiLU(), nn.Tanh(), nn.LeakyReLU(-2.0), nn.ReLU()]
    made = [part for function in parts for part in (nn.Linear(3, 3), function)]
    return nn.Sequential(*made, nn.Linear(3, 2)).double(), random(12, 3)


def product() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    times = random_networks.Times(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.1)))
    norm = nn.LayerNorm(3, eps=1e-2)
    norm.weight.data, norm.bias.data = torch.tensor([2.0, -0.3, 0.7]), torch.tensor([0.1, -1.0, 0.5])
    return nn.Sequential(norm, times, nn.Linear(3, 2)).double(), random(12, 3)


def heads(causal: bool, scale: float, by: float = 1.0) -> tuple[nn.Module, Tensor]:
    parts = [by * part for part in random(6, 2, 2, 3).unbind()]
    biases = [part[..., 0] for part in parts[3:]]
    return Heads(*parts[:3], *biases, causal=causal, scale=scale), random(6, 3, 3)


class Shortened(nn.Module):
    """x/√(1 + x²), feature by feature."""

    def forward(self, x: Tensor) -> Tensor:
        return x / (1 + x.square()).sqrt()

    def lower_into(self, builder, place: str) -> None:
        x, one = builder.at, torch.eye(builder.features, dtype=f64)
        builder.square(place)
        builder.linear(place, "plus one", one, one.sum(dim=0))
        builder.product(place, x, builder.root(place))


def shortened() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 3), Shortened(), nn.Linear(3, 2)).double(), random(20, 3)


NETWORKS = {
    "trained statistics": trained_norm,
    "activations": activations,
    "products": product,
    "a norm over a long range": two_norms,
    "one norm": one_norm,
    "an encoder": lambda: (small_encoder(), random(6, 3, 4)),
    "heads": lambda: heads(False, 1.0),
    "masked heads, scaled": lambda: heads(True, 3.0),
    "small masked heads": lambda: heads(True, 4.0, 2.0**-5),
    "positions": learner,
    "roots of several numbers": shortened,
}


@pytest.fixture(scope="module")
def programs(warm) -> dict[str, NetworkProgram]:
    made = {name: make() for name, make in NETWORKS.items()}
    return {name: compile_network(module, data=x) for name, (module, x) in made.items()}


def simple(phases):
    for phase in phases:
        yield from simple(phase.phases) if phase.phases else [phase]


@pytest.mark.parametrize("dtype", [f64, torch.float32], ids=["a fine line", "a coarse line"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_a_phase_adds_is_what_its_docstring_says(name, dtype, programs) -> None:
    """On a coarse line products of two errors count, too."""
    line = identity_grid(max(2048.0, programs[name].capacity.reach), dtype)
    for phase in simple(programs[name].phases):
        # Balls around the exact weights have radii of their own.
        rel = 1e-11 if getattr(phase.layer, "unrounded", None) is None else 1e-9
        assert phase.own_error(line) == about(bounds.own(phase, line), rel), phase.layer.name


@pytest.mark.parametrize("before", [0.0, 1e-9, 1.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_errors_propagate_as_the_docstrings_say(name, before, programs) -> None:
    program = programs[name]
    line = identity_grid(program.capacity.reach)
    given = Error([before] * len(program.box.lo))
    limit = VOID["data"] * (program.box.hi - program.box.lo).min().item()
    again, found = Registers(line, VOID["data"]), program.errors(line, before)
    wanted = again.forward(program.phases, [(given, before <= limit)])
    for phase, register, (error, known) in zip(program.phases, found[1:], wanted[1:], strict=True):
        assert register.bound.each[-1].tolist() == about(error.each, rel=1e-9), phase.layer.name
        assert register.bound.length[-1].item() == about(error.length, rel=1e-9), phase.layer.name
        assert register.known[-1].item() == known


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_an_attention_propagates_the_smaller_of_both_bounds(scale, programs) -> None:
    """Number by number, and by lengths where these are shorter."""
    phase = programs["masked heads, scaled"].phases[0]
    each = 1e-3 * (1 + torch.arange(3, dtype=f64))
    found = phase.layer.propagated([ErrorBound(each.unsqueeze(0), numbers(1e-2 * scale))], phase.ranges)
    again = Registers.attention(phase.layer, phase.ranges.attention, each.tolist(), 1e-2 * scale * LIFT)
    assert (found.each[0].tolist(), found.length.item()) == (about(again.each), about(again.length))


def test_a_tolerance_is_shared_by_functions_and_divided_by_what_follows_them() -> None:
    """Two gates, the first times 8: sharpnesses are powers of two above 0.2785·2·8/1e-3 and 0.2785·2/1e-3."""
    network = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU()).double()
    for part, weight in ((network[0], 1.0), (network[2], 8.0)):
        part.weight.data, part.bias.data = numbers([weight]), numbers(0.0)
    program = compile_network(network, 1.0, tolerance=1e-3)
    assert [phase.sharpness for phase in program.phases if isinstance(phase, GatePhase)] == [2.0**13, 2.0**10]


@pytest.mark.parametrize("size", [0.01, 4.0, 100.0])
@pytest.mark.parametrize("sharpness, kinked", [(1.0, False), (1.0, True), (2.0**20, True)])
def test_a_gate_of_any_size_and_sharpness_errs_as_its_docstring_says(size, sharpness, kinked) -> None:
    layer = Gate(name="gate", reads=(0,), low=0.25 if kinked else 0.0, kinked=kinked)
    box = Box(numbers(-size), numbers(size))
    phase, line = GatePhase(layer, ValueRanges(box, box), sharpness), identity_grid(2.0**14)
    assert phase.own_error(line) == about(bounds.own_gate(phase, line), rel=1e-11)


@pytest.mark.parametrize(
    "slopes, intercepts, values", [(0, 0, 0), (13, 0, 0), (14, 0, 0), (0, 20, 0), (0, 21, 0), (0, 0, -20), (-20, 0, 9)]
)
def test_a_function_by_prompt_is_off_by_its_grid_its_scores_and_its_values(slopes, intercepts, values) -> None:
    """Powers of two on the numbers of a grid make each part of the bound the largest in turn."""
    made = softmax_for("t**2", -3.0, 4.0, 1e-9)
    scaled = {"slopes": slopes, "intercepts": intercepts, "values": values}
    grid = replace(made.grid, **{name: getattr(made.grid, name) * 2.0**power for name, power in scaled.items()})
    layer, box = Function(name="square", reads=(0,), expression="t**2"), Box(numbers(-3.0), numbers(4.0))
    phase = FunctionPhase(layer, ValueRanges(box, box), replace(made, grid=grid))
    line = identity_grid(phase.softmax.reach)
    assert phase.own_error(line) == about(bounds.own_function(phase, line), rel=1e-11)


# The exact network, in three arithmetics


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in ("positions", "roots of several numbers")])
def test_enclosures_hold_the_exact_network(name, programs) -> None:
    """Balls and Arb against the judge; what a spoilt answer is off by, to the last digits."""
    (module, x), program = NETWORKS[name](), programs[name]
    inputs, _ = program.prepared(x[:2])
    ball, plain = evaluated(program.layers, inputs, BALLS)[-1], program.exact(x[:2])
    error = judge.error(module, x[:2], plain)
    away, radius = ball.distance_from(plain.reshape(ball.high.shape)).max().item(), ball.radius.max().item()
    assert error < 1e-12 and radius < 1e-18 and error - 1e-24 <= away <= error + 2 * radius
    spoilt = plain.reshape(ball.high.shape).clone()
    spoilt[1].view(-1)[-1] += 0.5
    wanted = judge.error(module, x[:2], spoilt.reshape(plain.shape))
    assert distance_by_arb(program.layers, inputs, spoilt) == about(wanted)


def test_scores_beyond_what_exp_holds_are_enclosed() -> None:
    module, x = heads(True, 1.0)
    sharp = Heads(400 * module.w_q, module.w_k, module.w_v, module.b_q, module.b_k, module.b_v, causal=True)
    layer = Attention(name="sharp", reads=(0,), causal=True, **dict(sharp.named_buffers()))
    ball = layer.evaluate(BALLS.of(x[:2]), BALLS)
    assert ball.distance_from(sharp(x[:2])).max().item() == about(judge.error(sharp, x[:2], sharp(x[:2])), rel=1e-2)


def test_a_network_in_arb_is_applied_to_its_own_answers_as_often_as_asked() -> None:
    """x ← (x₁/2 + x₂ + ¼, 3 − x₂), twice, without any rounding: (1, 2) → (11/4, 1) → (21/8, 2)."""
    step = Linear(name="step", reads=(0,), weight=numbers([0.5, 1.0], [0.0, -1.0]), bias=numbers(0.25, 3.0))
    x, twice = numbers([[1.0, 2.0], [0.0, -1.0]]), numbers([[2.625, 2.0], [3.875, -1.0]])
    assert distance_by_arb([step], x, twice, times=2) == 0.0
    assert distance_by_arb([step], x, twice + numbers([0.0, 0.0], [0.0, -0.75]), times=2) == about(0.75)
    places = Constant(name="places", reads=(), values=numbers([1.0], [2.0], [5.0]))
    both = Linear(name="both", reads=(1, 2), weight=numbers([1.0, 0.0, 4.0]), bias=numbers(0.0))
    assert distance_by_arb([step, places, both], x, numbers([[6.75], [7.25 + 1e-3]])) == about(1e-3, rel=1e-11)
    # More bits are asked for where the first do not suffice: of 1 + 2⁻¹⁰⁰ − 1, 64 leave nothing to divide by.
    tiny = Linear(name="tiny", reads=(0,), weight=numbers([1.0, 1.0]), bias=numbers(-1.0))
    inverse = Function(name="inverse", reads=(1,), expression="1/t")
    assert distance_by_arb([tiny, inverse], numbers([[1.0, 2.0**-100]]), numbers([[2.0**100]]), bits=64) == 0.0


# Ranges


def test_intervals_hold_all_outputs_and_little_more() -> None:
    torch.manual_seed(0)
    weight, bias = random(3, 4), random(3)
    inputs = Box(numbers(-1.0, 0.5, -3.0, 0.0), numbers(2.0, 1.0, -1.0, 0.0))
    x = inputs.lo + torch.tensor([[k >> n & 1 for n in range(4)] for k in range(16)]) * (inputs.hi - inputs.lo)
    gate, part = Gate(name="gate", reads=(0,), low=-2.0, kinked=True), torch.linspace(0, 1, 3001).double()[:, None]
    times = Product(name="product", reads=(0, 1), weight=random(2), bias=random(2), broadcast=False)
    for found, seen, wide in (
        (affine_interval(weight, bias, inputs), x @ weight.T + bias, 1e-10),
        (gate.interval(inputs), gate.exact((inputs.lo + part * (inputs.hi - inputs.lo)).unsqueeze(0))[0], 1e-2),
        (times.interval(inputs), times.exact(x.unsqueeze(0))[0], 1e-10),
    ):
        lo, hi = seen.amin(dim=0), seen.amax(dim=0)
        assert (found.lo < lo).all() and (found.hi > hi).all()
        assert (lo - found.lo <= wide).all() and (found.hi - hi <= wide).all()
    sizes, seen = inputs.hi.abs().maximum(inputs.lo.abs()), times.exact(x.unsqueeze(0))[0]
    slack = 1e-12 * (sizes[:2] * sizes[2:] * times.weight.abs() + times.bias.abs())
    torch.testing.assert_close(times.interval(inputs).hi - seen.amax(dim=0), slack, rtol=1e-2, atol=0.0)
    # Between 513 points lies 1/512; half of that times the slope is what may be missed.
    above = gate.interval(Box(numbers(1.0), numbers(2.0)))
    assert 1 - above.lo.item() == about(2 / 1024 * LIFT + 1e-12 * (1e-3 + 2))
    widened = Box(numbers(-1.0, 0.0), numbers(3.0, 0.0)).widened(0.25)
    assert widened.hi.tolist() == about([4 + 0.75e-3, 0.0]) and widened.lo.tolist() == about([-2 - 0.75e-3, 0.0])
    scaled = Box(numbers(2.0), numbers(3.0)).scaled_up(0.25)
    assert (scaled.lo.item(), scaled.hi.item()) == about((1.6, 3.75))


def test_what_a_head_may_have_inside_is_what_its_box_allows() -> None:
    module, x = heads(True, 2.0)
    layer = Attention(name="head", reads=(0,), causal=True, scale=2.0, **dict(module.named_buffers()))
    box = Box(x.flatten(0, 1).amin(dim=0), x.flatten(0, 1).amax(dim=0))
    allowed, seen = layer.attention_ranges(box), layer.attention_ranges(x)
    q, k, v = layer.projected(torch.cartesian_prod(*torch.stack([box.lo, box.hi]).T).unsqueeze(0))
    assert [allowed.q, allowed.k, allowed.v] == about([part.abs().max().item() for part in (q, k, v)], rel=1e-10)
    most = [part.abs().amax(dim=(0, 2)) for part in (q, k)]
    assert allowed.score == about((most[0] * most[1]).sum(dim=-1).max().item() * LIFT, rel=1e-10)
    assert (layer.projected(x)[0] @ layer.projected(x)[1].mT).abs().max().item() <= seen.score
    assert seen.q <= allowed.q and seen.k <= allowed.k and seen.v <= allowed.v
    for part, fits in ((1 + 1e-12, True), (1 - 1e-6, False)):
        known = replace(seen, score=part * seen.score)
        phase = AttentionPhase(layer, ValueRanges(box, box, known), 3)
        with nullcontext() if fits else pytest.raises(OutOfDomain, match="‖q‖·‖k‖"):
            assert len(list(phase.prompts(x))) == 2
    _, [ranges] = with_ranges([layer], [box], 0.25, [x])
    assert ranges.attention == AttentionRanges(1.25 * seen.q, 1.25 * seen.k, 1.25 * seen.v, seen.score * 1.5625)


@pytest.mark.parametrize("features", [1, 3])
def test_ranges_of_a_root_in_two_hold_it_for_every_variance(features) -> None:
    """s²v by its formula on 4,096 pieces, 1/√v from 1/20 to ½, widened once."""
    v = Box(torch.full((features,), 4.0, dtype=f64), torch.full((features,), 400.0, dtype=f64))
    [root], [ranges] = with_ranges([ReciprocalRoot(name="root", reads=(0,), features=features)], [v], SPARE)
    assert isinstance(root, ReciprocalRoot) and root.coarse is not None
    t = torch.logspace(2, math.log2(400), 2001, base=2.0, dtype=f64).reshape(1, -1, 1).expand(1, 2001, features)
    registers = [t]
    for layer, known in zip(root.parts, ranges.parts, strict=True):
        seen = layer.exact(torch.cat([registers[read] for read in layer.reads], dim=-1))
        registers.append(seen)
        for claimed, least in ((known.output.hi, seen.amax(dim=(0, 1))), (-known.output.lo, (-seen).amax(dim=(0, 1)))):
            assert (claimed >= least).all() and (claimed - least <= 0.05 * (known.output.hi - known.output.lo)).all()
    torch.testing.assert_close(registers[-1], t.rsqrt(), rtol=1e-13, atol=0.0)
    # s²v lies within a factor of 3, about 1; 1/√v is known to the last digits.
    scaled, last = (root.part_ranges([v])[k] for k in (2, 4))
    lo, hi = scaled.lo[0].item(), scaled.hi[0].item()
    assert hi / lo < 3 and abs(math.log(lo * hi)) < 0.02
    squares = root.parts[0].exact(t).square() * t
    assert lo <= squares.min() <= lo * 1.003 and hi / 1.003 <= squares.max() <= hi
    assert (last.lo[0].item(), last.hi[0].item()) == about((0.05 * (1 - 1e-12), 0.5 * (1 + 1e-12)), rel=1e-15)


def test_a_variance_is_widened_by_a_factor_and_other_numbers_under_roots_near_zero_too() -> None:
    layer = Linear(name="v", reads=(0,), weight=numbers([1.0], [1.0]), bias=numbers(0.0, 0.0))
    root = ReciprocalRoot(name="root", reads=(1,), features=2)
    for x, lo, hi in (([2.0, 3.0], 1.75 - 0.75e-3, 3.25 + 0.75e-3), ([0.5, 3.0], 0.5 / 1.5625, 3 * 1.5625)):
        data = numbers([[each] for each in x])
        _, [ranges, _] = with_ranges([layer, root], [Box(numbers(min(x)), numbers(max(x)))], 0.25, [data])
        assert (ranges.output.lo[0].item(), ranges.output.hi[0].item()) == about((lo, hi))


def test_numbers_of_a_run_stay_as_far_from_the_edges_as_they_may_be_off() -> None:
    layer = Linear(name="map", reads=(0,), weight=numbers([1.0], [1.0]), bias=numbers(0.0, 0.0))
    box = Box(numbers(0.0, 0.0), numbers(1.0, 1.0))
    phase = LinearPhase(layer, ValueRanges(Box(numbers(0.0), numbers(1.0)), box))
    for register, slack, fits in (([0.1, 0.9], 0.05, True), ([0.1, 0.5], 0.2, False), ([0.5, 0.9], 0.2, False)):
        with nullcontext() if fits else pytest.raises(OutOfDomain, match="outside of its range"):
            require_in_range(phase, numbers([register]), slack)
    assert phase.limit(0.5) == 0.5 and phase.ranges.output.inner(0.1) == 0.1
    assert [Box(numbers(lo, -1.0), numbers(4.0, 1.0)).inner(0.25) for lo in (0.0, 1.0)] == [0.5, 0.1]


# Certificates and audits


def test_a_layers_term_is_by_how_much_the_bound_grows_with_it_and_from_where_it_is_lost_it_is_infinite() -> None:
    torch.manual_seed(0)
    x = 2 * torch.rand(8, 2, dtype=f64) - 1
    program = compile_network(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double(), data=x)
    grown = program.errors(identity_grid(program.capacity.reach))[-1].bound.each.amax(dim=-1).tolist()
    terms = list(program.certificate.terms.values())
    assert grown[0] == 0.0 and terms == about([after - before for before, after in pairwise(grown)])
    # A range as narrow as an error tells nothing of where the exact number is.
    first, *others = program.phases
    narrow = Box(torch.zeros(3, dtype=f64), torch.full((3,), 1e-13, dtype=f64))
    lost = replace(program, phases=(replace(first, ranges=replace(first.ranges, output=narrow)), *others)).certificate
    assert [math.isfinite(term) for term in lost.terms.values()] == [False, True, True] and lost.bound == math.inf


def test_an_audit_counts_its_own_enclosure_once() -> None:
    """K·x − K·x is 0; its enclosure is about 1e-23·K wide, which is some of what the answer is off by."""
    network = nn.Linear(2, 1, bias=False).double()
    network.weight.data = numbers([2.0**31, -(2.0**31)])
    x = numbers([1 / 3, 1 / 3], [0.2, 0.2])
    program = compile_network(network, data=torch.cat([x, torch.eye(2, dtype=f64)]))
    run = replace(program(x), register=numbers([[2.0**-41]], [[-(2.0**-42)]]))
    ball = evaluated(program.layers, run.inputs, BALLS)[-1]
    radius, away = ball.radius.max().item(), ball.distance_from(run.register).max().item()
    assert away / 1000 < radius < away / 10 and away >= 2.0**-41
    assert run.audit.terms["its enclosure"] == radius and run.audit.bound == about(away)
    assert run.bounds.bound == run.audit.bound and run.bounds.size == run.last.abs().max().item()


# Steps that repeat


def halving(steps: int):
    half = nn.Linear(3, 3).double()
    half.bias.data, half.weight.data = numbers(0.125, -0.25, 0.5), 0.5 * torch.eye(3, dtype=f64)
    start = numbers([1.0, -1.0, 0.5])
    return compile_iteration(half, start, steps), start


def test_errors_of_steps_grow_by_the_layers_of_a_step() -> None:
    program, _ = halving(4)
    line = identity_grid(program.capacity.reach)
    once = program.errors(line)[-1].bound.each[-1].max().item()
    assert program.certificate_on(line).bound == about(once * (1 + 0.5 + 0.25 + 0.125), rel=1e-7)


def test_an_audit_of_steps_is_of_the_last_state_against_all_exact_steps() -> None:
    program, start = halving(3)
    ran = program(start)
    spoilt = replace(ran, register=ran.register + numbers(3e-4, -4e-4, 0.0))
    assert spoilt.audit.bound == pytest.approx(4e-4, rel=1e-9)
    assert ran.bounds.bound == ran.audit.bound and program.certificate.bound == ran.certificate.bound
