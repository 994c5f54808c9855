"""Every looped transformer against its exact iteration: at the papers' sizes, at the edges of its domain, refused.

The audit of a run is its distance from the exact iteration in Arb (`test_looped_audits` compares that with an oracle):
a certificate holds where the audit is no larger.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.core.errors import BadShape, OutOfDomain, ToleranceTooTight
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedAutoRegression,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.heads import causal_tokens
from emulon.looped.newton import start_scale
from reproduce.algoformer.theorems import newton_iterates

f64, f32 = torch.float64, torch.float32


def normal(seed: int):
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=f64)


def regression(samples: int, features: int, *, seed: int = 0, batch: tuple[int, ...] = (), noise: float = 0.1):
    """Gaussian inputs, Gaussian weights, a query: xs, ys, x_query."""
    draw = normal(seed)
    xs, weights, x_query = draw(*batch, samples, features), draw(*batch, features), draw(*batch, features)
    return xs, (xs @ weights.unsqueeze(-1)).squeeze(-1) + noise * draw(*batch, samples), x_query


def leaky(z: torch.Tensor, slope: float) -> torch.Tensor:
    return torch.where(z > 0, z, slope * z)


def series_task(time: int = 40, size: int = 20, order: int = 3):
    """x_{t+1} = A·Φ(x_{t−2}, x_{t−1}, x_t) + noise, Φ a 3-layer leaky ReLU MLP from 60 to 20 numbers (§5.1)."""
    draw = normal(0)
    weights = [1.3 * draw(*shape) / shape[1] ** 0.5 for shape in [(size, order * size), (size, size), (size, size)]]
    phi = RepresentationNetwork(weights, slope=0.1, bound=8.0)
    mixing, past = 0.15 * draw(size, size), [torch.zeros(size, dtype=f64)] * order
    for _ in range(time):
        past.append(mixing @ phi(torch.cat(past[-order:])) + draw(size))
    return phi, torch.stack(past[order:])


def windows(series: torch.Tensor, order: int) -> torch.Tensor:
    padded = torch.cat([torch.zeros(order, series.shape[1], dtype=f64), series.double()])
    return torch.stack([padded[t : t + order].flatten() for t in range(len(series) + 1)])


def of_series(phi, series, tolerance=None, more=1.001, **options) -> LoopedAutoRegression:
    features = phi(windows(series, options.get("order", 3)))
    domain = Domain.covering(features[:-1], series.double(), features[-1], more)
    return LoopedAutoRegression(domain, phi, tolerance, dtype=series.dtype, **options)


def chain_task(samples: int = 40, size: int = 20, depth: int = 6, slope: float = 0.1) -> torch.Tensor:
    """Chains x, s¹, …, s⁶ of a leaky ReLU MLP of six layers; the last chain is the query (§5.1)."""
    draw = normal(1)
    states = [draw(samples + 1, size)]
    for _ in range(depth):
        states.append(leaky(states[-1] @ (1.3 * draw(size, size) / size**0.5).mT, slope))
    return torch.stack(states, dim=1)


def chain_domain(chains: torch.Tensor, slope: float = 0.1) -> Domain:
    """One domain for all the stages of these chains."""
    stages = []
    for known in range(1, chains.shape[1]):
        labels = leaky(chains[:-1, known], 1 / slope)
        stages.append(Domain.covering(chains[:-1, known - 1], labels, chains[-1, known - 1], 1.001))
    widest = {name: max(getattr(stage, name) for stage in stages) for name in ("y", "norm", "largest")}
    lowest = min(stage.smallest for stage in stages)
    return Domain(40, 20, chains.abs().max().item(), widest.pop("y"), 0.0, spectrum=Spectrum(**widest, smallest=lowest))


def with_representation(dtype: torch.dtype):
    draw = normal(0)
    weights, biases = ([scale * draw(*shape) for _ in range(3)] for scale, shape in ((0.3, (20, 20)), (0.1, (20,))))
    phi = RepresentationNetwork(weights, biases, slope=0.1, bound=5.0)
    xs, ys, x_query = (part.to(dtype) for part in regression(40, 20, seed=6))
    domain = Domain.covering(phi(xs.double()), ys.double(), phi(x_query.double()), 1.001)
    return LoopedGradientDescent(domain, representation=phi, dtype=dtype), (xs, ys, x_query)


def at_papers_size(kind, *, batch=(), tolerance=None):
    def made(dtype: torch.dtype):
        data = [part.to(dtype) for part in regression(40, 20, seed=1, batch=batch)]
        domain = Domain.covering(*(part.double() for part in data), 1 + 1e-6)
        return kind(domain, tolerance if dtype == f64 else None, dtype=dtype), data

    return made


def a_chain(known: int):
    def made(dtype: torch.dtype):
        chains = chain_task().to(dtype)
        domain = chain_domain(chains.double())
        model = LoopedChainOfThought(domain, 1e-6 if dtype == f64 else None, dtype=dtype)
        return model, (chains[:-1], chains[-1, :known])

    return made


def a_series(dtype: torch.dtype):
    phi, series = series_task()
    return of_series(phi, series.to(dtype)), (series.to(dtype),)


# A model and its data in a dtype, and the largest error of float64 at any number of loops.
AT_PAPERS_SIZE = {
    "gradient descent": (at_papers_size(LoopedGradientDescent, batch=(2,), tolerance=1e-7), 1e-10),
    "gradient descent, two heads": (at_papers_size(LoopedGradientDescent, tolerance=1e-3), 1e-7),
    "a representation": (with_representation, 1e-10),
    "newton": (at_papers_size(LoopedNewton, batch=(2,)), 1e-10),
    "causal descent": (at_papers_size(CausalLoopedGradientDescent, tolerance=1e-7), 1e-8),
    "a series of order 3": (a_series, 1e-10),
    **{f"a chain, {known} states known": (a_chain(known), 1e-9) for known in (1, 6)},
}


@pytest.mark.parametrize("dtype", [f64, f32])
@pytest.mark.parametrize("name", AT_PAPERS_SIZE)
def test_at_the_papers_size_every_loop_count_is_within_its_certificate(name, dtype) -> None:
    """Worst-case rounding, amplified by the squared condition number, promises nothing of float32 Newton; audits do."""
    make, largest = AT_PAPERS_SIZE[name]
    model, data = make(dtype)
    predictions = model.run(*data, loops=50).predictions
    for loops in (0, 1, 2, 5, 12, 20, 50):
        run = model.run(*data, loops=loops)
        assert torch.equal(run.prediction, predictions[loops])
        assert run.audit.bound <= min(run.certificate.bound, largest if dtype == f64 else 1e-2)
    if dtype == f64 and name in ("gradient descent", "causal descent"):
        assert model.certificate.bound <= 1e-7


# A model and data at the edges of its domain: entries of ±bound and 0, steps up to 2/L, the eigenvalues granted


def edge_descent(draw, samples, features, bound, rate, dtype, kind=LoopedGradientDescent):
    domain = Domain(samples, features, torch.tensor(bound, dtype=dtype).item(), 2.0, 0.0)
    longest = domain.largest if kind is LoopedGradientDescent else domain.norm**2 * 1.000001
    model = kind(domain, step_size=rate / longest, horizon=12, dtype=dtype)
    return model, (bound * draw(samples, features), 2.0 * draw(samples), bound * draw(features))


def edge_causal(*given):
    return edge_descent(*given, kind=CausalLoopedGradientDescent)


def edge_newton(draw, samples, features, bound, rate, dtype):
    """Inputs with exactly the eigenvalues `smallest` and `largest`."""
    samples = samples + features
    basis, turn = (torch.linalg.qr(normal(samples)(*shape)).Q for shape in ((samples, features), (features, features)))
    values = torch.linspace(1.0, rate / 16, features, dtype=f64)
    xs = (samples**0.5 * basis * values.sqrt() @ turn).to(dtype)
    ys = 2.0 * draw(samples)
    return LoopedNewton(Domain.covering(xs, ys, xs[0]), horizon=12, dtype=dtype), (xs, ys, xs[0].clone())


def edge_series(draw, samples, features, bound, rate, dtype):
    """A representation with biases."""
    size, weights = min(features, 2), normal(samples)
    shapes = [(3, features * size), (2, 3)]
    phi = RepresentationNetwork([weights(*s) for s in shapes], [weights(s[0]) for s in shapes], slope=0.5, bound=2.0)
    series = 2.0 * draw(5, size)
    series[0, 0] = 2.0
    return of_series(phi, series, more=1.0, order=features, horizon=12), (series,)


def edge_chain(draw, samples, features, bound, rate, dtype):
    """States of ±bound that no MLP made: the promise is about gradient descent, whatever the data."""
    chains, known, slope = 2.0 * (2 * draw(5, 4, 2).abs() - 1), features, {0.3: 0.01, 1.0: 0.5, 2.0: 1.0}[rate]
    chains[0] = 2.0
    wide = chains.double()
    domain = Domain.covering(wide[:-1, known - 1], leaky(wide[:-1, known], 1 / slope), wide[-1, known - 1])
    model = LoopedChainOfThought(domain, depth=3, slope=slope, horizon=12, dtype=dtype)
    return model, (chains[:-1], chains[-1, :known])


@pytest.mark.parametrize(
    "make",
    [edge_descent, edge_causal, edge_newton, edge_series, edge_chain],
    ids=lambda f: f.__name__,
)
@settings(max_examples=15, deadline=None)
@given(
    samples=st.integers(1, 6),
    features=st.integers(1, 3),
    bound=st.sampled_from([1e-3, 1.0, 50.0]),
    rate=st.sampled_from([0.3, 1.0, 2.0]),
    loops=st.integers(0, 12),
    dtype=st.sampled_from([f64, f32]),
    seed=st.integers(0, 10_000),
)
def test_errors_are_below_the_bound_at_the_edges_of_the_domain(
    make, samples, features, bound, rate, loops, dtype, seed
):
    generator = torch.Generator().manual_seed(seed)

    def corners(*shape: int) -> torch.Tensor:
        return torch.randint(-1, 2, shape, generator=generator).to(dtype)

    model, data = make(corners, samples, features, bound, rate, dtype)
    run = model.run(*data, loops=loops)
    assert run.audit.bound <= run.certificate.bound


# Runs

XS, YS, X_QUERY = (part / 3 for part in regression(6, 2, seed=4, batch=(2,)))
DOMAIN = Domain.covering(XS, YS, X_QUERY, 1.01)
BUILD = {
    "gradient descent": lambda: LoopedGradientDescent(DOMAIN, horizon=6),
    "newton": lambda: LoopedNewton(DOMAIN, horizon=6),
    "causal gradient descent": lambda: CausalLoopedGradientDescent(DOMAIN, horizon=6),
}


@pytest.fixture(params=BUILD, scope="module")
def model(request):
    return BUILD[request.param]()


def test_the_certificate_is_for_every_number_of_loops_and_a_runs_for_its_own(model) -> None:
    bounds = [model.certificate_after(loops).bound for loops in range(7)]
    assert model.certificate.bound == max(bounds) and model.certificate.scope == "domain"
    run = model.run(XS, YS, X_QUERY, loops=3)
    assert run.certificate.bound == bounds[3] and run.certificate.scope == "domain"
    assert "for every input of the domain" in repr(model)
    assert run.audit.scope == "run" and "for this run only" in str(run.audit)
    assert run.audit.bound < run.certificate.bound


def test_a_run_is_refused_before_it_starts(model) -> None:
    with pytest.raises(OutOfDomain, match="loops"):
        model.run(XS, YS, X_QUERY, loops=7)
    with pytest.raises(OutOfDomain):
        model.run(2 * XS, YS, X_QUERY, loops=1)


def test_every_leading_dimension_is_a_batch_and_labels_may_be_vectors() -> None:
    xs, _, x_query = regression(6, 3, batch=(2, 3))
    ys = torch.stack([regression(6, 3, seed=seed, batch=(2, 3))[1] for seed in (4, 5)], dim=-1)
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), outputs=2, horizon=10)
    run = model.run(xs, ys, x_query, loops=10)
    assert run.prediction.shape == (2, 3, 2) and run.audit.bound <= run.certificate.bound
    alone = model.predict(xs[1, 2], ys[1, 2], x_query[1, 2], loops=10)
    torch.testing.assert_close(alone, run.prediction[1, 2], rtol=0, atol=1e-12)
    scalar = LoopedGradientDescent(DOMAIN, horizon=4)
    assert scalar.predict(XS, YS, X_QUERY, loops=4).shape == (2,)
    assert scalar.predict(XS, YS.unsqueeze(-1), X_QUERY, loops=4).shape == (2, 1)
    assert len(scalar.run(XS, YS, X_QUERY, loops=4).predictions) == 5
    decoder = CausalLoopedGradientDescent(DOMAIN, horizon=4)
    assert decoder.predict(XS, YS, X_QUERY, loops=4).shape == (2,)
    assert decoder.predict(XS, YS.unsqueeze(-1), X_QUERY, loops=4).shape == (2, 1)


# Sizes


def test_the_heads_are_the_fewest_that_keep_the_tolerance() -> None:
    domain = Domain(10, 4, 1.0, 1.0, 0.0)
    pairs = [LoopedGradientDescent(domain, tolerance).pairs for tolerance in (1e-3, 1e-8, 1e-10)]
    assert pairs[0] == 1 and pairs == sorted(pairs) and pairs[-1] > pairs[0]
    with pytest.raises(ToleranceTooTight, match="loosen it"):
        LoopedGradientDescent(domain, 1e-15)


def test_the_tolerance_is_kept_at_every_loop_count_up_to_the_horizon() -> None:
    """Newton forgets errors as it converges: the certificate of the last loop is not the largest."""
    domain = Domain(16, 3, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.02, largest=1.0))
    for tolerance in (1e-2, 1e-4, 1e-6):
        model = LoopedNewton(domain, tolerance, horizon=20)
        bounds = [model.certificate_after(loops).bound for loops in range(21)]
        assert max(bounds) <= tolerance * (1 + 1e-9)
    xs, ys, x_query = regression(16, 2, seed=3)
    xs, ys, x_query = xs / xs.abs().max(), ys / ys.abs().max(), x_query / 3
    run = LoopedNewton(Domain.covering(xs, ys, x_query, 1.1), tolerance=1e-8).run(xs, ys, x_query, loops=12)
    assert run.audit.bound <= run.certificate.bound <= 1e-8


def test_layers_heads_and_widths_are_the_theorems() -> None:
    """Rows of the paper's layouts: x, x/N, y, res, p, indicators; 2d + 1 + code + 4, and `step`; and so on."""
    descent = AT_PAPERS_SIZE["gradient descent, two heads"][0](f64)[0]
    assert descent.frame.heads == {"pre": [1], "loop": [2], "post": [1]}
    assert descent.slots.width == 20 + 3 + 6 + 4 < 2 * 20 + 2 + 6 + 4
    newton = LoopedNewton(Domain(8, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.5, largest=1.0)), tolerance=1e-2)
    assert newton.pairs == 1 and newton.frame.heads == {"pre": [2], "loop": [2], "post": [1, 2]}
    assert newton.slots.width == 3 * 2 + 1 + 4 + 4
    causal = CausalLoopedGradientDescent(Domain(8, 3, 1.0, 1.0, 0.0), tolerance=1e-2)
    assert causal.frame.heads == {"pre": [1], "loop": [2], "post": [2]}
    assert causal.pairs == 1 and causal.slots.width == 4 * 3 + 1 + 1 + 4 + 3
    series = a_series(f64)[0]
    assert series.frame.heads == {"pre": [3, 0, 0, 0], "loop": [2 * series.pairs], "post": []}
    chain = LoopedChainOfThought(chain_domain(chain_task()), 1e-2)
    assert chain.frame.heads == {"pre": [2, 0], "loop": [2], "post": [0]}
    assert len(with_representation(f64)[0].frame.heads["pre"]) == 4


