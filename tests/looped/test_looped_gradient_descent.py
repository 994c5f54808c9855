"""Theorem 3.1: LoopedGradientDescent against exact gradient descent, and its promises."""

import pytest
import torch
from exact_solvers import gradient_descent, regression, within
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.core.errors import BadShape, OutOfDomain, ToleranceTooTight
from emulon.looped import LoopedGradientDescent, RepresentationNetwork


def exact(model, xs, ys, x_query, loops):
    doubles = (tensor.double() for tensor in (xs, ys.unsqueeze(-1), x_query))
    return gradient_descent(*doubles, model.step_size, loops).squeeze(-1)


def test_the_papers_size_is_within_1e_7_and_the_certificate_at_every_loop_count():
    xs, ys, x_query = regression(40, 20, seed=1, batch=(2,))
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), tolerance=1e-7)
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-10
    assert model.certificate_after(50).bound <= 1e-7
    assert within(model.run(xs, ys, x_query, loops=50).audit, got[50], want[50]) < 1e-10


def test_the_theorems_two_heads_reach_1e_7():
    xs, ys, x_query = regression(40, 20, seed=2)
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), tolerance=1e-3)
    assert model.frame.sizes == {**model.frame.stated, "pre": type(model.frame.stated["pre"])(1, 1)}
    assert model.slots.width == 20 + 3 + 6 + 4 < 2 * 20 + 2 + 6 + 4  # the paper's rows x, x/N, y, res, p, indicators
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    assert model.certificate_after(50).verify(got, want) < 1e-7


def test_float32_is_within_1e_2_and_its_certificates():
    xs, ys, x_query = (tensor.float() for tensor in regression(40, 20, seed=3, batch=(2,)))
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), dtype=torch.float32)
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-2
    audit = model.run(xs, ys, x_query, loops=50).audit
    within(audit, got[50], want[50])
    assert audit.bound < 2e-2


@settings(max_examples=20, deadline=None)
@given(
    samples=st.integers(1, 6),
    features=st.integers(1, 4),
    bound=st.sampled_from([1e-3, 1.0, 50.0]),
    rate=st.sampled_from([0.3, 1.0, 2.0]),
    loops=st.integers(0, 12),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    data=st.data(),
)
def test_observed_error_is_below_the_bound_at_the_edges_of_the_domain(
    samples, features, bound, rate, loops, dtype, data
):
    """Entries of ±bound and 0: scores at the reach, eigenvalues at `largest`, labels at y."""
    bound = torch.tensor(bound, dtype=dtype).item()
    domain = Domain(samples, features, bound, 2.0, 0.0)
    model = LoopedGradientDescent(domain, step_size=rate / domain.largest, horizon=12, dtype=dtype)
    edge = st.sampled_from([-1.0, 0.0, 1.0])

    def drawn(*shape: int) -> torch.Tensor:
        size = torch.Size(shape).numel()
        return torch.tensor(data.draw(st.lists(edge, min_size=size, max_size=size)), dtype=dtype).reshape(shape)

    xs, ys, x_query = bound * drawn(samples, features), 2.0 * drawn(samples), bound * drawn(features)
    got = model.predict(xs, ys, x_query, loops=loops)
    want = exact(model, xs, ys, x_query, loops)[-1]
    model.certificate_after(loops).verify(got, want)
    within(model.run(xs, ys, x_query, loops=loops).audit, got, want)


def test_every_leading_dimension_is_a_batch_and_labels_may_be_vectors():
    xs, _, x_query = regression(6, 3, batch=(2, 3))
    ys = torch.stack([regression(6, 3, seed=seed, batch=(2, 3))[1] for seed in (4, 5)], dim=-1)
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), outputs=2, horizon=10)
    got = model.predict(xs, ys, x_query, loops=10)
    assert got.shape == (2, 3, 2)
    model.certificate_after(10).verify(got, gradient_descent(xs, ys, x_query, model.step_size, 10)[-1])
    alone = model.predict(xs[1, 2], ys[1, 2], x_query[1, 2], loops=10)
    torch.testing.assert_close(alone, got[1, 2], rtol=0, atol=1e-12)


