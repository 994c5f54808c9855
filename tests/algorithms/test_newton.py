"""Newton–Schulz inverts XᵀX, doubling its correct digits."""

from itertools import pairwise

import torch
from torch import Tensor

from emulon.algorithms import NewtonLeastSquares


def dataset(samples: int = 20, features: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return x, torch.randn(samples, generator=generator, dtype=torch.float64)


def test_iterates_are_the_closed_form():
    """w_k = (I − (I − S²/‖S‖²)^(2^k))·w*, from S's eigenvectors."""
    x, y = dataset()
    values, vectors = torch.linalg.eigh(x.mT @ x)
    best = torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)
    iterates = NewtonLeastSquares(steps=12).iterates(x, y)
    for k, weights in enumerate(iterates):
        left = (1 - (values / values[-1]).square()) ** (2**k)
        torch.testing.assert_close(weights, vectors @ ((1 - left) * (vectors.mT @ best)), atol=1e-12, rtol=0.0)


def test_convergence_is_quadratic():
    x, y = dataset()
    best = torch.linalg.lstsq(x, y.unsqueeze(-1)).solution.squeeze(-1)
    errors = (NewtonLeastSquares(steps=20).iterates(x, y) - best).norm(dim=-1) / best.norm()
    digits = -errors.log10()
    tail = [(a, b) for a, b in pairwise(digits.tolist()) if a > 2 and b < 13]
    assert len(tail) == 2
    assert all(b > 1.8 * a for a, b in tail)


def test_without_enough_samples_it_finds_the_solution_of_least_norm():
    x, y = dataset(samples=3, features=5)
    torch.testing.assert_close(NewtonLeastSquares(steps=25).run(x, y), torch.linalg.pinv(x) @ y, atol=1e-9, rtol=0.0)


def test_it_does_not_depend_on_the_scale_of_the_data():
    x, y = dataset()
    torch.testing.assert_close(1e6 * NewtonLeastSquares().run(1e6 * x, y), NewtonLeastSquares().run(x, y))


def test_features_that_are_all_zero_give_zero_weights():
    x = torch.zeros(5, 2, dtype=torch.float64)
    assert torch.equal(NewtonLeastSquares().run(x, torch.ones(5, dtype=torch.float64)), torch.zeros(2).double())