def test_the_numbers_come_out_of_attention() -> None:
    """Take the loop's attention away and nothing is learned; every attention that ran is in the trace."""
    xs, ys, x_query = regression(6, 3)
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), 1e-6)
    with Trace() as trace:
        assert model.predict(xs, ys, x_query, loops=3).abs() > 1e-3
    assert [record.name for record in trace.records] == ["label exchange", *["gradient step"] * 3, "answer"]
    model.frame.loop[0].w_v.zero_()
    assert model.predict(xs, ys, x_query, loops=3) == 0


# What single ones do


def test_eq_5_fails_at_the_closed_end_of_its_interval() -> None:
    """α ∈ (0, 2/‖SSᵀ‖] as printed: at 2/‖SSᵀ‖ the largest eigenvalue of M S goes from 2 to 0 and stays there."""
    xs, ys, x_query = regression(40, 4, seed=3)
    gram = xs.mT @ xs
    end = 2 / torch.linalg.matrix_norm(gram @ gram.mT, ord=2).item()
    solved = (x_query * torch.linalg.solve(gram, xs.mT @ ys)).sum(-1)
    inside, at_the_end = (newton_iterates(xs, ys, x_query, scale, 30)[-1] for scale in (0.99 * end, end))
    assert (inside - solved).abs() < 1e-10 and (at_the_end - solved).abs() > 1e-2 * solved.abs()
    assert start_scale(Domain.covering(xs, ys, x_query)) < end / 2


