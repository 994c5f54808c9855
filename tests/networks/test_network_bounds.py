"""What every layer adds to the error, and what it makes of errors before it, on record; enclosures against `judge`.

`python tests/networks/test_network_bounds.py` writes the record anew (see `tests/recorded.py`).
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path

import judge
import pytest
import random_networks
import torch
from recorded import require_as_recorded, write
from small_networks import learner, one_norm, random, small_encoder, trained_norm, two_norms, unchecked
from torch import Tensor, nn

from emulon import compile_network
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import identity_grid
from emulon.networks import Heads, NetworkProgram
from emulon.networks.arithmetic import BALLS, FLOAT64
from emulon.networks.attention import Attention, AttentionPhase
from emulon.networks.compiler import compile_iteration
from emulon.networks.elementwise import Function, FunctionPhase, Gate, GatePhase
from emulon.networks.layers import Box, ErrorBound, ValueRanges, evaluated, require_in_range
from emulon.networks.maps import Constant, Linear, LinearPhase, ReciprocalRoot
from emulon.networks.planning import SPARE, with_ranges
from emulon.networks.program import distance_by_arb
from emulon.networks.softmaxes import softmax_for

f64 = torch.float64
RECORD = Path(__file__).with_name("bounds.json")


def numbers(*parts) -> Tensor:
    return torch.tensor(parts, dtype=f64)


def about(value: float | list[float], rel: float = 1e-12):
    return pytest.approx(value, rel=rel, abs=0.0)


def activations() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    parts = [nn.LeakyReLU(0.25), nn.SiLU(), nn.Tanh(), nn.LeakyReLU(-2.0), nn.ReLU()]
    made = [part for function in parts for part in (nn.Linear(3, 3), function)]
    return nn.Sequential(*made, nn.Linear(3, 2)).double(), random(12, 3)


def products() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    times = random_networks.Times(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(0.1)))
    norm = nn.LayerNorm(3, eps=1e-2)
    norm.weight.data, norm.bias.data = torch.tensor([2.0, -0.3, 0.7]), torch.tensor([0.1, -1.0, 0.5])
    return nn.Sequential(norm, times, nn.Linear(3, 2)).double(), random(12, 3)


def gated() -> nn.Module:
    torch.manual_seed(0)
    return random_networks.Times(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.LeakyReLU(-2.0))).double()


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
    "products": products,
    "a norm over a long range": two_norms,
    "one norm": one_norm,
    "an encoder": lambda: (small_encoder(), random(6, 3, 4)),
    "heads": lambda: heads(False, 1.0),
    "masked heads, scaled": lambda: heads(True, 3.0),
    "small masked heads": lambda: heads(True, 4.0, 2.0**-5),
    "positions": learner,
    "roots of several numbers": shortened,
    "gated": lambda: (gated(), random(12, 3)),
}


def compiled() -> dict[str, NetworkProgram]:
    made = {name: make() for name, make in NETWORKS.items()}
    return {name: compile_network(module, data=x) for name, (module, x) in made.items()}


BY_DOMAIN = ("trained statistics", "activations", "gated", "heads", "masked heads, scaled")


def by_domain(name: str) -> NetworkProgram:
    module, x = NETWORKS[name]()
    with unchecked():
        return compile_network(module, 1.5, shape=tuple(x.shape[1:]))


@pytest.fixture(scope="module")
def programs(warm) -> dict[str, NetworkProgram]:
    with unchecked():
        return compiled()


def simple(phases):
    for phase in phases:
        yield from simple(phase.phases) if phase.phases else [phase]


def of_phases(program: NetworkProgram, dtype: torch.dtype) -> dict[str, float]:
    """What each phase adds to its exact layer; on a coarse line products of two errors count, too."""
    line = identity_grid(max(2048.0, program.capacity.reach), dtype)
    return {phase.layer.name: phase.own_error(line) for phase in simple(program.phases)}


def of_registers(program: NetworkProgram, before: float) -> dict[str, float]:
    """Errors of every register, the input being off by `before`, and whether its exact numbers are in range."""
    found = program.errors(identity_grid(program.capacity.reach), before)
    terms = {}
    for phase, register in zip(program.phases, found[1:], strict=True):
        terms[f"{phase.layer.name}, numbers"] = register.bound.each[-1].sum().item()
        terms[f"{phase.layer.name}, length"] = register.bound.length[-1].item()
        terms[f"{phase.layer.name}, in range"] = float(register.known[-1])
    return terms


def of_gates() -> dict[str, float]:
    """Of any size and sharpness."""
    line, found = identity_grid(2.0**14), {}
    for size, (sharpness, kinked) in product((0.01, 4.0, 100.0), ((1.0, False), (1.0, True), (2.0**20, True))):
        layer = Gate(name="gate", reads=(0,), low=0.25 if kinked else 0.0, kinked=kinked)
        box = Box(numbers(-size), numbers(size))
        phase = GatePhase(layer, ValueRanges(box, box), sharpness)
        found[f"{size}, {sharpness}, {kinked}"] = phase.own_error(line)
    return found


def of_functions() -> dict[str, float]:
    """Powers of two on the numbers of a grid make each part of the bound the largest in turn."""
    made, found = softmax_for("t**2", -3.0, 4.0, 1e-9), {}
    layer, box = Function(name="square", reads=(0,), expression="t**2"), Box(numbers(-3.0), numbers(4.0))
    for powers in ((0, 0, 0), (13, 0, 0), (14, 0, 0), (0, 20, 0), (0, 21, 0), (0, 0, -20), (-20, 0, 9)):
        scaled = dict(zip(("slopes", "intercepts", "values"), powers, strict=True))
        grid = replace(made.grid, **{name: getattr(made.grid, name) * 2.0**power for name, power in scaled.items()})
        phase = FunctionPhase(layer, ValueRanges(box, box), replace(made, grid=grid))
        found[str(powers)] = phase.own_error(identity_grid(phase.softmax.reach))
    return found


def of_ranges(program: NetworkProgram) -> dict[str, float]:
    """Where its numbers are, those inside of attention too."""
    terms = {}
    for phase in simple(program.phases):
        inside, box = phase.ranges.attention, phase.ranges.output
        terms |= {f"{phase.layer.name}, {name}": each for name, each in (vars(inside) if inside else {}).items()}
        terms |= {f"{phase.layer.name}, lo": box.lo.sum().item(), f"{phase.layer.name}, hi": box.hi.sum().item()}
    return terms


def of_attention(program: NetworkProgram) -> dict[str, float]:
    """Number by number, and by lengths where these are shorter."""
    phase, found = program.phases[0], {}
    for scale in (1e-3, 1.0):
        before = ErrorBound(1e-3 * (1 + torch.arange(3, dtype=f64)).unsqueeze(0), numbers(1e-2 * scale))
        after = phase.layer.propagated([before], phase.ranges)
        found |= {f"{scale}, numbers": after.each.sum().item(), f"{scale}, length": after.length.item()}
    return found


def recorded(programs: dict[str, NetworkProgram]) -> dict[str, Callable[[], dict[str, float]]]:
    cases = {"gates": of_gates, "functions": of_functions}
    cases["attention"] = partial(of_attention, programs["masked heads, scaled"])
    for name in BY_DOMAIN:
        cases[f"{name}, ranges by intervals"] = lambda name=name: of_ranges(by_domain(name))
    for name, program in programs.items():
        cases[f"{name}, ranges on data"] = partial(of_ranges, program)
        for dtype in (f64, torch.float32):
            cases[f"{name}, phases, {dtype}"] = partial(of_phases, program, dtype)
        for before in (0.0, 1e-9, 1.0):
            cases[f"{name}, off by {before}"] = partial(of_registers, program, before)
    return cases


def test_every_error_bound_is_the_one_on_record(programs) -> None:
    for name, make in recorded(programs).items():
        require_as_recorded(RECORD, name, make(), rel=1e-9 if "off by" in name else 1e-11)


def test_a_tolerance_is_shared_by_functions_and_divided_by_what_follows_them() -> None:
    """Two gates, the first times 8: sharpnesses are powers of two above 0.2785·2·8/1e-3 and 0.2785·2/1e-3."""
    network = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1), nn.ReLU()).double()
    for part, weight in ((network[0], 1.0), (network[2], 8.0)):
        part.weight.data, part.bias.data = numbers([weight]), numbers(0.0)
    program = compile_network(network, 1.0, tolerance=1e-3)
    assert [phase.sharpness for phase in program.phases if isinstance(phase, GatePhase)] == [2.0**13, 2.0**10]


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


@pytest.mark.parametrize("name", BY_DOMAIN)
def test_ranges_by_intervals_hold_the_numbers_of_every_layer(name) -> None:
    program = by_domain(name)
    x = 3 * torch.rand(200, *program.shape, dtype=f64) - 1.5
    registers = evaluated(program.layers, x.reshape(200, program.positions, -1), FLOAT64)
    for phase, register in zip(program.phases, registers[1:], strict=True):
        ranges, lo, hi = phase.ranges, register.flatten(0, 1).amin(dim=0), register.flatten(0, 1).amax(dim=0)
        assert (ranges.output.lo <= lo).all() and (hi <= ranges.output.hi).all()
        if ranges.attention is not None:
            q, k, v = phase.layer.projected(x)
            sizes = [part.abs().max().item() for part in (q, k, v, q @ k.mT)]
            assert all(size <= most for size, most in zip(sizes, vars(ranges.attention).values(), strict=True))


def test_a_head_whose_scores_may_be_larger_than_planned_is_refused() -> None:
    module, x = heads(True, 2.0)
    layer = Attention(name="head", reads=(0,), causal=True, scale=2.0, **dict(module.named_buffers()))
    box, seen = Box(*(end.expand(3).clone() for end in (x.min(), x.max()))), layer.attention_ranges(x)
    for part, fits in ((1 + 1e-12, True), (1 - 1e-6, False)):
        phase = AttentionPhase(layer, ValueRanges(box, box, replace(seen, score=part * seen.score)), 3)
        with nullcontext() if fits else pytest.raises(OutOfDomain, match="‖q‖·‖k‖"):
            assert len(list(phase.prompts(x))) == 2


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


if __name__ == "__main__":
    write(RECORD, recorded(compiled()))
