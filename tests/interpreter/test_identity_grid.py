"""The frozen grid reproduces the number it is asked about, as well as it says."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.attention import attend
from emulon.certify.interpolation import Keys, deficits, holds
from emulon.expressions import parse
from emulon.interpreter import identity_grid as room
from emulon.interpreter.identity_grid import IdentityGrid, certified_line, identity_grid, octaves_for, shipped_claims

DTYPES = [torch.float64, torch.float32]


def read(line: IdentityGrid, s: torch.Tensor) -> torch.Tensor:
    keys = torch.stack([line.grid.slopes, line.grid.intercepts], dim=-1)
    queries = torch.stack([s, torch.ones_like(s)], dim=-1)
    return attend(queries, keys, line.grid.values.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(fraction=st.floats(-1.0, 1.0), octave=st.integers(-30, 11))
def test_errs_by_no_more_than_it_says_at_any_magnitude(dtype: torch.dtype, fraction: float, octave: int):
    line = identity_grid(2000.0, dtype)
    s = torch.tensor([fraction * 2.0**octave], dtype=dtype)
    error = (read(line, s).double() - s.double()).abs().item()
    assert error <= line.error(s.abs().item())


@pytest.mark.parametrize("dtype", DTYPES)
def test_errs_by_no_more_than_it_says_around_its_seams(dtype: torch.dtype):
    line = identity_grid(2000.0, dtype)
    for reach in line.reaches[1:-1]:
        s = reach * torch.linspace(0.85, 1.0, 2001, dtype=dtype)
        s = torch.cat([-s, s])
        assert (read(line, s).double() - s.double()).abs().max().item() <= line.error(reach)


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_cost_small_ones_nothing(dtype: torch.dtype):
    near, far = identity_grid(32.0, dtype), identity_grid(2000.0, dtype)
    assert far.error(16.0) <= 2 * near.error(16.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_grows_with_the_magnitude(dtype: torch.dtype):
    line = identity_grid(2000.0, dtype)
    assert all(small < large for small, large in pairwise(line.errors))
    assert all(small < large for small, large in pairwise(line.reaches))


def test_promises_nothing_beyond_its_reach():
    line = identity_grid(100.0)
    assert line.reach == 256.0
    assert math.isfinite(line.error(256.0))
    assert line.error(257.0) == math.inf


def test_is_odd():
    line = identity_grid(200.0)
    s = torch.linspace(0.0, 250.0, 501, dtype=torch.float64)
    bound = torch.tensor([2 * line.error(v) for v in s.tolist()])
    assert ((read(line, s) + read(line, -s)).abs() <= bound).all()
    assert room.is_odd(line.grid) is True
    assert room.is_odd(replace(line.grid, values=line.grid.values + 1.0)) is False


def test_a_longer_line_is_the_shorter_one_with_more_at_its_ends():
    short, long = identity_grid(200.0).grid, identity_grid(2000.0).grid
    beyond = (len(long) - len(short)) // 2
    for part in ("slopes", "intercepts", "values"):
        assert torch.equal(getattr(long, part)[beyond:-beyond], getattr(short, part))


def test_what_is_shipped_as_proved_is_proved_again():
    claims, shipped = shipped_claims(), room.shipped_proofs()
    assert set(claims) == set(shipped) and len(claims) > 20
    for name, (near, others, spread, lo, hi) in list(claims.items())[::3]:
        keys = Keys(*map(np.frombuffer, near), others=others, spread=spread)
        assert holds(keys, parse("t"), lo, hi, shipped[name])
        assert not holds(keys, parse("t"), lo, hi, replace(shipped[name], error=0.7 * shipped[name].attained))


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_that_are_shipped_are_those_that_are_made(dtype: torch.dtype):
    for number in range(room.LONGEST_SHIPPED + 1):
        made, shipped = (room._parts(keys) for keys in (room.made_piece(number, dtype), room._piece(number, dtype)))
        assert all(np.array_equal(*pair) for pair in zip(made, shipped, strict=True))


def test_another_line_is_not_taken_for_the_shipped_one():
    grid = identity_grid(200.0).grid
    values = grid.values.clone()
    values[len(values) // 2] = torch.nextafter(values[len(values) // 2], torch.tensor(torch.inf).double())
    claims = {room.claim(*room._relevant(replace(grid, values=values).numbers, *band)) for band in room.bands(1)[:2]}
    assert not claims & set(room.shipped_proofs())


def test_keys_count_as_far_below_only_where_they_are_throughout():
    numbers = identity_grid(2000.0).grid.numbers
    for lo, hi in ((0.0, 16.0), (32.0, 256.0), (-256.0, -32.0)):
        s = np.linspace(lo, hi, 4001)
        scores = np.multiply.outer(s, numbers.slopes) + numbers.intercepts
        seen = (scores.max(axis=1, keepdims=True) - scores).min(axis=0)
        below = deficits(numbers, lo, hi)
        assert (below <= seen).all() and (below > 100).sum() > 50


def test_the_same_reach_gives_the_same_line():
    assert identity_grid(200.0) is identity_grid(100.0)


def test_an_altered_line_is_certified_as_it_stands():
    line = identity_grid(20.0)
    values = line.grid.values.clone()
    values[len(values) // 2] += 1e-3
    grid = type(line.grid)(line.grid.slopes, line.grid.intercepts, values, line.grid.lo, line.grid.hi, line.grid.way)
    altered = certified_line(grid, octaves_for(20.0))
    s = torch.linspace(-30.0, 30.0, 4001, dtype=torch.float64)
    observed = (read(altered, s) - s).abs().max().item()
    assert 1e-5 < observed <= altered.error(30.0) < 1e-2