def test_the_printed_formula_of_a_5_fails_and_the_corrected_one_holds() -> None:
    """A.5 prints w^h inside the sum. The transformer runs w^j, and only w^j decreases every prefix's loss."""
    xs, ys, x_query = regression(12, 3, seed=3, noise=0.0)
    model = CausalLoopedGradientDescent(Domain.covering(xs, ys, x_query), horizon=400)
    run = model.run(xs, ys, x_query, loops=400)
    assert run.audit.bound <= run.certificate.bound
    points, weights = torch.cat([xs, x_query.unsqueeze(0)]), torch.zeros(13, 3, dtype=f64)
    for _ in range(400):
        new = weights.clone()
        for i in range(1, 13):
            residuals = (weights[:i] * xs[:i]).sum(dim=-1) - ys[:i]
            new[i] = weights[i] - model.step_size / i * (residuals.unsqueeze(-1) * xs[:i]).sum(dim=0)
        weights = new
    printed = (weights * points).sum(dim=-1)
    truth = (torch.linalg.lstsq(xs, ys.unsqueeze(-1)).solution.squeeze(-1) * x_query).sum()
    assert (run.prediction - printed).abs().max() > 1
    assert (run.prediction[-1] - truth).abs() < 0.1 < (printed[-1] - truth).abs()


