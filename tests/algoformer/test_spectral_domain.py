"""The domain of an iterative solver: what it derives, measures and refuses."""

import pytest
import torch
from exact_solvers import regression

from emulon.algoformer import SpectralDomain
from emulon.certify import Domain
from emulon.errors import BadShape, OutOfDomain


def test_norm_and_largest_follow_from_the_entries():
    lifted = SpectralDomain.lift(Domain(5, 4, 2.0, 1.0, 1.0))
    assert (lifted.norm, lifted.largest, lifted.smallest) == (4.0, 16.0, 0.0)
    assert SpectralDomain.lift(lifted) is lifted


def test_covering_is_the_tightest_domain_that_accepts_the_data():
    xs, ys, x_query = regression(8, 3, batch=(2,))
    domain = SpectralDomain.covering(xs, ys, x_query)
    domain.require(xs, ys.unsqueeze(-1), x_query)
    with pytest.raises(OutOfDomain):
        domain.require(1.001 * xs, ys.unsqueeze(-1), x_query)
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        domain.require(0.5 * xs, ys.unsqueeze(-1), x_query)
    domain.require(0.5 * xs, ys.unsqueeze(-1), x_query, spectrum=False)


def test_long_inputs_are_refused_even_where_their_entries_are_small():
    domain = SpectralDomain(1, 4, 1.0, 1.0, 0.0, norm=1.5)
    ys = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(OutOfDomain, match="‖x‖"):
        domain.require(torch.ones(1, 4, dtype=torch.float64), ys, torch.zeros(4, dtype=torch.float64))


def test_nonsense_is_refused():
    with pytest.raises(OutOfDomain, match="smallest"):
        SpectralDomain(4, 2, 1.0, 1.0, 0.0, smallest=3.0, largest=2.0)
    xs, ys, x_query = regression(8, 3)
    with pytest.raises(BadShape):
        SpectralDomain.covering(xs, ys[:7], x_query)
    with pytest.raises(OutOfDomain):
        SpectralDomain.covering(xs, ys, x_query * torch.nan)
