"""Looped transformers: runs, sizes, slips of the source, refusals.

The audit of a run is its distance from the exact iteration in Arb (`test_looped_audits` compares that with an oracle):
a certificate holds where the audit is no larger.
"""

import math

import pytest
import torch

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.certify.domain import SLACK
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
    # Newton forgets errors as it converges: the certificate of the last loop is not the largest.
    domain = Domain(16, 3, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.02, largest=1.0))
    model = LoopedNewton(domain, 1e-4, horizon=20)
    assert max(model.certificate_after(loops).bound for loops in range(21)) <= 1e-4 * (1 + 1e-9)
    with pytest.raises(ToleranceTooTight, match="loosen it"):
        LoopedGradientDescent(Domain(10, 4, 1.0, 1.0, 0.0), 1e-15)


SMALL = Domain(8, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.5, largest=1.0))
PHI = RepresentationNetwork([torch.eye(6, dtype=f64), torch.ones(2, 6, dtype=f64) / 6], bound=1.0)


def test_layers_heads_and_widths_are_the_theorems() -> None:
    """Rows of the paper's layouts: x, x/N, y, res, p, indicators; 2d + 1 + code + 4, and `step`; and so on."""
    descent, newton, causal = (
        kind(SMALL, 0.1) for kind in (LoopedGradientDescent, LoopedNewton, CausalLoopedGradientDescent)
    )
    assert descent.frame.heads == {"pre": [1], "loop": [2], "post": [1]}
    assert newton.frame.heads == {"pre": [2], "loop": [2], "post": [1, 2]}
    assert causal.frame.heads == {"pre": [1], "loop": [2], "post": [2]}
    widths = [2 + 3 + 4 + 4, 3 * 2 + 1 + 4 + 4, 4 * 2 + 1 + 1 + 4 + 3]
    assert [model.slots.width for model in (descent, newton, causal)] == widths
    series = LoopedAutoRegression(SMALL, PHI, 0.1, order=3)
    assert series.frame.heads == {"pre": [3, 0, 0], "loop": [2], "post": []}
    assert LoopedChainOfThought(SMALL, 0.1).frame.heads == {"pre": [2, 0], "loop": [2], "post": [0]}
    assert LoopedGradientDescent(SMALL, 0.1, representation=PHI).frame.heads["pre"] == [0, 0, 1]


@pytest.mark.parametrize("kind", [LoopedGradientDescent, CausalLoopedGradientDescent])
def test_at_the_papers_size_a_ten_millionth_is_promised_up_to_fifty_loops(kind) -> None:
    data = regression(40, 20, seed=1)
    model = kind(Domain.covering(*data, 1 + 1e-6), 1e-7)
    run = model.run(*data, loops=50)
    assert run.audit.bound <= run.certificate.bound <= model.certificate.bound <= 1e-7


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


# Refusals


def test_the_filter_keeps_exactly_the_tokens_of_the_asked_stage() -> None:
    chains = torch.rand(9, 4, 2, dtype=f64, generator=torch.Generator().manual_seed(0))
    model = LoopedChainOfThought(Domain(8, 2, 1.0, 1.0, 0.0), 1e9, depth=3, slope=0.5)
    tokens = model.prompt(chains[:-1], chains[-1, :2])
    for layer in model.frame.pre:
        tokens = layer(tokens)
    train = torch.zeros(len(tokens), 1, dtype=f64)
    train[1:32:4] = 1.0
    assert torch.equal(tokens[:, model.slots["train"]], train)
    kept = tokens[:, model.slots["x"]]
    assert torch.equal(kept[1:32:4], chains[:-1, 1]) and not kept[2:32:4].any()
    assert torch.equal(tokens[1:32:4, model.slots["res"]], -chains[:-1, 2])  # what follows, before the activation


def test_series_and_chains_are_checked() -> None:
    domain = Domain(8, 2, 1.0, 1.0, 0.0)
    ones, zero = torch.ones(8, 2, dtype=f64), torch.zeros(8, 2, dtype=f64)
    series, chain = LoopedAutoRegression(domain, PHI, order=3), LoopedChainOfThought(domain, depth=2)
    chains = ones.unsqueeze(1).expand(8, 3, 2)
    for call, error, line in (
        (lambda: series.predict(zero[:7], loops=3), BadShape, "series"),
        (lambda: series.predict(3 * ones, loops=3), OutOfDomain, "series windows"),
        (lambda: LoopedAutoRegression(domain, PHI, order=4), BadShape, "not 4 vectors"),
        (lambda: chain.predict(chains, ones[:3], loops=1), BadShape, "depth"),
        (lambda: chain.predict(2 * chains, ones[:2], loops=1), OutOfDomain, "chains"),
        (lambda: LoopedChainOfThought(domain, slope=0.0), OutOfDomain, "slope"),
    ):
        with pytest.raises(error, match=line):
            call()
    assert chain.step_size == 1 / domain.largest
    batch = series.predict(torch.stack([zero, 0.1 * ones]), loops=3)
    torch.testing.assert_close(batch[1], series.predict(0.1 * ones, loops=3), rtol=0, atol=1e-9)


def test_what_is_outside_the_domain_is_refused() -> None:
    domain = Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(largest=0.5))
    model, xs = LoopedGradientDescent(domain, horizon=6), 0.1 * torch.ones(4, 2, dtype=f64)
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
    with pytest.raises(OutOfDomain, match="loops"):
        model.predict(xs, ys, x_query, loops=7)
    conditioned = LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.1)))
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        conditioned.predict(torch.ones(4, 2, dtype=f64), ys, x_query, loops=1)
    with pytest.raises(ToleranceTooTight):
        LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=1e-6)), tolerance=1e-8)


def test_a_causal_loop_takes_half_the_longest_step_by_default() -> None:
    longest = 2 / (DOMAIN.norm * (1 + SLACK)) ** 2
    assert CausalLoopedGradientDescent(DOMAIN, horizon=1).step_size == pytest.approx(longest / 2, rel=1e-12)


TINY, ONE = torch.tensor([[-7e-151]], dtype=f64), torch.ones(1, dtype=f64)
WIDE = Domain(8, 3, 1.0, 1.0, 0.0)
REFUSED = {
    "float32 or float64": lambda: LoopedGradientDescent(WIDE, dtype=torch.bfloat16),
    "step size 5": lambda: LoopedGradientDescent(WIDE, step_size=5.0),
    "step size 0": lambda: LoopedGradientDescent(WIDE, step_size=0.0),
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
