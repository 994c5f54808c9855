"""The slips of the source, lettered in the order of its text: the printed formula fails, the corrected one holds."""

import math

import numpy as np
import pytest
import torch
from construction_cases import (
    DOMAIN,
    data,
    exact_head,
    exact_map,
    exact_step,
    f64,
    gradient_step,
    hopfield,
    normal,
    random_head,
    uniform,
)

from emulon.algorithms import LinearRegression, losses
from emulon.attention import attend
from emulon.constructions import DescentInContext, HeadInTokens
from emulon.constructions.truncated_linear import RowHeads, SharpGrid

ONE = torch.ones(1, 1, dtype=f64)


def leak(nodes, beta, residuals, constant):
    """The weight that query 0 gives to the tokens of other samples, in Theorem 3.1 as printed."""
    scores = beta * (2 * np.multiply.outer(residuals, nodes) - nodes**2)
    scores[0] += beta * constant
    weights = np.exp(scores - scores.max())
    return 1 - weights[0].sum() / weights.sum()


def test_a_the_routing_constant_needs_the_largest_magnitude_not_the_largest_point():
    """Residuals that are never positive: max L is 0, and the printed constant forgets the data altogether."""
    d, b, beta, allowed = 1, 1.0, 3.0, 1e-3
    nodes = np.linspace(-2.0, 0.0, 41)
    residuals = np.array([0.0, -2.0])
    size = 2 * d * b**2 + 2 * b
    assert leak(nodes, beta, residuals, nodes.max() * size - math.log(allowed) / beta) > 0.9
    assert leak(nodes, beta, residuals, 2 * np.abs(nodes).max() * size - math.log(allowed) / beta) <= allowed


def test_a_the_routing_constant_is_printed_as_half_of_what_its_footnote_derives():
    """(D.20) compares one key's scores for two samples: false with the printed M, true with 2·L*·(2dB² + 2B)."""
    d, b = 1, 1.0
    nodes = np.linspace(-2.0, 2.0, 41)
    difference = np.abs(2 * nodes * (2.0 - (-2.0))).max()  # residuals w·x − y = ±2 with |w|, |x|, |y| = 1
    printed = nodes.max() * (2 * d * b**2 + 2 * b)
    assert difference > printed
    assert difference <= 2 * np.abs(nodes).max() * (2 * d * b**2 + 2 * b)


def test_b_the_readout_gives_the_next_weights_only_if_the_values_carry_w():
    module = gradient_step("log_cosh", 1e-6)
    x, y, w = data()
    prompt = module.prompt(x, y, w)
    target = exact_step(losses.log_cosh(), x, y, w, module.step_size)
    printed = module.head.w_v.clone()
    printed[:, module.template.slots["state"]] = 0.0
    out = attend(prompt @ module.head.w_q.mT, prompt @ module.head.w_k.mT, prompt @ printed.mT)
    without = out[: DOMAIN.samples].mean(dim=0)
    assert (without - target).abs().max() > 0.1
    torch.testing.assert_close(without + w, target, atol=1e-6, rtol=0)
    torch.testing.assert_close(module(x, y, w), target, atol=1e-6, rtol=0)