def test_no_position_sees_its_own_label_or_a_later_pair() -> None:
    """Neither the mask nor, as the paper's keys would, its own x: the first position predicts exactly nothing."""
    xs, ys, x_query = regression(6, 3, seed=4)
    model = CausalLoopedGradientDescent(Domain.covering(2 * xs, 2 * ys, 2 * x_query), horizon=10)
    got = model.run(xs, ys, x_query, loops=10).prediction
    changed_x, changed_y = xs.clone(), ys.clone()
    changed_x[4:], changed_y[3:] = 2 * xs[4:], 2 * ys[3:]
    again = model.run(changed_x, changed_y, x_query, loops=10).prediction
    assert torch.equal(got[:4], again[:4]) and not torch.equal(got[4:], again[4:])
    assert got[0] == 0


def test_only_points_hold_weights_in_long_prompts() -> None:
    """A label's token sums over its prefix undivided, which must not slip through the gate."""
    xs = torch.ones(150, 1, dtype=f64)
    model = CausalLoopedGradientDescent(Domain(150, 1, 1.0, 1.0, 0.0), tolerance=1e-4, horizon=3)
    *_, state = model.frame.iterates(causal_tokens(model.slots, xs, xs.squeeze(-1), xs[0]), 3)
    assert not state[0::2, model.slots["w"]].any() and state[3::2, model.slots["w"]].all()


