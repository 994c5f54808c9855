"""Theorem 4.2: every position of the decoder solves its own prefix."""

import pytest
import torch
from exact_solvers import prefix_gradient_descent, regression, within
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Domain
from emulon.core.errors import OutOfDomain
from emulon.looped import CausalLoopedGradientDescent
from emulon.looped.tokens import causal_tokens


def exact(model, xs, ys, x_query, loops, **slip):
    return prefix_gradient_descent(xs.double(), ys.double(), x_query.double(), model.step_size, loops, **slip)


def test_the_papers_size_is_within_1e_7_and_the_certificates_at_every_loop_count_and_position():
    xs, ys, x_query = regression(40, 20, seed=1)
    model = CausalLoopedGradientDescent(Domain.covering(xs, ys, x_query), tolerance=1e-7)
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    assert got.shape == (51, 41)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-8
    assert model.certificate_after(50).bound <= 1e-7
    audit = model.run(xs, ys, x_query, loops=50).audit
    within(audit, got[50], want[50])
    assert audit.bound < model.certificate_after(50).bound
    assert model.predict(xs, ys, x_query, loops=50) == got[50, -1]


def test_float32_is_within_1e_2_and_its_certificates():
    xs, ys, x_query = (tensor.float() for tensor in regression(40, 20, seed=2))
    model = CausalLoopedGradientDescent(Domain.covering(xs, ys, x_query), dtype=torch.float32)
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-2
    within(model.run(xs, ys, x_query, loops=50).audit, got[50], want[50])


def test_the_printed_formula_fails_and_the_corrected_one_holds():
    """A.5 prints w^h inside the sum. The transformer runs w^j, and only w^j decreases every prefix's loss."""
    xs, ys, x_query = regression(12, 3, seed=3, noise=0.0)
    model = CausalLoopedGradientDescent(Domain.covering(xs, ys, x_query), horizon=400)
    got = model.run(xs, ys, x_query, loops=400).prediction
    right = exact(model, xs, ys, x_query, 400)[-1]
    printed = exact(model, xs, ys, x_query, 400, printed=True)[-1]
    model.certificate_after(400).verify(got, right)
    assert (got - printed).abs().max() > 1
    truth = (torch.linalg.lstsq(xs, ys.unsqueeze(-1)).solution.squeeze(-1) * x_query).sum()
    assert (right[-1] - truth).abs() < 0.1 < (printed[-1] - truth).abs()


def test_no_position_sees_its_own_label_or_a_later_pair():
    """Neither the mask nor, as the paper's keys would, its own x: the first position predicts exactly nothing."""
    xs, ys, x_query = regression(6, 3, seed=4)
    model = CausalLoopedGradientDescent(Domain.covering(2 * xs, 2 * ys, 2 * x_query), horizon=10)
    got = model.run(xs, ys, x_query, loops=10).prediction
    changed_x, changed_y = xs.clone(), ys.clone()
    changed_x[4:], changed_y[3:] = 2 * xs[4:], 2 * ys[3:]
    again = model.run(changed_x, changed_y, x_query, loops=10).prediction
    assert torch.equal(got[:4], again[:4]) and not torch.equal(got[4:], again[4:])
    assert got[0] == 0


def test_only_points_hold_weights_in_long_prompts():
    """A label's token sums over its prefix undivided, which must not slip through the gate."""
    xs = torch.ones(150, 1, dtype=torch.float64)
    model = CausalLoopedGradientDescent(Domain(150, 1, 1.0, 1.0, 0.0), tolerance=1e-4, horizon=3)
    *_, state = model.frame.iterates(causal_tokens(model.slots, xs, xs.squeeze(-1), xs[0]), 3)
    assert not state[0::2, model.slots["w"]].any() and state[3::2, model.slots["w"]].all()


@settings(max_examples=15, deadline=None)
@given(
    samples=st.integers(1, 5),
    features=st.integers(1, 3),
    bound=st.sampled_from([0.01, 1.0, 30.0]),
    rate=st.sampled_from([0.5, 1.0, 2.0]),
    loops=st.integers(0, 10),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 10_000),
)
def test_observed_error_is_below_the_bound_at_the_edges_of_the_domain(
    samples, features, bound, rate, loops, dtype, seed
):
    """Corners of the cube, labels of ±y."""
    generator = torch.Generator().manual_seed(seed)

    def corners(*shape: int) -> torch.Tensor:
        return torch.where(torch.rand(*shape, generator=generator) < 0.5, 1.0, -1.0).to(dtype)

    xs, ys, x_query = bound * corners(samples, features), 3 * corners(samples), bound * corners(features)
    domain = Domain(samples, features, xs.abs().max().item(), 3.0, 0.0)
    model = CausalLoopedGradientDescent(domain, step_size=rate * 0.999999 / domain.norm**2, horizon=10, dtype=dtype)
    got, want = model.run(xs, ys, x_query, loops=loops).prediction, exact(model, xs, ys, x_query, loops)[-1]
    model.certificate_after(loops).verify(got, want)
    within(model.run(xs, ys, x_query, loops=loops).audit, got, want)


def test_layers_and_heads_are_the_theorems_or_fewer():
    model = CausalLoopedGradientDescent(Domain(8, 3, 1.0, 1.0, 0.0), tolerance=1e-2)
    assert model.pairs == 1
    for name, size in model.frame.sizes.items():
        assert size.layers <= model.frame.stated[name].layers and size.heads <= model.frame.stated[name].heads
    assert model.slots.width == 4 * 3 + 1 + 1 + 4 + 3
    with pytest.raises(OutOfDomain, match="step size"):
        CausalLoopedGradientDescent(Domain(8, 3, 1.0, 1.0, 0.0), step_size=1.0)
