"""Theorems D.1, 4.1, 4.2 and Remark 4.5: linear maps and whole heads whose weights are in the prompt."""

from itertools import pairwise

import pytest
import torch
from construction_cases import (
    exact_head,
    f64,
    random_head,
    truncated,
    uniform,
)

from emulon.constructions import HeadInEmbedding, HeadInTokens, TruncatedLinear

f32 = torch.float32
HEADS = [(2, 1, 1), (64, 32, 32), (12, 4, 12), (2, 16, 32), (64, 3, 1), (33, 7, 16)]


@pytest.mark.parametrize("module", [HeadInTokens, HeadInEmbedding])
@pytest.mark.parametrize(("tokens", "features", "width"), HEADS)
def test_random_heads_are_emulated_to_a_billionth_within_both_certificates(module, tokens, features, width):
    x, weights, bound = random_head(tokens, features, width)
    built = module(tokens, features, width, bound, tolerance=1e-9)
    out, target = built(x, *weights), exact_head(x, *weights)
    assert (out - target).abs().max() <= 1e-9
    assert built.audit(x, *weights).bound <= built.certificate.bound
    built.audit(x, *weights).verify(out, target)


@pytest.mark.parametrize("module", [HeadInTokens, HeadInEmbedding])
@pytest.mark.parametrize("dtype", [f64, f32])
def test_a_head_with_a_temperature_of_its_own(module, dtype):
    x, weights, bound = random_head(7, 3, 2)
    x, *weights = (part.to(dtype) for part in (x, *weights))
    built = module(7, 3, 2, bound, tolerance=1e-2, beta=0.3, dtype=dtype)
    built.audit(x, *weights).verify(built(x, *weights), exact_head(x, *weights, beta=0.3))
    assert not torch.allclose(built(x, *weights).double(), exact_head(x, *weights), atol=1e-2)


def test_the_papers_heads_in_the_embedding_keep_their_tokens_and_err_like_one_over_h():
    x, weights, bound = random_head(10, 3, 2)
    bounds = []
    for heads in (40, 80, 160):
        module = HeadInEmbedding(10, 3, 2, bound, grid="paper", heads=heads)
        assert module.layer.length == 10 and module.layer.heads == heads
        rows = module.layer(x, torch.cat(weights))
        module.entries.verify(rows, x @ torch.cat(weights).mT)
        certificate = module.audit(x, *weights)
        certificate.verify(module(x, *weights), exact_head(x, *weights))
        bounds.append(module.entries.bound)
    assert bounds[0] / bounds[1] == pytest.approx(2, rel=0.05) and bounds[1] / bounds[2] == pytest.approx(2, rel=0.05)


def test_the_papers_truncated_linear_map_errs_like_one_over_h_within_its_certificate():
    x, w = uniform(200, 12, 3, bound=0.6), uniform(200, 3, seed=1, bound=0.55)
    products = (x @ w.unsqueeze(-1)).squeeze(-1)
    errors, bounds = [], []
    for heads in (4, 8, 16, 32):
        module = truncated("paper", None, heads)
        assert module.heads.length == 12
        errors.append(module.certificate.verify(module(x, w), products))
        bounds.append(module.certificate.bound)
    for series in (errors, bounds):
        assert all(1.6 < before / after < 2.4 for before, after in pairwise(series)), series


@pytest.mark.parametrize(("lo", "hi"), [(-1.0, 2.0), (5.0, 6.0), (-3.0, -1.0)])
@pytest.mark.parametrize(("tokens", "heads"), [(3, 2), (3, 7), (12, 1), (5, 9)])
def test_the_sharp_grid_holds_its_bound_all_over_its_range_ends_and_seams_included(lo, hi, tokens, heads):
    module = TruncatedLinear(tokens, 1, lo, hi, heads=heads, grid="paper")
    s = torch.linspace(lo, hi, 40 * tokens * heads // tokens * tokens, dtype=f64).reshape(-1, tokens, 1)
    module.certificate.verify(module(s, torch.ones(1, dtype=f64)), s.squeeze(-1))
    assert module.certificate.bound < 0.55 * (hi - lo) / (heads * (tokens - 2) - 1)
