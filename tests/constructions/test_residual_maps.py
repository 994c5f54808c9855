"""Theorem 3.1 and its Hopfield twin: f(w·x − y)·x out of one softmax."""

from itertools import pairwise

import pytest
import torch
from construction_cases import DOMAIN, data, exact_map, hopfield, residual_map

from emulon.attention import Trace
from emulon.constructions import ResidualMap


def test_a_jump_is_right_outside_its_band():
    module = residual_map("sign(t)", 1e-6)
    (band,) = module.certificate.bands
    x, y, w = data(batch=(200,))
    residual = (x @ w.unsqueeze(-1)).squeeze(-1) - y
    outside = (residual <= band.lo) | (residual >= band.hi)
    assert outside.float().mean() > 0.99
    difference = module(x, y, w) - exact_map("sign(t)", x, y, w)
    module.certificate.verify(difference[outside])


@pytest.mark.parametrize("f", ["tanh(t)", "t**3/20"])
def test_hopfield_retrieval_agrees_with_attention(f):
    x, y, w = data(batch=(10,))
    layer = hopfield(f, 1e-6)
    torch.testing.assert_close(layer(x, y, w), residual_map(f, 1e-6)(x, y, w), rtol=0, atol=1e-9)
    layer.certificate.verify(layer(x, y, w), exact_map(f, x, y, w))


def test_the_papers_own_construction_errs_like_one_over_p_and_says_so():
    """Sharp β, values f(L), one-hot codes: first order, within its certificate."""
    x, y, w = data(batch=(60,))
    errors, bounds = [], []
    for points in (17, 33, 65, 129):
        built = ResidualMap("tanh(t)", DOMAIN, points=points, grid="paper")
        assert built.f.keys == points and built.template.codes.width == DOMAIN.samples
        errors.append(built.certificate.verify(built(x, y, w), exact_map("tanh(t)", x, y, w)))
        bounds.append(built.certificate.bound)
    for series in (errors, bounds):
        ratios = [before / after for before, after in pairwise(series)]
        assert all(1.4 < ratio < 2.8 for ratio in ratios), series


def test_other_samples_get_no_more_than_the_leak():
    for module in (residual_map(), residual_map("t", None, grid="paper", points=65)):
        x, y, w = data(batch=(30,))
        with Trace() as trace:
            module(x, y, w)
        n, keys = DOMAIN.samples, module.f.keys
        by_sample = trace["residual map"].weights.reshape(30, n, n, keys).sum(dim=-1)
        others = 1 - torch.diagonal(by_sample, dim1=-2, dim2=-1)
        assert (by_sample - torch.eye(n)).abs().max() < 1e-14 and others.max() <= module.template.leak + 1e-15