def test_the_window_of_a_series_is_copied_exactly_and_is_zero_before_the_start() -> None:
    phi, series = series_task()
    model = of_series(phi, series, 1e-2, 1.1)
    window = model.frame.pre[0](model.prompt(series))[1:, model.slots["ping"]]
    assert torch.equal(window, windows(series, 3)) and model.pairs == 1
    pair = model.predict(series.expand(2, 40, 20), loops=3)
    torch.testing.assert_close(pair[1], model.predict(series, loops=3), rtol=0, atol=1e-9)
    for bad, error in ((series[:39], BadShape), (3 * series, OutOfDomain)):
        with pytest.raises(error):
            model.predict(bad, loops=3)
    with pytest.raises(BadShape):
        LoopedAutoRegression(model.domain, phi, order=7)


def test_chains_are_checked_and_traced() -> None:
    chains = chain_task()
    model = LoopedChainOfThought(chain_domain(chains), 1e-2)
    with Trace() as trace:
        model.predict(chains[:-1], chains[-1, :2], loops=1)
    assert trace["find the stage"].weights[0, 5].argmax() == 281  # everyone looks at the last known state
    with pytest.raises(BadShape, match="depth"):
        model.predict(chains[:-1], chains[-1], loops=1)
    with pytest.raises(OutOfDomain):
        model.predict(2 * chains[:-1], chains[-1, :2], loops=1)
    with pytest.raises(OutOfDomain, match="slope"):
        LoopedChainOfThought(model.domain, slope=0.0)
    assert LoopedChainOfThought(model.domain, depth=2).step_size == 1 / model.domain.largest


