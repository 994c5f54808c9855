"""Beyond the paper: Newton–Schulz for ridge regression at every position of a decoder."""

import pytest
import torch
from exact_solvers import regression, within
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.certify import Domain
from emulon.core.errors import OutOfDomain
from emulon.looped import CausalLoopedNewton


def exact(model, xs, ys, x_query, loops):
    """Newton–Schulz on every prefix by itself, one position after the other; (loops + 1, positions)."""
    xs, ys, x_query = xs.double(), ys.double(), x_query.double()
    points, out = torch.cat([xs, x_query.unsqueeze(0)]), []
    for i, point in enumerate(points):
        count = max(i, 1)
        matrix = xs[:i].mT @ xs[:i] / count + model.ridge * torch.eye(xs.shape[1], dtype=torch.float64)
        inverse, moment, column = model.solver.scale * matrix, xs[:i].mT @ ys[:i] / count, []
        for _ in range(loops + 1):
            column.append(point @ inverse @ moment)
            inverse = 2 * inverse - inverse @ matrix @ inverse
        out.append(torch.stack(column))
    return torch.stack(out, dim=1)


def problem(samples: int, features: int, seed: int = 0):
    xs, ys, x_query = regression(samples, features, seed=seed)
    return xs / 3, ys / 3, x_query / 3


def test_every_prefix_is_solved_within_1e_7_and_the_certificate_at_every_loop_count():
    xs, ys, x_query = problem(10, 3)
    domain = Domain.covering(xs, ys, x_query)
    model = CausalLoopedNewton(domain, 0.1 * domain.norm**2, tolerance=1e-7)
    got, want = model.run(xs, ys, x_query, loops=50).predictions, exact(model, xs, ys, x_query, 50)
    for loops in range(51):
        assert model.certificate_after(loops).verify(got[loops], want[loops]) < 1e-8
    ridge = torch.linalg.solve(xs.mT @ xs / 10 + model.ridge * torch.eye(3, dtype=torch.float64), xs.mT @ ys / 10)
    assert (model.predict(xs, ys, x_query, loops=20) - x_query @ ridge).abs() < 1e-8
    assert got[20, 0] == 0 or got[20, 0].abs() < 1e-8


@settings(max_examples=10, deadline=None)
@given(
    samples=st.integers(1, 4),
    features=st.integers(1, 2),
    share=st.sampled_from([0.1, 1.0]),
    loops=st.integers(0, 12),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 10_000),
)
def test_observed_error_is_below_the_bound_at_the_edges_of_the_domain(samples, features, share, loops, dtype, seed):
    """Corners of the cube, labels of ±y: the first prefixes are singular but for the ridge."""
    generator = torch.Generator().manual_seed(seed)

    def corners(*shape: int) -> torch.Tensor:
        return torch.where(torch.rand(*shape, generator=generator) < 0.5, 1.0, -1.0).to(dtype)

    xs, ys, x_query = 2 * corners(samples, features), 3 * corners(samples), 2 * corners(features)
    domain = Domain(samples, features, 2.0, 3.0, 0.0)
    model = CausalLoopedNewton(domain, share * domain.norm**2, horizon=12, dtype=dtype)
    got = model.run(xs, ys, x_query, loops=loops).prediction
    model.certificate_after(loops).verify(got, exact(model, xs, ys, x_query, loops)[-1])
    run = model.run(xs, ys, x_query, loops=loops)
    within(run.audit, got, exact(model, xs, ys, x_query, loops)[-1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_audit_of_one_run_is_far_below_what_is_promised_of_all(dtype):
    xs, ys, x_query = (part.to(dtype) for part in problem(6, 2))
    domain = Domain.covering(xs, ys, x_query)
    model = CausalLoopedNewton(domain, 0.1 * domain.norm**2, horizon=12, dtype=dtype)
    run = model.run(xs, ys, x_query, loops=12)
    within(run.audit, run.prediction, exact(model, xs, ys, x_query, 12)[-1])
    assert run.audit.bound < 1e-2 * run.certificate.bound and run.audit.scope == "run"


def test_what_it_costs_and_what_it_refuses():
    model = CausalLoopedNewton(Domain(6, 2, 1.0, 1.0, 0.0), 0.5, tolerance=1e-2)
    assert model.frame.heads == {"pre": [1, 2 * 3], "loop": [2 * 4, 2 * 4], "post": [2 * 2, 2]}
    assert model.slots.width == 4 * 2 + 4 * 4 + 1 + 1 + 3 + 3
    with pytest.raises(OutOfDomain, match="singular"):
        CausalLoopedNewton(model.domain, 0.0)
