"""The linearised softmax: order of accuracy, the choice of c and C, and its bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.attention import attend
from emulon.looped.heads import MOST_PAIRS, Stencil, pair_weights, readout_heads, truncation
from emulon.looped.layer import Circuit, Layer, TokenSlots, read

SLOTS = TokenSlots(("data", "sink"), q=3, k=3, v=2, out=2)


def layer(stencil: Stencil) -> Layer:
    heads = readout_heads(
        SLOTS,
        stencil,
        query=read(SLOTS, q=1.0),
        key=read(SLOTS, k=1.0),
        value=read(SLOTS, v=1.0),
        into="out",
    )
    return Layer(heads, Circuit(SLOTS).matrices, dtype=stencil.dtype)


def tokens(queries, keys, values):
    data = SLOTS.pack(q=queries, k=keys, v=values, data=torch.ones_like(queries[..., :1]))
    sink = SLOTS.pack(sink=torch.ones_like(queries[..., :1, :1]))
    return torch.cat([data, sink], dim=-2)


@pytest.mark.parametrize("pairs", range(1, MOST_PAIRS + 1))
def test_each_further_pair_cancels_one_more_odd_order(pairs):
    weights = pair_weights(pairs)
    assert sum(weights) == 1
    assert all(sum(w * g ** (2 * k) for g, w in enumerate(weights, 1)) == 0 for k in range(1, pairs))
    assert math.log2(truncation(pairs, 0.02) / truncation(pairs, 0.01)) == pytest.approx(2 * pairs, abs=0.01)


@pytest.mark.parametrize("pairs", range(1, MOST_PAIRS + 1))
def test_the_truncation_bound_holds_and_is_reached_at_the_edge(pairs):
    tau, weights = 0.4, pair_weights(pairs)
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    got = sum(float(w) * torch.sinh(g * tau * x) / (g * tau) for g, w in enumerate(weights, 1))
    bound = truncation(pairs, tau)
    assert ((got - x).abs() <= bound * x.abs() + 1e-14).all()
    assert (got - x).abs().max() >= 0.99 * bound - 1e-14


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.integers(1, MOST_PAIRS),
    count=st.integers(1, 30),
    reach=st.sampled_from([1e-3, 1.0, 100.0]),
    spread=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_float32_readout_is_within_its_bound_with_scores_at_the_reach(pairs, count, reach, spread, seed):
    """Float64 is the truth for float32 weights: keys and queries of exactly the length that makes |q·k| = reach."""
    stencil = Stencil(pairs, reach=reach, tokens=count + 1, summed=count, width=4, dtype=torch.float32).balanced()
    generator = torch.Generator().manual_seed(seed)
    direction = torch.nn.functional.normalize(torch.randn(3, generator=generator, dtype=torch.float64), dim=-1)
    noise = torch.randn(2, count, 3, generator=generator, dtype=torch.float64)
    queries, keys = torch.nn.functional.normalize(direction + spread * noise, dim=-1) * (0.999999 * reach) ** 0.5
    values = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    queries, keys, values = queries.float(), keys.float(), values.float()
    out = layer(stencil)(tokens(queries, keys, values))[:-1, SLOTS["out"]]
    exact = queries.double() @ keys.double().mT @ values.double()
    error = (out.double() - exact).abs().amax(dim=0)
    mass = values.double().abs().sum(dim=0)
    assert (error <= stencil.reach * mass * stencil.relative).all()


def test_the_papers_two_heads_lose_half_the_digits_a_symmetric_pair_keeps():
    """One head at c and one at 0 cancel the constant only: O(c) instead of O(c²), each at its own best c."""
    generator = torch.Generator().manual_seed(0)
    scores = (2 * torch.rand(1, 40, generator=generator, dtype=torch.float64) - 1) * 0.9
    values = torch.randn(40, 1, generator=generator, dtype=torch.float64)
    exact, sink = scores @ values, 42.0

    def head(c: float) -> torch.Tensor:
        keys = torch.cat([c * scores.mT, torch.full((1, 1), sink, dtype=torch.float64)])
        shown = torch.cat([values, torch.zeros(1, 1, dtype=torch.float64)])
        return math.exp(sink) * attend(torch.ones(1, 1, dtype=torch.float64), keys, shown)

    powers = [2.0**-k for k in range(2, 40)]
    paper = min(((head(c) - head(0.0)) / c - exact).abs().item() for c in powers)
    ours = min(((head(c) - head(-c)) / (2 * c) - exact).abs().item() for c in powers)
    assert ours < 1e-9 < 1e-8 < paper