def sharp_output(s, *, change=lambda layer: None, grid=None):
    grid = SharpGrid(5, 6, -1.0, 2.0) if grid is None else grid
    layer = RowHeads.sharp((5, 1, 1), grid, f64)
    change(layer)
    return layer(s.reshape(-1, 5, 1), ONE.expand(s.numel() // 5, 1, 1)).reshape(-1), grid


def test_c_the_offset_of_a_head_is_applied_once():
    """A_h already makes (K + j)·w of the rows that W_K multiplies by K: together j + K(K + j), where K + j is meant."""
    grid, s = SharpGrid(5, 6, -1.0, 2.0), torch.linspace(-1, 2, 100, dtype=f64)
    offsets, index = grid.offsets.unsqueeze(-1), torch.arange(5)

    def error(multiples):
        scores = 2 * grid.beta * multiples * s[:, None, None] + grid.intercepts
        return ((torch.softmax(scores, dim=-1) * grid.values).sum(dim=(1, 2)) - s).abs().max()

    assert error(offsets + index) <= grid.certificate(1, f64).bound
    assert error(index + offsets * (offsets + index)) > 0.5


def test_d_the_queries_belong_in_the_second_block():
    x, weights, _ = random_head(6, 3, 2)
    k, q, v = (x @ w.mT for w in weights)
    head = HeadInTokens(6, 3, 2, 6.0, points=9).assemble
    target = exact_head(x, *weights)
    assert (head(torch.cat([k + q, torch.zeros_like(q), v], dim=-1)) - target).abs().max() > 0.1
    torch.testing.assert_close(head(torch.cat([k, q, v], dim=-1)), target)


def test_e_the_assembling_head_selects_in_the_order_of_d38_not_of_the_sketch():
    x, weights, _ = random_head(6, 3, 2)
    rows = torch.cat([x @ w.mT for w in weights], dim=-1)
    first, second, third = torch.eye(6, dtype=f64).split(2)
    target = exact_head(x, *weights)
    assert (attend(rows @ first.mT, rows @ third.mT, rows @ second.mT) - target).abs().max() > 0.1
    torch.testing.assert_close(attend(rows @ second.mT, rows @ first.mT, rows @ third.mT), target)


@pytest.mark.parametrize("t", [0.0, 0.4])
def test_f_t_is_zero_any_other_shifts_the_answer(t):
    """ℓ_k = k(L_k + L_0) − 2kt interpolates w·x + t, and the theorem speaks of w·x."""
    s = torch.linspace(-0.9, 1.5, 100, dtype=f64)

    def shift(layer):
        index = grid.offsets.unsqueeze(-1) + torch.arange(5)
        layer.intercepts.add_(2 * grid.beta * index * t)

    grid = SharpGrid(5, 6, -1.0, 2.0)
    out, _ = sharp_output(s, change=shift, grid=grid)
    assert (out - (s + t)).abs().max() <= grid.certificate(1, f64).bound
    assert ((out - s).abs().max() <= grid.certificate(1, f64).bound) == (t == 0)


def test_g_the_hopfield_state_asks_with_plus_one_for_minus_l_squared():
    module = hopfield("t**3/20", 1e-6)
    x, y, w = data()
    target = exact_map("t**3/20", x, y, w)
    stored, values = module.patterns(x, y)
    state = module.state(w)
    torch.testing.assert_close(attend(state, module.beta * stored, values), target, atol=1e-6, rtol=0)
    printed = state.clone()
    printed[:, DOMAIN.features + 1] = -1.0  # after w and the −1 of y
    assert (attend(printed, module.beta * stored, values) - target).abs().max() > 0.1


def test_h_the_hopfield_routing_constant_needs_its_beta():
    d, b, beta, allowed = 1, 1.0, 0.05, 1e-4
    nodes, residuals = np.linspace(-2.0, 2.0, 41), np.array([0.5, 0.5])
    assert leak(nodes, beta, residuals, 2 * d * b**2 + b - math.log(allowed)) > 0.3
    corrected = 2 * np.abs(nodes).max() * (2 * d * b**2 + 2 * b) - math.log(allowed) / beta
    assert leak(nodes, beta, residuals, corrected) <= allowed


def table_4_at_80(features, dtype):
    x = uniform(64, 12, features).to(dtype)
    weights = [normal(64, 12, features, seed=k).to(dtype) for k in (1, 2, 3)]
    module = HeadInTokens(12, features, 12, 20.4, points=81, grid="paper", grid_beta=2.0, dtype=dtype)
    return (module(x, *weights).double() - exact_head(x, *weights)).square().mean().item()


def test_i_table_4_is_four_features_wide_and_its_last_entry_is_the_floor_of_float32():
    printed = 5.037e-14
    assert printed / 3 < table_4_at_80(4, torch.float32) < printed * 3
    assert table_4_at_80(24, torch.float32) > printed * 10
    assert table_4_at_80(4, f64) < printed / 10


def test_outside_its_range_the_sum_of_sharp_heads_is_zero_not_the_nearest_end():
    outside = torch.tensor([-3.0, -2.5, 3.5, 4.0, 5.0], dtype=f64)
    out, grid = sharp_output(outside)
    assert out.abs().max() < 1e-6 < (outside.clamp(-1, 2) - out).abs().min()
    at_ends, _ = sharp_output(torch.tensor([-1.0, -1.0, 2.0, 2.0, 2.0], dtype=f64))
    assert (at_ends - torch.tensor([-1.0, -1, 2, 2, 2])).abs().max() <= grid.certificate(1, f64).bound


def test_with_the_printed_spacing_the_last_point_is_silent_and_the_output_falls_off_towards_it():
    """L_p = b has value zero: so the points must be spaced (b − a)/(p − 1) for b to be one that speaks."""
    lo, hi, points = -1.0, 2.0, 18
    printed = SharpGrid(5, 6, lo, hi - (hi - lo) / points)
    assert printed.spacing == pytest.approx((hi - lo) / points) and printed.levels.max() == pytest.approx(hi)
    s = torch.full((5,), hi, dtype=f64)
    assert (sharp_output(s, grid=printed)[0] - hi).abs().max() > 1.9
    ours, grid = sharp_output(s)
    assert grid.points == points and (ours - hi).abs().max() <= grid.certificate(1, f64).bound


def test_the_public_codes_softmax_over_queries_is_not_attention():
    x, weights, _ = random_head(6, 3, 2)
    k, q, v = (x @ w.mT for w in weights)
    over_queries = torch.softmax(q @ k.mT, dim=0) @ v
    target = exact_head(x, *weights)
    assert (over_queries - target).abs().max() > 0.1
    torch.testing.assert_close(torch.softmax(q @ k.mT, dim=1) @ v, target)


def test_no_solved_weights_are_in_the_prompt_where_the_public_scripts_put_them():
    """With the solution in the prompt nothing is left to be learned; ours starts from zero and gets there by itself."""
    x, y = normal(20, 3), normal(20, seed=1)
    solution = torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)
    module = DescentInContext.of(LinearRegression(steps=200), x, y, 1e-6)
    path = module.run(x, y).iterates
    first = module.step.prompt(x, y, path[0])
    slots = module.step.template.slots
    assert not first[:, slots["state"]].any() and not first[:, slots["query_x"]].any()
    assert (path[1] - solution).abs().max() > 0.01
    torch.testing.assert_close(path[-1], solution, atol=1e-5, rtol=0)