def test_a_representation_runs_inside_the_pre_transformer():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(20, 20, generator=generator, dtype=torch.float64) * 0.3 for _ in range(3)]
    biases = [torch.randn(20, generator=generator, dtype=torch.float64) * 0.1 for _ in range(3)]
    phi = RepresentationNetwork(weights, biases, slope=0.1, bound=5.0)
    xs, ys, x_query = regression(40, 20, seed=6)
    model = LoopedGradientDescent(Domain.covering(phi(xs), ys, phi(x_query), 1.001), representation=phi)
    got = model.run(xs, ys, x_query, loops=50).predictions
    want = gradient_descent(phi(xs), ys.unsqueeze(-1), phi(x_query), model.step_size, 50).squeeze(-1)
    for loops in (0, 1, 20, 50):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-10
    assert model.frame.sizes["pre"].layers == model.frame.stated["pre"].layers == 4
    within(model.run(xs, ys, x_query, loops=20).audit, got[20], want[20])


def test_the_heads_are_the_fewest_that_keep_the_tolerance():
    domain = Domain(10, 4, 1.0, 1.0, 0.0)
    pairs = [LoopedGradientDescent(domain, tolerance).pairs for tolerance in (1e-3, 1e-8, 1e-10)]
    assert pairs[0] == 1 and pairs == sorted(pairs) and pairs[-1] > pairs[0]
    with pytest.raises(ToleranceTooTight, match="loosen it"):
        LoopedGradientDescent(domain, 1e-15)


def test_the_numbers_come_out_of_attention():
    """Take the loop's attention away and nothing is learned; every attention that ran is in the trace."""
    xs, ys, x_query = regression(6, 3)
    model = LoopedGradientDescent(Domain.covering(xs, ys, x_query), 1e-6)
    with Trace() as trace:
        assert model.predict(xs, ys, x_query, loops=3).abs() > 1e-3
    assert [record.name for record in trace.records] == [
        "label exchange",
        "gradient step",
        "gradient step",
        "gradient step",
        "answer",
    ]
    model.frame.loop[0].w_v.zero_()
    assert model.predict(xs, ys, x_query, loops=3) == 0


def test_nothing_is_trainable_and_weights_are_plain_matrices():
    model = LoopedGradientDescent(Domain(4, 2, 1.0, 1.0, 1.0))
    assert not list(model.parameters())
    layer = model.frame.loop[0]
    assert layer.w_v.shape == (2 * model.pairs, model.slots.width, model.slots.width)
    assert layer.w_1.shape[1] == layer.w_2.shape[0] == model.slots.width
    assert "theorem" in repr(model)


def test_what_is_outside_the_domain_is_refused():
    domain = Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(largest=0.5))
    model, xs = LoopedGradientDescent(domain), 0.1 * torch.ones(4, 2, dtype=torch.float64)
    ys, x_query = torch.zeros(4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    model.predict(xs, ys, x_query, loops=1)
    for bad in (20 * xs, xs.index_fill(0, torch.tensor([0]), torch.nan), 10 * xs):
        with pytest.raises(OutOfDomain):
            model.predict(bad, ys, x_query, loops=1)
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        model.predict(10 * xs, ys, x_query, loops=1)
    with pytest.raises(OutOfDomain, match="loops"):
        model.predict(xs, ys, x_query, loops=51)
    with pytest.raises(OutOfDomain, match="float32"):
        model.predict(xs.float(), ys, x_query, loops=1)
    with pytest.raises(BadShape):
        model.predict(xs[:3], ys[:3], x_query, loops=1)
    with pytest.raises(BadShape, match="outputs"):
        model.predict(xs, torch.zeros(4, 2, dtype=torch.float64), x_query, loops=1)
    with pytest.raises(OutOfDomain, match="float32 or float64"):
        LoopedGradientDescent(domain, dtype=torch.bfloat16)
    with pytest.raises(OutOfDomain, match="step size"):
        LoopedGradientDescent(domain, step_size=5.0)


def test_data_so_small_that_predictions_may_overflow_are_refused():
    """Found by random cases: 1/L is no float64 any more."""
    tiny, one = torch.tensor([[-7e-151]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    with pytest.raises(OutOfDomain, match="no gate shuts out"):
        LoopedGradientDescent(Domain.covering(tiny, one, one, 1.5), horizon=2)
