"""Routing: other samples' tokens weigh what is allowed, and nearly that much where everything speaks for them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from emulon.attention.codes import Codes, one_hot
from emulon.certify import Domain, Spectrum
from emulon.interpreter.phase import HALF, LEAK_SHARE, SPARE, Routing, Scales, TokenLayout, stored
from emulon.softmax import Grid

f64 = torch.float64
GRID = Grid.stored(
    np.array([-3.0, 1.0, 2.5]), np.array([0.5, -0.25, 0.0]), np.array([1.0, -4.0, 2.0]), f64, -2.0, 1.5, ""
)
DOMAIN = Domain(samples=5, features=3, x=2.0, y=1.0, w=0.25)


def routing(paper: bool, samples: int = 5, allowed: float = 1e-3, gap: float = 0.5) -> Routing:
    codes = Codes(torch.eye(samples, dtype=f64), gap)
    return Routing(replace(DOMAIN, samples=samples), codes, paper, allowed)


@pytest.mark.parametrize("samples", [2, 5, 300])
def test_others_weigh_what_is_allowed_and_hardly_less_where_all_speaks_for_them(samples: int) -> None:
    """One's own tokens at the residual where they weigh least, all others where they weigh most."""
    asked = routing(paper=False, samples=samples)
    s = torch.linspace(GRID.lo, GRID.hi, 20_001, dtype=f64)
    masses = torch.logsumexp(torch.outer(s, GRID.slopes) + GRID.intercepts, dim=1)
    ahead = (masses.max() - masses.min()).item()
    others = (samples - 1) * math.exp(ahead - asked.strength(GRID) * asked.codes.gap)
    assert 0.999 * math.exp(-SPARE) * asked.leak(GRID) <= others <= asked.leak(GRID) * math.exp(-SPARE)


@pytest.mark.parametrize("samples", [2, 5, 300])
def test_the_papers_constant_is_twice_what_is_printed(samples: int) -> None:
    """A token of another sample is ahead by max|slope|·2·residual at most: a key at both ends of the range shows it."""
    asked = routing(paper=True, samples=samples)
    ahead = max(abs(slope) * (2.0 - -2.0) for slope in GRID.slopes.tolist())
    assert asked.advantage(GRID) == ahead == 12.0
    others = (samples - 1) * math.exp(ahead - asked.strength(GRID) * asked.codes.gap)
    assert others == pytest.approx(math.exp(-SPARE) * asked.leak(GRID), rel=1e-9, abs=0.0)


@pytest.mark.parametrize("allowed, wanted", [(1e-3, 2.0**-54), (1e-20, 1e-20 / 8)])
def test_what_leaks_is_below_a_rounding_and_below_what_is_allowed_of_the_largest_value_twice(allowed, wanted) -> None:
    assert routing(paper=False, allowed=allowed).leak(GRID) == pytest.approx(wanted, rel=1e-15, abs=0.0)
    assert (LEAK_SHARE, SPARE) == (0.02, 0.1)


def test_balanced_rows_share_their_factors_evenly() -> None:
    scales = Scales.balancing(GRID, replace(DOMAIN, x=2.0**6, w=2.0**-3, y=2.0**9))
    assert scales == Scales(x=2.0 ** round(math.log2(2.0**-3 / (3 * 2.0**6)) / 2), y=2.0**-5, bias=2.0**0)
    assert Scales.balancing(GRID, replace(DOMAIN, y=0.0)).y == 1.0


def test_a_coarser_dtype_has_room_for_data_rounded_over_an_edge() -> None:
    domain = Domain(3, 2, 2.0, 1.0, 4.0, residual=1.5, absolute=8.0, spectrum=Spectrum(2.0, 1.0, 2.5))
    assert stored(domain, f64) is domain
    wide, last = stored(domain, torch.float32), 4 * 2.0**-24
    assert (wide.x, wide.y, wide.w) == (2 * (1 + last), 1 + last, 4 * (1 + last))
    assert (wide.residual, wide.absolute) == (1.5 + 8 * last, 8 + 8 * last)
    assert wide.spectrum == Spectrum(2 * (1 + 2 * last), 1 / (1 + 2 * last), 2.5 * (1 + 2 * last))
    follows = stored(Domain(3, 2, 2.0, 1.0, 4.0), torch.float32)
    assert follows.residual == follows.widest > 17.0
    assert one_hot(3, f64).gap == 1.0


@pytest.mark.parametrize("balanced", [False, True])
def test_a_key_times_a_query_is_the_grids_score_and_the_codes(balanced: bool) -> None:
    """slope·(w·x − y) + intercept, and C times what two samples' codes have in common; beside it value·x."""
    domain = Domain(2, 3, 50.0, 8.0, 0.25)
    codes = Codes(torch.tensor([[0.6, 0.8], [0.8, -0.6]], dtype=f64), 0.5)
    grid = replace(GRID, intercepts=16 * GRID.intercepts)
    layout = TokenLayout(grid, domain, codes, 12.0, ("fixed",), balanced)
    x, y = torch.tensor([[50.0, -20.0, 3.0], [1.0, 2.0, 4.0]], dtype=f64), torch.tensor([8.0, -3.0], dtype=f64)
    w = torch.tensor([0.25, 0.1, -0.2], dtype=f64)
    rows, asked = layout.data_rows(x, y, 7 * x), layout.query_rows(w)
    keys = torch.cat([rows[f"key_{name}"] for name in HALF], dim=-1)
    queries = torch.cat([asked[f"query_{name}"] for name in HALF], dim=-1)
    scores = (keys @ queries.mT).permute(2, 0, 1)
    own = grid.slopes * (x @ w - y).unsqueeze(-1) + grid.intercepts
    wanted = own + 12.0 * (codes.vectors @ codes.vectors.mT).unsqueeze(-1)
    torch.testing.assert_close(scores, wanted, rtol=1e-13, atol=1e-13)
    assert layout.tokens == 6 and torch.equal(rows["value"], GRID.values[:, None] * x.unsqueeze(-2))
    assert torch.equal(rows["fixed"], (7 * x).unsqueeze(-2).expand(2, 3, 3))
    assert (1.0 in vars(layout.scales).values()) != balanced
