"""What every layer of a network adds to the error, and what it makes of errors before it, term by term."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from emulon.interpreter.number_line import number_line
from emulon.networks.attention import AttentionPhase
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import GatePhase
from emulon.networks.groups import ReciprocalRoot
from emulon.networks.iteration import compile_iteration
from emulon.networks.layers import (
    Attention,
    Box,
    Elementwise,
    Gated,
    Inner,
    Known,
    Linear,
    Root,
    rounded_sum,
    slope_bound,
    spectral_norm,
)
from emulon.networks.linear import LinearPhase
from emulon.networks.lowering import Builder, lower
from emulon.networks.roots import _in_two
from emulon.networks.softmaxes import UNITS, softmax_for
from emulon.networks.steps import GroupLassoStep, SoftmaxRegressionStep
from emulon.networks.travel import Off, Travel

f64, U, LIFT = torch.float64, 2.0**-53, 1 + 1e-9


def numbers(*parts) -> Tensor:
    return torch.tensor(parts, dtype=f64)


def gamma(count: int) -> float:
    return count * U / (1 - count * U)


def about(value: float | list[float], rel: float = 1e-12):
    return pytest.approx(value, rel=rel, abs=0.0)


LINEAR = Linear(name="map", reads=(0, 1), weight=numbers([1.0, -2.0], [3.0, 0.5]), bias=numbers(0.5, -1.0))
INPUTS = Box(numbers(-1.0, 1.0), numbers(3.0, 2.0))


def test_a_linear_map_carries_errors_by_its_entries_and_lengths_by_its_norms() -> None:
    known = Known(INPUTS, INPUTS)
    each, length = LINEAR.travelled(numbers([1e-3, 2e-3]), numbers([0.1, 0.2]), (1, 1), known)
    assert each[0].tolist() == about([5e-3 * LIFT, 4e-3 * LIFT])
    assert spectral_norm(LINEAR.weight[:, :1]) == about(math.sqrt(10) * LIFT)
    assert length.item() == about((0.1 * math.sqrt(10) + 0.2 * math.sqrt(4.25)) * LIFT**2)
    wide = numbers([3.0, 0.0, 4.0])
    assert spectral_norm(wide) == about(5 * LIFT) == spectral_norm(wide.T)


def test_intervals_of_a_linear_map_are_lifted_over_what_computing_them_rounds() -> None:
    """Middles (1, 3/2) and halves (2, 1/2): −1½ ± 3, and 2¾ ± 6¼."""
    found = LINEAR.interval(INPUTS)
    room = numbers(1e-12 * (3.0 + 4.0 + 0.5), 1e-12 * (6.25 + 3.75 + 1.0))
    middle, half = numbers(-1.5, 2.75), numbers(3.0, 6.25)
    torch.testing.assert_close(found.hi - (middle + half), room, rtol=1e-3, atol=0.0)
    torch.testing.assert_close((middle - half) - found.lo, room, rtol=1e-3, atol=0.0)
    assert LINEAR.sums(INPUTS) == about((9.0 + 1.0 + 1.0) * LIFT)
    widened = Box(numbers(-1.0, 0.0), numbers(3.0, 0.0)).widened(0.25)
    assert widened.hi.tolist() == about([4 + 0.75e-3, 0.0]) and widened.lo.tolist() == about([-2 - 0.75e-3, 0.0])
    stretched = Box(numbers(2.0), numbers(3.0)).stretched(0.25)
    assert (stretched.lo.item(), stretched.hi.item()) == about((1.6, 3.75))


def test_a_function_carries_errors_by_its_steepest_slope() -> None:
    """|max(t, −2t)| has slopes 1 and −2; a smooth gate low + 1.1·(1 − low) at most."""
    assert Gated(-2.0, kinked=True).steepest == 2.0 and Gated(0.5, kinked=True).steepest == 1.0
    assert Gated(0.25, kinked=False).steepest == about(0.25 + 1.1 * 0.75)
    assert Gated(-0.5, kinked=False).steepest == about(0.5 + 1.1 * 1.5)
    assert 6 <= slope_bound("t**2", -1.0, 3.0) <= 6.01 and 6 <= slope_bound("t**2", -3.0, 1.0) <= 6.01
    layer = Elementwise(name="gate", reads=(0,), f="Max(t, -2*t)", gated=Gated(-2.0, kinked=True))
    inputs = Box(numbers(-1.0), numbers(1.0))
    each, length = layer.travelled(numbers([1e-3]), numbers([3e-3, 4e-3]), (1,), Known(inputs, inputs))
    assert each.item() == about(2e-3 * LIFT) and length.item() == about(1e-2 * LIFT)
    # Between 513 looks lie 2/512; half of that times the slope is what may be missed.
    room = 2 * 2 / 1024 * LIFT + 1e-12 * (1e-3 + 2)
    found = layer.interval(inputs)
    assert found.hi.item() - 2 == about(room) and -found.lo.item() == about(room)
    nowhere = layer.interval(Box(numbers(0.0), numbers(0.0)))
    assert nowhere.hi.item() == about(1e-15) and nowhere.lo.item() == about(-1e-15)


def heads(causal: bool = False) -> Attention:
    return Attention(
        name="head",
        reads=(0,),
        w_q=numbers([[1.0, 0.0], [0.0, 2.0]]),
        w_k=numbers([[0.5, -1.0], [1.0, 0.0]]),
        w_v=numbers([[1.0, 1.0], [0.0, -3.0]]),
        b_q=numbers([0.5, 0.0]),
        b_k=numbers([0.0, 0.25]),
        b_v=numbers([0.0, 1.0]),
        causal=causal,
    )


INNER = Inner(q=2.0, k=8.0, v=32.0, score=3.0)
SQUARE = Box(numbers(-1.0, -2.0), numbers(0.5, 2.0))


def test_attention_carries_errors_of_queries_keys_and_values() -> None:
    """Scores move by Σ|q|e_k + |k|e_q + e_q·e_k, and what they average lies 2·32 apart."""
    known = Known(SQUARE, SQUARE, INNER)
    e_q, e_k, e_v = ([each * LIFT for each in part] for part in ([0.01, 0.04], [0.025, 0.01], [0.03, 0.06]))
    moved = sum(2 * k + 8 * q + q * k for q, k in zip(e_q, e_k, strict=True)) * LIFT
    found = heads().carried(numbers([0.01, 0.02]), known)[0].tolist()
    assert found == about([(e + 64 * math.tanh(moved / 2)) * LIFT for e in e_v])


def test_attention_carries_lengths_by_the_norms_of_its_matrices() -> None:
    layer, known, length = heads(), Known(SQUARE, SQUARE, INNER), 0.005 * LIFT
    q, k, v = (spectral_norm(part[0]) for part in (layer.w_q, layer.w_k, layer.w_v))
    moved = (math.sqrt(2) * (2 * k + 8 * q) * length + q * k * length**2) * LIFT
    each, whole = layer.travelled(numbers([0.01, 0.02]), numbers([0.005]), (2,), known)
    assert each[0].tolist() == about([(e * LIFT + 64 * math.tanh(moved / 2)) * LIFT for e in (0.03, 0.06)])
    shift = 64 * math.tanh(moved / 2) * LIFT
    assert whole.item() == about((v * length + math.sqrt(2) * shift) * LIFT)
    # Far apart, numbers tell more than lengths; two heads side by side are as long as both.
    both = Attention(
        name="two",
        reads=(0,),
        causal=False,
        **{name: torch.cat([getattr(layer, name)] * 2) for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")},
    )
    twice = both.travelled(numbers([0.01, 0.02]), numbers([0.005]), (2,), known)[1].item()
    assert twice == about(math.sqrt(2) * whole.item())


def test_what_a_head_may_have_inside_is_what_its_box_allows() -> None:
    """Row by row: |x + ½| ≤ 1 and |2x'| ≤ 4; |x/2 − x'| ≤ 5/2 and |x + ¼| ≤ ¾; |x + x'| ≤ 3 and |1 − 3x'| ≤ 7."""
    inner = heads().inside_of(SQUARE)
    assert (inner.q, inner.k, inner.v) == pytest.approx((4.0, 2.5, 7.0), rel=1e-10)
    assert inner.score == about((1.0 * 2.5 + 4.0 * 0.75) * LIFT, rel=1e-11)


def test_a_sum_is_rounded_before_the_line_reads_it() -> None:
    assert rounded_sum(3, 2.0) == about(gamma(4) * 2.0) and rounded_sum(3, math.inf) == math.inf
    line = number_line(32.0)
    phase = LinearPhase(LINEAR, Known(INPUTS, Box(numbers(-100.0, 0.0), numbers(50.0, 1.0))))
    # Numbers up to 100 are divided by 8; rows add up to 11, of two products and a bias, one of them rounded more.
    absolute = 11 * LIFT / 8
    assert phase.scale == 8.0 and phase.capacity.reach == 12.5
    assert phase.own_error(line) == about(8 * (line.error(12.5, 4, absolute) + gamma(5) * absolute))


@pytest.mark.parametrize("causal", [False, True])
def test_a_head_by_prompt_is_off_by_its_scores_its_values_its_mask_and_its_average(causal: bool) -> None:
    """q and k are balanced to 4 each, values halved to 16; a mask is √C at one place of each side."""
    phase, line = AttentionPhase(heads(causal), Known(SQUARE, SQUARE, INNER), 3), number_line(32.0)
    strength = 6.0 + math.log(6 / U) + 1.1 if causal else 0.0
    assert phase.strength == about(strength) and (phase.balance, phase.value) == (0.5, 2.0)
    assert phase.capacity.reach == max(16.0, math.sqrt(strength))

    def off(size: float, absolute: float) -> float:
        return line.error(size, 4, absolute * LIFT) + gamma(5) * absolute * LIFT

    e_q, e_k, e_v = off(4.0, 4.0 * 2), off(4.0, 2.5 / 2), off(16.0, 7.0 / 2)
    score, root = 2 * (e_q * (4 + e_k) + e_k * 4), math.sqrt(strength)
    if causal:
        edge = line.error(root)
        score += edge * (root + edge) + edge * root + 3 * line.error(0.0) * 2 * (root + 1)
    delta = score + gamma((5 if causal else 2) + 1) * (3.0 + strength) + 68 * U
    average = 2 * gamma(5) * (16 + e_v)
    wanted = 2 * (math.tanh(delta / 2) * 2 * (16 + e_v) + e_v + 2 * 16 * U + average)
    assert phase.own_error(line) == about(wanted)


def gate(sharpness: float, kinked: bool) -> GatePhase:
    layer = Elementwise(name="gate", reads=(0,), f="Max(t, t/4)", gated=Gated(0.25, kinked))
    known = Known(Box(numbers(-4.0), numbers(3.0)), Box(numbers(-1.0), numbers(3.0)))
    return GatePhase(layer, known, 0.25, sharpness, kinked)


def test_a_sharp_gate_errs_at_its_kink_and_by_what_its_score_is_off() -> None:
    """G = 2²⁰ is 2¹¹ in the key and 2⁹ with the number; values up to 4 are read as 16."""
    phase, line = gate(2.0**20, True), number_line(2048.0)
    assert (phase.key, phase.query, phase.value, phase.capacity.reach) == (2048.0, 512.0, 0.25, 2048.0)
    near, inner, middle, far = line.errors  # up to 16, 32, 256 and 2048
    part, keys = max(inner / 16, middle / 32, far / 256), (far + near) / 2048
    relative = (1 + part) * (1 + keys) - 1 + 8 * U
    absolute = 2048 * (1 + keys) * near + 2 * 68 * U
    assert phase._score_error(line) == about((absolute, relative))
    own = 0.75 * 0.2785 / 2**20 * math.exp(absolute) / (1 - relative) + 0.25 * line.error(16.0) + 2 * gamma(4) * 4
    assert phase.own_error(line) == about(own)


def test_a_smooth_gate_is_moved_by_its_score_and_nothing_else() -> None:
    phase, line = gate(1.0, False), number_line(32.0)
    assert (phase.key, phase.query) == (1.0, 1.0)
    absolute, relative = phase._score_error(line)
    near = line.error(16.0)
    keys = 2 * near
    assert (absolute, relative) == about(((1 + keys) * near + 2 * 68 * U, keys + 8 * U), rel=1e-4)
    own = 3.0 * math.tanh((absolute + relative * 4) / 2) + 0.25 * line.error(16.0) + 2 * gamma(4) * 4
    assert phase.own_error(line) == about(own)


def test_a_function_by_prompt_is_off_by_its_grid_its_scores_and_its_values() -> None:
    made = softmax_for("t**2", -3.0, 4.0, 1e-9)
    grid = made.grid
    line = number_line(made.reach)
    key, bias = (2.0 ** round(math.log2(a / b) / 2) for a, b in ((grid.range, grid.steepest), (1.0, grid.highest)))
    value = 2.0 ** math.ceil(math.log2(grid.largest / 16))
    assert (made.key, made.bias, made.value) == (key, bias, value)
    sizes = [(grid.steepest * key, grid.range / key), (grid.highest * bias, 1 / bias)]
    assert made.reach == max(*sizes[0], *sizes[1], grid.largest / value)
    score = gamma(3) * grid.score_size
    for a, b in sizes:
        score += line.error(a) * (b + line.error(b)) + line.error(b) * a
    assert made.score_error(line) == about(score)
    own = made.interpolation + grid.rounding_error(made.deviation, made.size, score) + value * line.error(16.0)
    assert made.own_error(line) == about(own) and 8 < grid.largest / value <= 16
    larger = made.scaled(3, 5)
    assert (larger.interpolation, larger.deviation, larger.size) == tuple(
        32 * each for each in (made.interpolation, made.deviation, made.size)
    )
    assert (larger.grid.lo, larger.grid.hi) == (8 * grid.lo, 8 * grid.hi)
    assert torch.equal(larger.grid.slopes * 8, grid.slopes) and torch.equal(larger.grid.values, 32 * grid.values)


# How errors travel


def travel(builder: Builder, boxes: list[Box], own: list[float], void: float = 5e-3) -> Travel:
    """Phases with ranges given by hand; what each adds is given, too."""
    phases, any_softmax = [], softmax_for(*UNITS[0])
    for layer, output in zip(builder.layers, boxes[1:], strict=True):
        known = Known(Box.beside([boxes[read] for read in layer.reads]), output)
        linear = isinstance(layer, Linear)
        phases.append(LinearPhase(layer, known) if linear else FunctionPhase(layer, known, any_softmax))
    return Travel(phases, boxes, own, void)


def off(*each: float) -> Off:
    return Off.of(numbers(each))


def normed() -> Travel:
    """LayerNorm of two: less the mean, squares, their mean v, 1/√v, sum and difference, squares, product."""
    module = nn.LayerNorm(2, eps=1e-2).double()
    module.weight.data, module.bias.data = numbers(2.0, -3.0), numbers(0.25, 0.5)
    two = Box(numbers(-2.0, -2.0), numbers(2.0, 2.0))
    boxes = [two, two, Box(numbers(0.0, 0.0), numbers(4.0, 4.0)), Box(numbers(0.25), numbers(4.0))]
    boxes += [Box(numbers(0.5), numbers(2.0)), Box(-4 * torch.ones(4, dtype=f64), 4 * torch.ones(4, dtype=f64))]
    boxes += [
        Box(torch.zeros(4, dtype=f64), 16 * torch.ones(4, dtype=f64)),
        Box(numbers(-4.0, -6.0), numbers(4.0, 5.0)),
    ]
    return travel(lower(module, (2,)), boxes, [0.0] * 7)


def test_both_ways_to_measure_an_error_bound_each_other() -> None:
    made = Off.of(numbers([3e-3, 4e-3]), numbers(1.0))
    assert made.length.item() == about(5e-3 * LIFT)
    assert Off.of(numbers([3e-3, 4e-3]), numbers(2e-3)).each[0].tolist() == [2e-3, 2e-3]
    more = Off.of(numbers([3e-3, 4e-3]), numbers(4e-3)).plus(Off.of(numbers([1e-3, 0.5e-3]), numbers(1e-3)))
    assert more.each[0].tolist() == about([4e-3 * LIFT, 4.5e-3 * LIFT])
    assert more.length.item() == about(5e-3 * LIFT)


def test_a_norm_moves_numbers_by_their_error_and_its_length_over_sigma() -> None:
    """σ² ≥ ¼ − 0.09; (e + ‖e‖)/σ̂ times |W|, and ‖W‖·‖e‖/(σ̂ − ‖e‖/√2) in length, the smaller of both."""
    made = normed()
    [(register, group)] = made.groups.items()
    assert register == 7 and (group.c, group.v) == (1, 3)
    errors = Off.of(numbers([0.03, 0.04]))
    found = made._norm(group, {1: errors}, Off.of(numbers([0.09])))
    sigma, length = 0.4 / LIFT, 0.05 * LIFT
    each = [weight * (e + length) / sigma * LIFT for weight, e in ((2.0, 0.03), (3.0, 0.04))]
    by_length = spectral_norm(group.weight) * length / (sigma - length * LIFT / math.sqrt(2)) * LIFT
    assert found.length.item() == about(min(by_length, math.hypot(*each) * LIFT))
    assert found.each[0].tolist() == about([min(one, by_length) for one in each])
    assert by_length < math.hypot(*each)
    # Whatever it is given, ‖c/σ‖ ≤ √2, and the computed numbers are in range.
    largest = made._largest(register, group)
    assert largest.each[0].tolist() == about(
        [2 * math.sqrt(2) * LIFT + 0.25 + 4.0, 3 * math.sqrt(2) * LIFT + 0.5 + 6.0]
    )


def test_errors_before_a_norm_travel_through_the_map_and_its_own_add_to_them() -> None:
    made = normed()
    [(register, group)] = made.groups.items()
    before = 1e-6
    found = made.all(before)
    inner = {each: found[each] for each in range(1, 7)}
    alone = made._norm(group, inner, Off.of(torch.zeros(8, 1, dtype=f64)))
    assert found[register].each[-1].tolist() == about([each * LIFT for each in alone.each[-1].tolist()], rel=1e-11)
    # A layer that errs counts from its own row on: none of the first ones, then the last layer's as it is.
    erring = replace(made, own=[0.0] * 6 + [1e-3]).all(0.0)[-1]
    assert not erring.each[:7].any() and erring.each[7].tolist() == about([1e-3 * LIFT] * 2)


def test_ranges_can_be_asked_for_as_much_room_as_is_a_part_of_them() -> None:
    """5e-3 of the narrowest feature; where errors are larger, none, unless what they follow from is sure."""
    made = normed()
    assert made.room(1) == 5e-3 * 4.0 and made.room(3) == 5e-3 * 3.75
    rooms = replace(made, own=[1e-4] + [0.0] * 6).rooms()
    assert rooms[1].tolist() == about([1e-4] * 2, rel=1e-8) and not rooms[0].any()
    lost = replace(made, own=[1.0] + [0.0] * 6).rooms()
    assert not any(each.any() for each in lost[1:7])


def test_products_and_roots_have_their_own_slopes() -> None:
    builder = Builder((1,))
    builder.linear("", "variance", numbers([1.0]))
    _in_two(builder, "root", 1.0, 100.0)
    boxes = [Box(torch.full((size,), -1e3, dtype=f64), torch.full((size,), 1e3, dtype=f64)) for size in builder.sizes]
    boxes[0] = boxes[1] = Box(numbers(1.0), numbers(100.0))
    for number, layer in enumerate(builder.layers, start=1):
        if isinstance(layer, Root):
            boxes[layer.reads[0]] = Box(numbers(0.25), numbers(4.0))
            boxes[number] = Box(numbers(0.1), numbers(10.0))
    made = travel(builder, boxes, [0.0] * len(builder.layers))
    [(last, group)] = [(k, each) for k, each in made.groups.items() if isinstance(each, ReciprocalRoot)]
    found = {k: Off.of(torch.full((1, len(box.lo)), 1e-3, dtype=f64)) for k, box in enumerate(boxes)}
    rows = len(builder.layers) + 1
    found = {k: Off.of(each.each.expand(rows, -1).clone()) for k, each in found.items()}
    assert made._by_map(last, group, found).each[-1].item() == about(0.5 * 1e-3 * LIFT**2, rel=1e-11)
    # |x̂|·e_y + |y|·e_x
    product = made.groups[max(k for k in made.groups if k != last)]
    x, y = (boxes[each].size for each in (product.x, product.y))
    alone = made._product(product, {product.x: off(2e-3), product.y: off(3e-3)}).each.item()
    assert alone == about((x * 3e-3 + y * 2e-3) * LIFT)


# Steps that repeat


def halving(steps: int, lipschitz: float | None):
    half = nn.Linear(3, 3).double()
    half.bias.data, half.weight.data = numbers(0.1, -0.2, 0.3), 0.5 * torch.eye(3, dtype=f64)
    if lipschitz is not None:
        half.lipschitz = lipschitz
    start = numbers([1.0, -1.0, 0.5])
    return compile_iteration(half, start, steps), start


def test_errors_of_steps_grow_by_what_a_step_says_of_itself_or_by_its_layers() -> None:
    said, _ = halving(4, 0.75)
    line = number_line(said.capacity.reach)
    once = said.body.errors(line)[-1][-1].max().item()
    assert said.promise(line).bound == about(once * (1 + 0.75 + 0.75**2 + 0.75**3) * math.sqrt(3), rel=1e-10)
    plain, _ = halving(4, None)
    assert plain.promise(line).bound == about(once * (1 + 0.5 + 0.25 + 0.125), rel=1e-7)


def test_an_audit_of_steps_counts_what_each_is_off_by_and_what_follows_makes_of_it() -> None:
    program, start = halving(3, 0.75)
    run = program(start)
    states = run.states.clone()
    states[0, 2, 0] += numbers(3e-4, -4e-4, 0.0)
    # 5e-4 off, of which 3/4 is left after the last step; that is off by a half of it, against the exact step.
    wanted = 0.75 * 5e-4 + 2.5e-4
    assert replace(run, states=states).audit.bound == pytest.approx(wanted, rel=1e-9)


def test_a_step_moves_states_apart_by_its_flattest_or_its_steepest_direction() -> None:
    """Eigenvalues 2 and ½ of XᵀX/n; the Hessian of a softmax is at most half of that. Each with 1e-9 to spare."""
    x, classes = numbers([2.0, 0.0], [0.0, 1.0]), torch.tensor([0, 1])
    assert SoftmaxRegressionStep(x, classes, 0.5).lipschitz == about(2 / 3 + 1e-9, rel=1e-13)
    long = SoftmaxRegressionStep(x, classes, 0.5, step_size=1.2).lipschitz
    assert long == about(1.2 * 1.5 * LIFT - 1 + 1e-9, rel=1e-13)
    assert SoftmaxRegressionStep(x, classes, 0.5, step_size=1.4).lipschitz is None
    y, groups = numbers(1.0, 1.0), torch.tensor([0, 0])
    assert GroupLassoStep(x, y, groups).lipschitz == about(0.75 + 1e-9, rel=1e-13)
    long = GroupLassoStep(x, y, groups, step_size=0.9).lipschitz
    assert long == about(0.9 * 2 * LIFT - 1 + 1.8e-9, rel=1e-13)
    assert GroupLassoStep(x, y, groups, step_size=1.1).lipschitz is None
    assert GroupLassoStep(x[:1], y[:1], groups).lipschitz == about(1 + 1e-9, rel=1e-13)
    assert GroupLassoStep(x, y, torch.tensor([5, 5]), 0.2).thresholds.item() == about(0.5 * 0.2 * math.sqrt(2))
