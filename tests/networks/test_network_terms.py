"""What every layer of a network adds to the error, and what it makes of errors before it, term by term."""

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor, nn

from emulon.certify import Domain
from emulon.certify.balls import Ball
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import identity_grid
from emulon.networks import compile_network
from emulon.networks.attention import AttentionPhase
from emulon.networks.composition import roomy
from emulon.networks.exactly import away_from_exact
from emulon.networks.function import FunctionPhase
from emulon.networks.gate import GatePhase
from emulon.networks.groups import ReciprocalRoot, _squared_times, groups_of, root_ranges
from emulon.networks.iteration import compile_iteration
from emulon.networks.layers import (
    Attention,
    Box,
    Constant,
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
from emulon.networks.phase import ConstantPhase, power_for
from emulon.networks.program import _require_in_range, enclosures
from emulon.networks.ranges import _under_a_root, from_data
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
    inputs = Box(numbers(-0.25), numbers(0.75))
    each, length = layer.travelled(numbers([1e-3]), numbers([3e-3, 4e-3]), (1,), Known(inputs, inputs))
    assert each.item() == about(2e-3 * LIFT) and length.item() == about(1e-2 * LIFT)
    # Between 513 looks lies 1/512; half of that times the slope is what may be missed.
    room = 2 * 1 / 1024 * LIFT + 1e-12 * (1e-3 + 0.75)
    found, above = layer.interval(inputs), layer.interval(Box(numbers(1.0), numbers(2.0)))
    assert found.hi.item() - 0.75 == about(room) and -found.lo.item() == about(room)
    assert 1 - above.lo.item() == about(2 / 1024 * LIFT + 1e-12 * (1e-3 + 2))
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


def by_mpmath(layer: Attention, x: list[list[float]]) -> list[list[Any]]:
    """One head, position by position, in 60 digits."""
    parts = [[[[mpmath.mpf(t) for t in row] for row in w[0].tolist()], b[0].tolist()] for w, b in layer.parts()]
    q, k, v = (
        [[sum(a * b for a, b in zip(row, at, strict=True)) + off for row, off in zip(w, b, strict=True)] for at in x]
        for w, b in parts
    )
    out = []
    for i, asked in enumerate(q):
        seen = range(i + 1 if layer.causal else len(x))
        weights = [mpmath.exp(sum(a * b for a, b in zip(asked, k[j], strict=True))) for j in seen]
        out.append([sum(w * v[j][c] for w, j in zip(weights, seen, strict=True)) / sum(weights) for c in range(2)])
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharp", [1.0, 400.0], ids=["soft", "beyond what exp holds"])
def test_enclosures_of_a_head_hold_its_exact_answers(causal: bool, sharp: float) -> None:
    layer = replace(heads(causal), w_q=sharp * heads().w_q)
    x = numbers([[0.5, -0.25], [1.5, 1.0], [-0.75, 2.0]])
    ball, plain = layer.enclosed(Ball.of(x)), layer.exact(x)
    with mpmath.workdps(60):
        for i, row in enumerate(by_mpmath(layer, x[0].tolist())):
            for c, true in enumerate(row):
                high, low, radius = (getattr(ball, part)[0, i, c].item() for part in ("high", "low", "radius"))
                assert abs(mpmath.mpf(high) + mpmath.mpf(low) - true) <= radius < 1e-17
                assert plain[0, i, c].item() == pytest.approx(float(true), rel=1e-11)
        # Arb has the same network, of any number of bits: what a spoilt answer is off by, to the last digit.
        spoilt = plain.clone()
        spoilt[0, 2, 1] += 0.5
        off = abs(spoilt[0, 2, 1].item() - by_mpmath(layer, x[0].tolist())[2][1])
        assert away_from_exact([layer], x, spoilt) == about(float(off))


def test_a_network_in_arb_is_applied_to_its_own_answers_as_often_as_asked() -> None:
    """x ← (x₁/2 + x₂ + ¼, 3 − x₂), twice; then tanh, and constants beside it. All but tanh without any rounding."""
    step = Linear(name="step", reads=(0,), weight=numbers([0.5, 1.0], [0.0, -1.0]), bias=numbers(0.25, 3.0))
    x = numbers([[1.0, 2.0], [0.0, -1.0]])
    # (1, 2) → (11/4, 1) → (21/8, 2); (0, −1) → (−¾, 4) → (31/8, −1)
    twice = numbers([[2.625, 2.0], [3.875, -1.0]])
    assert away_from_exact([step], x, twice, times=2) == 0.0
    assert away_from_exact([step], x, twice + numbers([0.0, 0.0], [0.0, -0.75]), times=2) == 0.75
    tanh = Elementwise(name="tanh", reads=(1,), f="tanh(t)")
    places = Constant(name="places", reads=(), values=numbers([1.0], [2.0], [5.0]))
    both = Linear(name="both", reads=(2, 3), weight=numbers([1.0, 0.0, 4.0]), bias=numbers(0.0))
    own = numbers([[math.tanh(2.75) + 4.0], [math.tanh(-0.75) + 8.0 + 1e-3]])
    assert away_from_exact([step, tanh, places, both], x, own) == about(1e-3, rel=1e-11)
    # More bits are asked for where the first do not tell: of 1 + 2⁻¹⁰⁰ − 1, 64 leave nothing to divide by.
    tiny = Linear(name="tiny", reads=(0,), weight=numbers([1.0, 1.0]), bias=numbers(-1.0))
    inverse = Elementwise(name="inverse", reads=(1,), f="1/t")
    given, answer = numbers([[1.0, 2.0**-100]]), numbers([[2.0**100]])
    assert away_from_exact([tiny, inverse], given, answer, bits=64) == 0.0


def test_functions_and_constants_are_enclosed_where_they_are() -> None:
    tanh = Elementwise(name="tanh", reads=(0,), f="tanh(t)")
    ball = tanh.enclosed(Ball.of(numbers([[0.5]])))
    with mpmath.workdps(60):
        true = mpmath.tanh(mpmath.mpf(0.5))
        assert abs(mpmath.mpf(ball.high.item()) + mpmath.mpf(ball.low.item()) - true) <= ball.radius.item() < 1e-20
        assert tanh.exact(numbers([[0.5]])).item() == pytest.approx(float(true), rel=1e-15)
    places = Constant(name="places", reads=(), values=numbers([1.0, -2.0], [3.0, 4.0]))
    x = torch.zeros(2, 2, 1, dtype=f64)
    assert torch.equal(places.exact(x), places.values.expand(2, 2, 2))
    held = places.enclosed(Ball.of(x))
    assert torch.equal(held.high, places.exact(x)) and not held.radius.any() and not held.low.any()
    box = places.interval(Box(numbers(), numbers()))
    assert (box.lo.tolist(), box.hi.tolist()) == ([1.0, -2.0], [3.0, 4.0])
    phase = ConstantPhase(places, Known(box, box))
    assert torch.equal(phase.written((), x.shape), places.exact(x)) and not list(phase.prompts(x))
    assert phase.own_error(identity_grid(32.0)) == phase.capacity.reach == 0.0


def test_what_a_head_has_inside_is_seen_and_kept_to() -> None:
    """q = (1, −½), k = (½, ¾) and v = (¼, 7/4) at the first position, (2, 2), (−¼, 7/4) and (5/2, −2) at the second."""
    layer, x = heads(), numbers([[0.5, -0.25], [1.5, 1.0]])
    inner = layer.inside(x)
    assert (inner.q, inner.k, inner.v) == (2.0, 1.75, 2.5)
    assert inner.score == about(math.sqrt(8) * math.hypot(0.25, 1.75))
    values = layer.interval(SQUARE)
    assert (values.lo.tolist(), values.hi.tolist()) == (
        pytest.approx([-3.0, -5.0], rel=1e-10),
        pytest.approx([2.5, 7.0], rel=1e-10),
    )
    for part, allowed in ((1 + 1e-12, True), (1 - 1e-6, False)):
        phase = AttentionPhase(layer, Known(SQUARE, SQUARE, replace(inner, score=part * inner.score)), 2)
        with nullcontext() if allowed else pytest.raises(OutOfDomain, match="‖q‖·‖k‖"):
            assert len(list(phase.prompts(x))) == 1


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
    line = identity_grid(32.0)
    phase = LinearPhase(LINEAR, Known(INPUTS, Box(numbers(-100.0, 0.0), numbers(50.0, 1.0))))
    # Numbers up to 100 are divided by 8; rows add up to 11, of two products and a bias, one of them rounded more.
    absolute = 11 * LIFT / 8
    assert phase.scale == 8.0 and (phase.capacity.features, phase.capacity.reach) == (3, 12.5)
    assert (power_for(0.0), power_for(1e-300)) == (1.0, 2.0**-60)
    assert phase.own_error(line) == about(8 * (line.error(12.5, 4, absolute) + gamma(5) * absolute))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("v, value", [(32.0, 2.0), (2.0**-8, 2.0**-12)])
@pytest.mark.parametrize("dtype", [f64, torch.float32], ids=["a fine line", "a coarse line"])
def test_a_head_by_prompt_is_off_by_its_scores_its_values_its_mask_and_its_average(causal, v, value, dtype) -> None:
    """q and k are balanced to 4 each, values brought to 16; a mask is √C at one place of each side.

    On a coarse line products of what two numbers are off by are seen, too.
    """
    inner = replace(INNER, v=v)
    phase, line = AttentionPhase(heads(causal), Known(SQUARE, SQUARE, inner), 3), identity_grid(32.0, dtype)
    strength = 6.0 + math.log(6 / U) + 1.1 if causal else 0.0
    assert phase.strength == about(strength) and (phase.balance, phase.value) == (0.5, value)
    assert phase.capacity.reach == max(16.0, math.sqrt(strength))

    def off(size: float, absolute: float) -> float:
        return line.error(size, 4, absolute * LIFT) + gamma(5) * absolute * LIFT

    e_q, e_k, e_v = off(4.0, 4.0 * 2), off(4.0, 2.5 / 2), off(16.0, 7.0 / value)
    score, root = 2 * (e_q * (4 + e_k) + e_k * 4), math.sqrt(strength)
    if causal:
        edge = line.error(root)
        score += edge * (root + edge) + edge * root + 3 * line.error(0.0) * 2 * (root + 1)
    delta = score + gamma((5 if causal else 2) + 1) * (3.0 + strength) + 68 * U
    average = 2 * gamma(5) * (16 + e_v)
    wanted = value * (math.tanh(delta / 2) * 2 * (16 + e_v) + e_v + 2 * 16 * U + average)
    assert phase.own_error(line) == about(wanted)
    # Of numbers that no power of two balances, the larger one must be in reach.
    for q, k in ((100.0, 20.0), (20.0, 100.0)):
        known = Known(SQUARE, SQUARE, replace(inner, q=q, k=k))
        assert AttentionPhase(heads(), known, 3).capacity.reach == 50.0


def gate(sharpness: float, kinked: bool, size: float = 4.0) -> GatePhase:
    layer = Elementwise(name="gate", reads=(0,), f="Max(t, t/4)", gated=Gated(0.25, kinked))
    known = Known(Box(numbers(-size), numbers(0.75 * size)), Box(numbers(-size / 4), numbers(0.75 * size)))
    return GatePhase(layer, known, 0.25, sharpness, kinked)


def test_a_sharp_gate_errs_at_its_kink_and_by_what_its_score_is_off() -> None:
    """G = 2²⁰ is 2¹¹ in the key and 2⁹ with the number; values up to 4 are read as 16."""
    phase, line = gate(2.0**20, True), identity_grid(2048.0)
    assert (phase.key, phase.query, phase.value, phase.capacity.reach) == (2048.0, 512.0, 0.25, 2048.0)
    near, inner, middle, far = line.errors  # up to 16, 32, 256 and 2048
    part, keys = max(inner / 16, middle / 32, far / 256), (far + near) / 2048
    relative = (1 + part) * (1 + keys) - 1 + 8 * U
    absolute = 2048 * (1 + keys) * near + 2 * 68 * U
    assert phase._score_error(line) == about((absolute, relative))
    own = 0.75 * 0.2785 / 2**20 * math.exp(absolute) / (1 - relative) + 0.25 * line.error(16.0) + 2 * gamma(4) * 4
    assert phase.own_error(line) == about(own)


@pytest.mark.parametrize(
    "sharpness, size, key, value, reach",
    [
        (1.0, 4.0, 1.0, 0.25, 16.0),
        (2.0, 4.0, 2.0, 0.25, 16.0),
        (1.0, 100.0, 1.0, 8.0, 100.0),
        (1.0, 0.5, 1.0, 2.0**-5, 16.0),
    ],
)
def test_a_smooth_gate_is_moved_by_its_score_and_nothing_else(sharpness, size, key, value, reach) -> None:
    phase, line = gate(sharpness, False, size), identity_grid(256.0)
    assert (phase.key, phase.query, phase.value, phase.capacity.reach) == (key, sharpness / key, value, reach)
    near, inner, middle = line.errors  # up to 16, 32 and 256
    part, keys = max(inner / 16, middle / 32) if size == 100 else 0.0, 2 * near / key
    absolute, relative = phase._score_error(line)
    assert absolute == about(key * (1 + keys) * near + 2 * 68 * U)
    assert relative == about((1 + part) * (1 + keys) - 1 + 8 * U, rel=1e-4)
    own = 0.75 * size * math.tanh((absolute + relative * sharpness * size) / 2) + value * near + 2 * gamma(4) * size
    assert phase.own_error(line) == about(own)


@pytest.mark.parametrize(
    "slopes, intercepts, values", [(0, 0, 0), (13, 0, 0), (14, 0, 0), (0, 20, 0), (0, 21, 0), (0, 0, -20), (-20, 0, 9)]
)
def test_a_function_by_prompt_is_off_by_its_grid_its_scores_and_its_values(slopes, intercepts, values) -> None:
    """Whatever rules: powers of two on the numbers of a grid make each of its parts the largest in turn."""
    known = softmax_for("t**2", -3.0, 4.0, 1e-9)
    grid = replace(
        known.grid,
        slopes=known.grid.slopes * 2.0**slopes,
        intercepts=known.grid.intercepts * 2.0**intercepts,
        values=known.grid.values * 2.0**values,
    )
    made = replace(known, grid=grid)
    key, bias = (2.0 ** round(math.log2(a / b) / 2) for a, b in ((grid.range, grid.steepest), (1.0, grid.highest)))
    value = 2.0 ** math.ceil(math.log2(grid.largest / 16))
    assert (made.key, made.bias, made.value) == (key, bias, value)
    sizes = [(grid.steepest * key, grid.range / key), (grid.highest * bias, 1 / bias)]
    assert made.reach == max(*sizes[0], *sizes[1], grid.largest / value)
    line = identity_grid(made.reach)
    score = gamma(3) * grid.score_size
    for a, b in sizes:
        score += line.error(a) * (b + line.error(b)) + line.error(b) * a
    assert made.score_error(line) == about(score)
    own = made.interpolation + grid.rounding_error(made.deviation, made.size, score) + value * line.error(16.0)
    assert made.own_error(line) == about(own) and 8 < grid.largest / value <= 16


def test_a_function_is_scaled_by_powers_of_two() -> None:
    made, line = softmax_for("t**2", -3.0, 4.0, 1e-9), identity_grid(256.0)
    grid = made.grid
    phase = FunctionPhase(Elementwise(name="square", reads=(0,), f="t**2"), Known(INPUTS, INPUTS), made)
    assert phase.own_error(line) == made.own_error(line) and phase.capacity.reach == made.reach
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
        known = Known(Box.beside([boxes[read] for read in layer.reads or (0,)]), output)
        made = {"linear": LinearPhase, "constant": ConstantPhase}.get(layer.kind)
        phases.append(FunctionPhase(layer, known, any_softmax) if made is None else made(layer, known))
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
    assert largest.each.shape == (8, 2) and largest.each[0].tolist() == about(
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
    places = Builder((1, 1))
    places.constant("places", numbers([2.0]))
    places.linear("", "twice", numbers([2.0]), None, 0)
    one = Box(numbers(0.0), numbers(1.0))
    there = travel(places, [one] * 3, [0.0, 0.0])
    assert (there.room(1), there.room(2)) == (math.inf, 5e-3)
    rooms = replace(made, own=[1e-4] + [0.0] * 6).rooms()
    assert rooms[1].tolist() == about([1e-4] * 2, rel=1e-8) and not rooms[0].any()
    lost = replace(made, own=[1.0] + [0.0] * 6).rooms()
    assert not any(each.any() for each in lost[1:7])


def test_products_and_roots_have_their_own_slopes() -> None:
    builder = Builder((1,))
    builder.linear("", "variance", numbers([1.0]))
    _in_two(builder, "root", 4.0, 400.0)
    boxes = [Box(torch.full((size,), -1e3, dtype=f64), torch.full((size,), 1e3, dtype=f64)) for size in builder.sizes]
    boxes[0] = boxes[1] = Box(numbers(4.0), numbers(400.0))
    for number, layer in enumerate(builder.layers, start=1):
        if isinstance(layer, Root):
            boxes[layer.reads[0]] = Box(numbers(0.25), numbers(4.0))
            boxes[number] = Box(numbers(0.1), numbers(10.0))
    made = travel(builder, boxes, [0.0] * len(builder.layers))
    [(last, group)] = [(k, each) for k, each in made.groups.items() if isinstance(each, ReciprocalRoot)]
    found = {k: Off.of(torch.full((1, len(box.lo)), 1e-3, dtype=f64)) for k, box in enumerate(boxes)}
    rows = len(builder.layers) + 1
    found = {k: Off.of(each.each.expand(rows, -1).clone()) for k, each in found.items()}
    assert made._by_map(last, group, found).each[-1].item() == about(1e-3 / (2 * 8) * LIFT**2, rel=1e-11)
    # |x̂|·e_y + |y|·e_x
    product = made.groups[max(k for k in made.groups if k != last)]
    x, y = (boxes[each].size for each in (product.x, product.y))
    alone = made._product(product, {product.x: off(2e-3), product.y: off(3e-3)}).each.item()
    assert alone == about((x * 3e-3 + y * 2e-3) * LIFT)


def test_ranges_of_a_root_in_two_hold_it_for_every_variance() -> None:
    """s = ½ + 2/(1 + e^{t/20}): s²v by its formula on 4,096 pieces, 1/√v from 1/20 to ½, lifted over rounding."""
    builder = Builder((1,))
    builder.linear("", "variance", numbers([1.0]))
    _in_two(builder, "root", 4.0, 400.0)
    register, v = len(builder.layers), Box(numbers(4.0), numbers(400.0))
    group = groups_of(builder.layers)[register]
    assert isinstance(group, ReciprocalRoot) and (group.first, group.v) == (2, 1)
    ranges = root_ranges(builder.layers, group, register, v)
    assert ranges is not None and list(ranges) == list(range(2, register + 1))
    assert ranges[register].lo.item() == about(0.05 * (1 - 1e-12), rel=1e-15)
    assert ranges[register].hi.item() == about(0.5 * (1 + 1e-12), rel=1e-15)
    t = torch.logspace(2, math.log2(400), 20_001, base=2.0, dtype=f64).unsqueeze(-1)
    for layer in builder.layers:
        if isinstance(layer, Root):
            scale = builder.layers[1].exact(t)
            exact, box = scale.square() * t, ranges[layer.reads[0]]
            assert box.lo.item() <= exact.min().item() <= box.lo.item() * 1.003
            assert box.hi.item() >= exact.max().item() >= box.hi.item() / 1.003
    assert root_ranges(builder.layers, group, register, Box(numbers(0.0), numbers(1.0))) is None
    rising = [*builder.layers]
    rising[1] = replace(rising[1], f="t")
    assert root_ranges(rising, group, register, v) is None
    # On a single piece each end is one product: s(b)²·a and s(a)²·b, with a 10¹²th to spare.
    falling = Elementwise(name="falling", reads=(0,), f="1/t")
    found = _squared_times(falling, Box(numbers(2.0), numbers(2.0 * (1 + 2.0**-40))))
    assert found.lo.item() == about(0.5 * (1 - 1e-12 - 2.0**-40 - 2.0**-52), rel=1e-15)
    assert found.hi.item() == about(0.5 * (1 + 1e-12 + 2.0**-52), rel=1e-15)


# Steps that repeat


def halving(steps: int, lipschitz: float | None):
    half = nn.Linear(3, 3).double()
    half.bias.data, half.weight.data = numbers(0.125, -0.25, 0.5), 0.5 * torch.eye(3, dtype=f64)
    if lipschitz is not None:
        half.lipschitz = lipschitz
    start = numbers([1.0, -1.0, 0.5])
    return compile_iteration(half, start, steps), start


def test_errors_of_steps_grow_by_what_a_step_says_of_itself_or_by_its_layers() -> None:
    said, _ = halving(4, 0.75)
    line = identity_grid(said.capacity.reach)
    once = said.body.errors(line)[-1][-1].max().item()
    assert said.certificate_on(line).bound == about(once * (1 + 0.75 + 0.75**2 + 0.75**3) * math.sqrt(3), rel=1e-10)
    plain, _ = halving(4, None)
    assert plain.certificate_on(line).bound == about(once * (1 + 0.5 + 0.25 + 0.125), rel=1e-7)


def test_an_audit_of_steps_counts_what_each_is_off_by_and_what_follows_makes_of_it() -> None:
    program, start = halving(3, 0.75)
    path = [start]
    for _ in range(3):
        path.append(0.5 * path[-1] + numbers(0.125, -0.25, 0.5))  # without any rounding
    path[2] = path[2] + numbers(3.0, -4.0, 0.0) / 4096
    # 5/4096 off, of which 3/4 is left after the last step; that is off by a half of it, against the exact step.
    error = 0.0
    for defect in (0.0, 5 / 4096, 2.5 / 4096):
        error = 0.75 * error + defect * (1 + 2.0**-40)  # as balls lift their distances
    found = replace(program(start), states=torch.stack(path, dim=1).unsqueeze(-2)).audit
    assert found.terms == {"errors of all steps": about(error * (1 + 1e-12), rel=1e-14)}
    # A step that says nothing of itself is followed exactly, from the start: the last state alone counts.
    plain, _ = halving(3, None)
    ran = plain(start)
    states = ran.states.clone()
    states[0, 3, 0] += numbers(3e-4, -4e-4, 0.0)
    assert replace(ran, states=states).audit.terms == {"distance to exact": pytest.approx(4e-4, rel=1e-9)}
    assert ran.bounds.bound == ran.audit.bound and plain.certificate.bound == ran.certificate.bound


def test_a_step_moves_states_apart_by_its_flattest_or_its_steepest_direction() -> None:
    """Eigenvalues 2 and ½ of XᵀX/n; the Hessian of a softmax is at most half of that. Each with 1e-9 to spare."""
    x, classes = numbers([2.0, 0.0], [0.0, 1.0]), torch.tensor([0, 1])
    assert SoftmaxRegressionStep(x, classes, 0.5).lipschitz == about(2 / 3 + 1e-9, rel=1e-13)
    long = SoftmaxRegressionStep(x, classes, 0.5, step_size=1.2).lipschitz
    assert long == about(1.2 * 1.5 * LIFT - 1 + 1e-9, rel=1e-13)
    assert SoftmaxRegressionStep(x, classes, 0.5, step_size=(2 + 0.9e-6) / 1.5).lipschitz == about(1 + 0.9e-6, rel=1e-8)
    assert SoftmaxRegressionStep(x, classes, 0.5, step_size=1.4).lipschitz is None
    y, groups = numbers(1.0, 1.0), torch.tensor([0, 0])
    assert GroupLassoStep(x, y, groups).lipschitz == about(0.75 + 1e-9, rel=1e-13)
    long = GroupLassoStep(x, y, groups, step_size=0.9).lipschitz
    assert long == about(0.9 * 2 * LIFT - 1 + 1.8e-9, rel=1e-13)
    assert GroupLassoStep(x, y, groups, step_size=(2 + 0.9e-6) / 2).lipschitz == about(1 + 0.9e-6, rel=1e-8)
    assert GroupLassoStep(x, y, groups, step_size=1.1).lipschitz is None
    assert GroupLassoStep(x[:1], y[:1], groups).lipschitz == about(1 + 1e-9, rel=1e-13)
    assert GroupLassoStep(x, y, torch.tensor([5, 5]), 0.2).thresholds.item() == about(0.5 * 0.2 * math.sqrt(2))


def test_a_layers_term_is_by_how_much_the_bound_grows_with_it_and_from_where_it_is_lost_it_is_infinite() -> None:
    torch.manual_seed(0)
    x = 2 * torch.rand(8, 2, dtype=f64) - 1
    program = compile_network(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double(), data=x)
    grown = program.errors(identity_grid(program.capacity.reach))[-1].amax(dim=-1).tolist()
    terms = list(program.certificate.terms.values())
    assert grown[0] == 0.0 and terms == about([after - before for before, after in pairwise(grown)])
    # A range as narrow as an error tells nothing of where the exact number is.
    first, *others = program.phases
    narrow = Box(torch.zeros(3, dtype=f64), torch.full((3,), 1e-13, dtype=f64))
    lost = replace(program, phases=(replace(first, known=replace(first.known, output=narrow)), *others)).certificate
    assert [math.isfinite(term) for term in lost.terms.values()] == [False, True, True] and lost.bound == math.inf


def test_numbers_of_a_run_stay_as_far_from_the_edges_as_they_may_be_off() -> None:
    phase = LinearPhase(LINEAR, Known(INPUTS, Box(numbers(0.0, 0.0), numbers(1.0, 1.0))))
    for register, room, allowed in (([0.1, 0.9], 0.05, True), ([0.1, 0.5], 0.2, False), ([0.5, 0.9], 0.2, False)):
        with nullcontext() if allowed else pytest.raises(OutOfDomain, match="outside of its range"):
            _require_in_range(phase, numbers([register]), numbers(room, room))


def test_an_audit_counts_its_own_enclosure_once() -> None:
    """K·x − K·x is 0; its enclosure is about 1e-23·K wide, which is some of what the answer is off by."""
    network = nn.Linear(2, 1, bias=False).double()
    network.weight.data = numbers([2.0**31, -(2.0**31)])
    x = numbers([1 / 3, 1 / 3], [0.2, 0.2])
    program = compile_network(network, data=torch.cat([x, torch.eye(2, dtype=f64)]))
    run = replace(program(x), register=numbers([[2.0**-41]], [[-(2.0**-42)]]))
    ball = enclosures(program.layers, run.inputs)[-1]
    radius, away = ball.radius.max().item(), ball.distance_from(run.register).max().item()
    assert away / 1000 < radius < away / 10 and away >= 2.0**-41
    assert run.audit.terms["its enclosure"] == radius and run.audit.bound == about(away)
    assert run.bounds.bound == run.audit.bound and run.bounds.size == run.last.abs().max().item()


def test_what_data_show_of_a_head_is_widened_by_the_margin() -> None:
    layer, x = heads(), numbers([[0.5, -0.25], [1.5, 1.0]])
    seen, [known] = layer.inside(x), from_data([heads()], x, 0.25)
    assert known.inner == Inner(1.25 * seen.q, 1.25 * seen.k, 1.25 * seen.v, seen.score * 1.5625)
    # One interval for all features, from −¼ to 3/2.
    assert known.inputs.lo.tolist() == about([-0.25 - 0.25 * 1.75 - 0.25e-3 * 1.5] * 2)
    under = _under_a_root(None, Box(numbers(2.0), numbers(3.0)), 0.25)
    assert (under.lo.item(), under.hi.item()) == about((2 / 1.5625, 3 * 1.5625))


def test_an_algorithms_domain_has_room_for_features_that_are_a_little_off() -> None:
    wider = roomy(Domain(4, 2, 2.0, 3.0, 0.5))
    assert (wider.x, wider.y, wider.w) == about((2 + 2e-6, 3 + 3e-6, 0.5 + 0.5e-6))
