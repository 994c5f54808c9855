"""Theorems 3.2 and 3.3 at the paper's sizes, against Φ* and gradient descent run outside a transformer."""

import pytest
import torch
from exact_solvers import gradient_descent, leaky, within
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.core.errors import BadShape, OutOfDomain
from emulon.looped import LoopedAutoRegression, LoopedChainOfThought, RepresentationNetwork


def normal(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def series_task(time: int = 40, size: int = 20, order: int = 3):
    """x_{t+1} = A·Φ(x_{t−2}, x_{t−1}, x_t) + noise, Φ a 3-layer leaky ReLU MLP from 60 to 20 numbers (§5.1)."""
    draw = normal(0)
    shapes = [(size, order * size), (size, size), (size, size)]
    weights = [1.3 * draw(*shape) / shape[1] ** 0.5 for shape in shapes]
    phi = RepresentationNetwork(weights, slope=0.1, bound=8.0)
    mixing, past = 0.15 * draw(size, size), [torch.zeros(size, dtype=torch.float64)] * order
    for _ in range(time):
        past.append(mixing @ phi(torch.cat(past[-order:])) + draw(size))
    windows = torch.stack([torch.cat(past[t : t + order]) for t in range(time + 1)])
    return phi, torch.stack(past[order:]), phi(windows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_autoregression_of_order_3_is_within_1e_6_of_running_it_outside(dtype):
    phi, series, features = series_task()
    series = series.to(dtype)
    if dtype == torch.float32:
        padded = torch.cat([torch.zeros(3, 20, dtype=torch.float64), series.double()])
        features = phi(torch.stack([padded[t : t + 3].flatten() for t in range(41)]))
    domain = Domain.covering(features[:-1], series.double(), features[-1], 1.001)
    model = LoopedAutoRegression(domain, phi, dtype=dtype)
    got = model.run(series, loops=50).predictions
    want = gradient_descent(features[:-1], series.double(), features[-1], model.step_size, 50)
    for loops in range(51):
        error = model.certificate_after(loops).verify(got[loops], want[loops])
        assert error < (1e-10 if dtype == torch.float64 else 1e-2)
    within(model.run(series, loops=20).audit, got[20], want[20])
    assert model.run(series, loops=50).audit.bound < (1e-6 if dtype == torch.float64 else 1e-1)
    assert model.frame.heads == {"pre": [3, 0, 0, 0], "loop": [2 * model.pairs], "post": []}
    for name, size in model.frame.sizes.items():
        assert size.layers <= model.frame.stated[name].layers


def test_the_window_is_copied_exactly_and_is_zero_before_the_start():
    phi, series, features = series_task()
    model = LoopedAutoRegression(Domain.covering(features[:-1], series, features[-1], 1.1), phi, 1e-2)
    window = model.frame.pre[0](model.prompt(series))[1:, model.slots["ping"]]
    assert torch.equal(window, model.windows(series))
    assert not window[0].any() and torch.equal(window[2], torch.cat([series[0] * 0, series[0], series[1]]))
    assert model.pairs == 1 and model.frame.sizes["loop"] == model.frame.stated["loop"]


def test_series_are_batched_and_checked():
    phi, series, features = series_task()
    model = LoopedAutoRegression(Domain.covering(features[:-1], series, features[-1], 1.1), phi, 1e-2)
    pair = model.predict(series.expand(2, 40, 20), loops=3)
    torch.testing.assert_close(pair[1], model.predict(series, loops=3), rtol=0, atol=1e-9)
    with pytest.raises(BadShape):
        model.predict(series[:39], loops=3)
    with pytest.raises(OutOfDomain):
        model.predict(3 * series, loops=3)
    with pytest.raises(BadShape):
        LoopedAutoRegression(model.domain, phi, order=7)


@settings(max_examples=10, deadline=None)
@given(order=st.integers(1, 3), size=st.integers(1, 2), loops=st.integers(0, 8), seed=st.integers(0, 10_000))
def test_series_at_the_edges_of_the_domain_stay_within_the_bound(order, size, loops, seed):
    """Entries of ±bound, float32 against float64, a representation with biases."""
    draw = normal(seed)
    phi = RepresentationNetwork([draw(3, order * size), draw(2, 3)], [draw(3), draw(2)], slope=0.5, bound=2.0)
    series = (2.0 * draw(5, size).sign()).float()
    padded = torch.cat([torch.zeros(order, size, dtype=torch.float64), series.double()])
    features = phi(torch.stack([padded[t : t + order].flatten() for t in range(6)]))
    domain = Domain.covering(features[:-1], series.double(), features[-1])
    model = LoopedAutoRegression(domain, phi, order=order, horizon=8, dtype=torch.float32)
    got = model.predict(series, loops=loops)
    want = gradient_descent(features[:-1], series.double(), features[-1], model.step_size, loops)[-1]
    model.certificate_after(loops).verify(got, want)
    within(model.run(series, loops=loops).audit, got, want)


def chain_task(samples: int = 40, size: int = 20, depth: int = 6, slope: float = 0.1):
    """Chains x, s¹, …, s⁶ of a leaky ReLU MLP of six layers; the last chain is the query (§5.1)."""
    draw = normal(1)
    states = [draw(samples + 1, size)]
    for _ in range(depth):
        states.append(leaky(states[-1] @ (1.3 * draw(size, size) / size**0.5).mT, slope))
    return torch.stack(states, dim=1)


def chain_domain(chains, slope):
    """One domain for all the stages of these chains."""
    stages = []
    for known in range(1, chains.shape[1]):
        labels = leaky(chains[:-1, known], 1 / slope)
        stages.append(Domain.covering(chains[:-1, known - 1], labels, chains[-1, known - 1], 1.001))
    widest = {name: max(getattr(stage, name) for stage in stages) for name in ("y", "norm", "largest")}
    lowest = min(stage.smallest for stage in stages)
    return Domain(40, 20, chains.abs().max().item(), widest.pop("y"), 0.0, spectrum=Spectrum(**widest, smallest=lowest))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("known", [1, 3, 6])
def test_a_chain_of_six_layers_is_continued_within_1e_6_of_running_it_outside(known, dtype):
    slope, chains = 0.1, chain_task().to(dtype)
    model = LoopedChainOfThought(
        chain_domain(chains.double(), slope), 1e-6 if dtype == torch.float64 else None, dtype=dtype
    )
    got = model.run(chains[:-1], chains[-1, :known], loops=50).predictions
    wide = chains.double()
    labels = leaky(wide[:-1, known], 1 / slope)
    want = leaky(gradient_descent(wide[:-1, known - 1], labels, wide[-1, known - 1], model.step_size, 50), slope)
    for loops in range(51):
        error = model.certificate_after(loops).verify(got[loops], want[loops])
        assert error < (1e-9 if dtype == torch.float64 else 1e-2)
    within(model.run(chains[:-1], chains[-1, :known], loops=20).audit, got[20], want[20])


def test_the_filter_keeps_exactly_the_tokens_of_the_asked_stage():
    slope, chains = 0.1, chain_task()
    model = LoopedChainOfThought(chain_domain(chains, slope), 1e-2)
    tokens = model.prompt(chains[:-1], chains[-1, :4])
    for layer in model.frame.pre:
        tokens = layer(tokens)
    train = torch.zeros(len(tokens), 1, dtype=torch.float64)
    train[3:280:7] = 1.0
    assert torch.equal(tokens[:, model.slots["train"]], train)
    kept = tokens[:, model.slots["x"]]
    assert torch.equal(kept[3:280:7], chains[:-1, 3]) and torch.equal(kept[-2], chains[-1, 3])
    assert not kept[(train + tokens[:, model.slots["query"]]).squeeze(-1) == 0].any()
    torch.testing.assert_close(tokens[3:280:7, model.slots["res"]], -leaky(chains[:-1, 4], 1 / slope))
    assert model.frame.heads == {"pre": [2, 0], "loop": [2], "post": [0]}
    for name, size in model.frame.sizes.items():
        assert size.layers <= model.frame.stated[name].layers and size.heads <= model.frame.stated[name].heads


@settings(max_examples=10, deadline=None)
@given(
    known=st.integers(1, 3),
    slope=st.sampled_from([0.01, 0.5, 1.0]),
    loops=st.integers(0, 8),
    seed=st.integers(0, 10_000),
)
def test_chains_at_the_edges_of_the_domain_stay_within_the_bound(known, slope, loops, seed):
    """States of ±bound that no MLP made: the promise is about gradient descent, whatever the data."""
    chains = (2.0 * normal(seed)(5, 4, 2).sign()).float()
    wide = chains.double()
    labels = leaky(wide[:-1, known], 1 / slope)
    domain = Domain.covering(wide[:-1, known - 1], labels, wide[-1, known - 1])
    model = LoopedChainOfThought(domain, depth=3, slope=slope, horizon=8, dtype=torch.float32)
    got = model.predict(chains[:-1], chains[-1, :known], loops=loops)
    exact = gradient_descent(wide[:-1, known - 1], labels, wide[-1, known - 1], model.step_size, loops)[-1]
    model.certificate_after(loops).verify(got, leaky(exact, slope))
    within(model.run(chains[:-1], chains[-1, :known], loops=loops).audit, got, leaky(exact, slope))


def test_chains_are_checked_and_traced():
    chains = chain_task()
    model = LoopedChainOfThought(chain_domain(chains, 0.1), 1e-2)
    with Trace() as trace:
        model.predict(chains[:-1], chains[-1, :2], loops=1)
    assert trace["find the stage"].weights[0, 5].argmax() == 281  # everyone looks at the last known state
    with pytest.raises(BadShape, match="depth"):
        model.predict(chains[:-1], chains[-1], loops=1)
    with pytest.raises(OutOfDomain):
        model.predict(2 * chains[:-1], chains[-1, :2], loops=1)
    with pytest.raises(OutOfDomain, match="slope"):
        LoopedChainOfThought(model.domain, slope=0.0)


def test_a_small_chain_is_audited_to_rounding():
    """Four chains of three states of two numbers, negative ones among them; the third state is asked for."""
    draw = normal(7)
    weights = [draw(2, 2) / 2 for _ in range(2)]
    chains = [2 * draw(5, 2).clamp(-1, 1)]
    for weight in weights:
        chains.append(leaky(chains[-1] @ weight.mT, 0.5))
    states = torch.stack(chains, dim=1)
    model = LoopedChainOfThought(Domain(4, 2, 6.0, 12.0, 0.0), depth=2, slope=0.5, horizon=4)
    assert model.step_size == 1 / model.domain.largest
    run = model.run(states[:4], states[4, :2], loops=4)
    labels = torch.where(states[:4, 2] > 0, states[:4, 2], 2 * states[:4, 2])
    exact = leaky(gradient_descent(states[:4, 1], labels, states[4, 1], model.step_size, 4)[-1], 0.5)
    within(run.audit, run.prediction, exact)
    assert run.audit.bound < 1e-9 and (labels < 0).any()
