"""Theorem 4.1: LoopedNewton against exact Newton–Schulz, and its promises."""

import pytest
import torch
from exact_solvers import newton, regression, within
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Domain, Spectrum
from emulon.core.errors import OutOfDomain, ToleranceTooTight
from emulon.looped import LoopedNewton
from emulon.looped.newton import start_scale
from reproduce.algoformer.convergence import convergence, newton_iterates


def exact(model, xs, ys, x_query, loops):
    return newton(xs.double(), ys.double(), x_query.double(), start_scale(model.domain), loops)


def test_the_papers_size_is_within_1e_7_and_the_certificates_at_every_loop_count():
    xs, ys, x_query = regression(40, 20, seed=1, batch=(2,))
    model = LoopedNewton(Domain.covering(xs, ys, x_query))
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-10
    assert model.certificate_after(50).bound < 1e-3
    for loops in (0, 1, 5, 12, 20, 50):
        audit = model.run(xs, ys, x_query, loops=loops).audit
        within(audit, got[loops], want[loops])
        assert audit.bound < 1e-7


def test_float32_is_within_1e_2_and_the_certificate_of_the_run():
    """Worst-case rounding, amplified by the squared condition number, promises nothing here; the audit does."""
    xs, ys, x_query = (tensor.float() for tensor in regression(40, 20, seed=2, batch=(2,)))
    model = LoopedNewton(Domain.covering(xs, ys, x_query), dtype=torch.float32)
    got = model.run(xs, ys, x_query, loops=50).predictions
    want = exact(model, xs.double(), ys.double(), x_query.double(), 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-2
    for loops in (1, 5, 12, 20, 50):
        audit = model.run(xs, ys, x_query, loops=loops).audit
        within(audit, got[loops], want[loops])
        assert audit.bound < 1


def test_a_tolerance_in_sight_of_the_dtype_is_kept():
    xs, ys, x_query = regression(16, 2, seed=3)
    xs, ys, x_query = xs / xs.abs().max(), ys / ys.abs().max(), x_query / 3
    model = LoopedNewton(Domain.covering(xs, ys, x_query, 1.1), tolerance=1e-8)
    got = model.predict(xs, ys, x_query, loops=12)
    assert model.certificate_after(12).bound <= 1e-8
    model.certificate_after(12).verify(got, exact(model, xs, ys, x_query, 12)[-1])
    assert model.predict(xs.expand(3, 2, 16, 2), ys.expand(3, 2, 16), x_query.expand(3, 2, 2), loops=2).shape == (3, 2)


@settings(max_examples=20, deadline=None)
@given(
    samples=st.integers(4, 7),
    features=st.integers(1, 3),
    condition=st.sampled_from([1.0, 4.0, 16.0]),
    loops=st.integers(0, 15),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 10_000),
)
def test_observed_error_is_below_the_bound_at_the_edges_of_the_domain(samples, features, condition, loops, dtype, seed):
    """Inputs with exactly the eigenvalues `smallest` and `largest`, labels of ±y."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(samples, features, generator=generator, dtype=torch.float64)).Q
    turn = torch.linalg.qr(torch.randn(features, features, generator=generator, dtype=torch.float64)).Q
    values = torch.linspace(1.0, 1 / condition, features, dtype=torch.float64)
    xs = (samples**0.5 * basis * values.sqrt() @ turn).to(dtype)
    ys = torch.where(torch.rand(samples, generator=generator) < 0.5, 2.0, -2.0).to(dtype)
    x_query = xs[0].clone()
    model = LoopedNewton(Domain.covering(xs, ys, x_query), horizon=15, dtype=dtype)
    got, want = model.predict(xs, ys, x_query, loops=loops), exact(model, xs, ys, x_query, loops)[-1]
    model.certificate_after(loops).verify(got, want)
    within(model.run(xs, ys, x_query, loops=loops).audit, got, want)


def test_newton_and_gradient_descent_reach_least_squares_when_their_exact_iterates_do():
    xs, ys, x_query = regression(40, 20, seed=3)
    descent, steps = convergence(xs, ys, x_query, gradient_loops=320, newton_loops=16)
    for curve in (descent, steps):
        inside, outside = curve.reaches(1e-7)
        assert inside == outside is not None
    assert steps.reaches(1e-7)[0] < 20 < descent.reaches(1e-7)[0]
    assert len(descent.transformer) == len(descent.exact) == 321


def test_the_tolerance_is_kept_at_every_loop_count_up_to_the_horizon():
    """Newton forgets errors as it converges: the certificate of the last loop is not the largest."""
    domain = Domain(16, 3, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.02, largest=1.0))
    for tolerance in (1e-2, 1e-4, 1e-6):
        model = LoopedNewton(domain, tolerance, horizon=20)
        bounds = [model.certificate_after(loops).bound for loops in range(21)]
        assert max(bounds) <= tolerance * (1 + 1e-9)


def test_layers_and_heads_are_the_theorems():
    model = LoopedNewton(Domain(8, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.5, largest=1.0)), tolerance=1e-2)
    assert model.pairs == 1 and model.frame.sizes == model.frame.stated
    assert model.slots.width == 3 * 2 + 1 + 4 + 4  # the paper's 2d + 1 + code + 4 indicators, and `step`


def test_bad_conditioning_is_refused():
    with pytest.raises(OutOfDomain, match="conditioned"):
        LoopedNewton(Domain(4, 2, 1.0, 1.0, 1.0))
    model = LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=0.1)))
    xs = torch.ones(4, 2, dtype=torch.float64)
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        model.predict(xs, xs[:, 0], xs[0], loops=1)
    with pytest.raises(ToleranceTooTight):
        LoopedNewton(Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=1e-6)), tolerance=1e-8)


def test_data_too_small_to_be_squared_twice_are_refused():
    with pytest.raises(OutOfDomain, match="rescale the data"):
        LoopedNewton(Domain(1, 1, 3e-151, 1.0, 0.0, spectrum=Spectrum(largest=9e-302, smallest=9e-302)))


def test_eq_5_fails_at_the_closed_end_of_its_interval():
    """α ∈ (0, 2/‖SSᵀ‖] as printed: at 2/‖SSᵀ‖ the largest eigenvalue of M S goes from 2 to 0 and stays there."""
    xs, ys, x_query = regression(40, 4, seed=3)
    gram = xs.mT @ xs
    end = 2 / torch.linalg.matrix_norm(gram @ gram.mT, ord=2).item()
    solved = (x_query * torch.linalg.solve(gram, (xs.mT @ ys.unsqueeze(-1)).squeeze(-1))).sum(-1)
    inside, at_the_end = (newton_iterates(xs, ys, x_query, scale, 30)[-1] for scale in (0.99 * end, end))
    torch.testing.assert_close(inside, solved, atol=1e-10, rtol=0)
    assert (at_the_end - solved).abs() > 1e-2 * solved.abs()
    inverse = end * gram
    for _ in range(30):
        inverse = 2 * inverse - inverse @ gram @ inverse
    top = torch.linalg.eigh(gram).eigenvectors[:, -1]
    assert (top @ inverse @ top).abs() < 1e-6 and start_scale(Domain.covering(xs, ys, x_query)) < end / 2