# Refusals


def test_what_is_outside_the_domain_is_refused() -> None:
    domain = Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(largest=0.5))
    model, xs = LoopedGradientDescent(domain), 0.1 * torch.ones(4, 2, dtype=f64)
    ys, x_query = torch.zeros(4, dtype=f64), torch.zeros(2, dtype=f64)
    model.predict(xs, ys, x_query, loops=1)
    for bad, error, line in (
        ((20 * xs, ys), OutOfDomain, "rescale or build"),
        ((math.nan * xs, ys), OutOfDomain, "NaN"),
        ((10 * xs, ys), OutOfDomain, "eigenvalues"),
        ((xs.float(), ys), OutOfDomain, "float32"),
        ((xs[:3], ys[:3]), BadShape, "xs"),
        ((xs, torch.zeros(4, 2, dtype=f64)), BadShape, "outputs"),
    ):
        with pytest.raises(error, match=line):
            model.predict(*bad, x_query, loops=1)
    conditioned = LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.1)))
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        conditioned.predict(torch.ones(4, 2, dtype=f64), ys, x_query, loops=1)
    with pytest.raises(ToleranceTooTight):
        LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=1e-6)), tolerance=1e-8)


TINY, ONE = torch.tensor([[-7e-151]], dtype=f64), torch.ones(1, dtype=f64)
WIDE = Domain(8, 3, 1.0, 1.0, 0.0)
REFUSED = {
    "float32 or float64": lambda: LoopedGradientDescent(WIDE, dtype=torch.bfloat16),
    "step size 5": lambda: LoopedGradientDescent(WIDE, step_size=5.0),
    "step size 1": lambda: CausalLoopedGradientDescent(WIDE, step_size=1.0),
    "nothing is learned": lambda: LoopedGradientDescent(Domain(3, 2, 0.0, 1.0, 0.0)),
    "conditioned": lambda: LoopedNewton(Domain(4, 2, 1.0, 1.0, 1.0)),
    "rescale the data": lambda: LoopedNewton(
        Domain(1, 1, 3e-151, 1.0, 0.0, spectrum=Spectrum(largest=9e-302, smallest=9e-302))
    ),
    # Found by random cases: 1/L is no float64 any more.
    "no gate shuts out": lambda: LoopedGradientDescent(Domain.covering(TINY, ONE, ONE, 1.5), horizon=2),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_built_is_refused(message) -> None:
    with pytest.raises(OutOfDomain, match=message):
        REFUSED[message]()
