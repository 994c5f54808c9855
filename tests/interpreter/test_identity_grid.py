"""The frozen grid reproduces the number it is asked about as well as it says, by all keys and by those that matter."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from identity_grid_maker import pieces

from emulon.attention import attend
from emulon.certify.interpolation import Keys, deficits, holds
from emulon.expressions import parse
from emulon.interpreter import identity_grid as module
from emulon.interpreter.identity_grid import (
    IdentityGrid,
    Junction,
    PolynomialSegment,
    averaging_error,
    certified_line,
    identity_grid,
    octaves_for,
    proved_between,
    shipped_claims,
    shipped_proofs,
)

DTYPES = [torch.float64, torch.float32]


def by_all_keys(line: IdentityGrid, s: torch.Tensor) -> torch.Tensor:
    keys = torch.stack([line.grid.slopes, line.grid.intercepts], dim=-1)
    queries = torch.stack([s, torch.ones_like(s)], dim=-1)
    return attend(queries, keys, line.grid.values.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(fraction=st.floats(-1.0, 1.0), octave=st.integers(-30, 11))
def test_errs_by_no_more_than_it_says_at_any_magnitude(dtype: torch.dtype, fraction: float, octave: int):
    line = identity_grid(2000.0, dtype)
    s = torch.tensor([fraction * 2.0**octave], dtype=dtype)
    error = (by_all_keys(line, s).double() - s.double()).abs().item()
    assert error <= line.error(s.abs().item())


@pytest.mark.parametrize("reach", [32.0, 2000.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_read_as_well_as_the_line_says_by_all_keys_and_by_segments(dtype: torch.dtype, reach: float):
    """Of every magnitude, around the junctions, and around the ends of segments."""
    line = identity_grid(reach, dtype)
    edges = torch.tensor([one.hi for one in line.segments], dtype=dtype)
    near = (edges[:, None] * (1 + torch.linspace(-1e-6, 1e-6, 7, dtype=dtype))).flatten()
    wide = torch.logspace(-20, np.log2(line.reach), 4001, base=2.0, dtype=dtype)
    inside = [end * torch.linspace(0.85, 1.0, 2001, dtype=dtype) for end in line.reaches[1:]]
    s = torch.cat([torch.zeros(1, dtype=dtype), near, wide, *inside]).clamp(max=line.reach)
    s = torch.cat([s, -s])
    said = torch.tensor([line.error(size) for size in s.abs().tolist()], dtype=torch.float64)
    for found in (by_all_keys(line, s), line.read(s)):
        assert ((found.double() - s.double()).abs() <= said).all()
    for few in (s[:1], s[5:6], s[[7, 3000, 3500]], s[:0]):
        assert line.read(few).tolist() == pytest.approx(few.tolist(), abs=line.error(line.reach))


@pytest.mark.parametrize("dtype", DTYPES)
def test_segments_follow_each_other_and_have_few_keys(dtype: torch.dtype):
    line = identity_grid(2000.0, dtype)
    assert line.segments[0].lo == 0.0 and line.segments[-1].hi == line.reach
    assert all(one.hi == other.lo for one, other in pairwise(line.segments))
    assert {type(one) for one in line.segments} == {PolynomialSegment, Junction}
    assert all(len(one.slopes) <= 64 for one in line.segments if isinstance(one, Junction)) and len(line.grid) > 100


@pytest.mark.parametrize("dtype", DTYPES)
def test_error_grows_with_the_magnitude_and_large_numbers_cost_small_ones_nothing(dtype: torch.dtype):
    near, far = identity_grid(32.0, dtype), identity_grid(2000.0, dtype)
    assert far.error(16.0) <= 2 * near.error(16.0)
    assert all(small < large for small, large in pairwise(far.errors))
    assert all(small < large for small, large in pairwise(far.reaches))
    assert math.isfinite(far.error(far.reach)) and far.error(1.001 * far.reach) == math.inf


def test_a_longer_line_is_the_shorter_one_with_more_at_its_ends():
    short, long = identity_grid(200.0).grid, identity_grid(2000.0).grid
    beyond = (len(long) - len(short)) // 2
    for part in ("slopes", "intercepts", "values"):
        assert torch.equal(getattr(long, part)[beyond:-beyond], getattr(short, part))
        turned = getattr(long, part).flip(0)
        assert torch.equal(turned if part == "intercepts" else -turned, getattr(long, part))
    assert identity_grid(200.0) is identity_grid(100.0) and identity_grid(100.0).reach == 256.0


def test_what_is_shipped_as_proved_is_proved_again():
    claims, shipped = shipped_claims(), shipped_proofs()
    assert set(claims) == set(shipped) and len(claims) > 40
    for name, (near, others, spread, lo, hi) in list(claims.items())[::3]:
        keys = Keys(*map(np.frombuffer, near), others=others, spread=spread)
        assert holds(keys, parse("t"), lo, hi, shipped[name])
        assert not holds(keys, parse("t"), lo, hi, replace(shipped[name], error=0.7 * shipped[name].attained))
    grid = identity_grid(200.0).grid
    values = grid.values.clone()
    values[len(values) // 2] = torch.nextafter(values[len(values) // 2], torch.tensor(torch.inf).double())
    other = {
        module.claim(*module._relevant(replace(grid, values=values).numbers, *band)) for band in module.bands(1)[:2]
    }
    assert not other & set(shipped)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_that_are_shipped_are_those_that_are_made(dtype: torch.dtype):
    for number, made in enumerate(pieces(dtype)):
        shipped = module._piece(number, dtype)
        assert all(np.array_equal(*pair) for pair in zip(module._parts(made), module._parts(shipped), strict=True))


def test_keys_count_as_far_below_only_where_they_are_throughout():
    numbers = identity_grid(2000.0).grid.numbers
    for lo, hi in ((0.0, 16.0), (32.0, 256.0), (-256.0, -32.0)):
        s = np.linspace(lo, hi, 4001)
        scores = np.multiply.outer(s, numbers.slopes) + numbers.intercepts
        seen = (scores.max(axis=1, keepdims=True) - scores).min(axis=0)
        below = deficits(numbers, lo, hi)
        assert (below <= seen).all() and (below > 100).sum() > 50


def altered(line: IdentityGrid, **parts: torch.Tensor) -> IdentityGrid:
    return certified_line(replace(line.grid, **parts), octaves_for(line.reach))


def test_keys_that_matter_are_not_left_out():
    """The outer pieces are raised, so that they reach into the middle, whose own keys alone are far off there."""
    line = identity_grid(200.0)
    lift = torch.zeros_like(line.grid.intercepts)
    lift[:32] = lift[-32:] = 300.0
    other = altered(line, intercepts=line.grid.intercepts + lift)
    assert isinstance(line.segments[0], PolynomialSegment) and isinstance(other.segments[0], Junction)
    s = torch.linspace(0.0, 28.0, 2001, dtype=torch.float64)
    exact = by_all_keys(other, s)
    # Left out, they are a hundred thousand times what rounding does.
    assert (line.read(s) - exact).abs().max() > 1e-9
    assert (other.read(s) - exact).abs().max() < 1e-13


def test_slopes_that_are_not_equally_spaced_are_not_taken_for_powers():
    line = identity_grid(20.0)
    slopes = line.grid.slopes.clone()
    slopes[3] *= 1 + 1e-9
    slopes[-4] *= 1 + 1e-9
    assert isinstance(line.segments[0], PolynomialSegment)
    assert not any(isinstance(one, PolynomialSegment) for one in altered(line, slopes=slopes).segments)


@pytest.mark.parametrize("delta", [1e-16, 1e-9])
def test_fewer_keys_are_as_good_certified_up_to_what_they_leave_out_and_no_further(delta: float):
    """The inner piece of a line of three: the outer ones' shares, times their values, and 8 keys more in the sums."""
    line = identity_grid(200.0)
    grid, own = line.grid.numbers, np.zeros(96, dtype=bool)
    own[32:64] = True
    for lo, hi in ((0.0, 10.0), (20.0, 29.0)):
        scores = np.multiply.outer(np.array([lo, hi]), grid.slopes) + grid.intercepts
        shares = np.exp(scores - scores[:, own].max(axis=1, keepdims=True)).max(axis=0)[~own]
        largest = np.abs(grid.values[own]).max()
        lost = 1.01 * shares @ (np.abs(grid.values[~own]) + largest)
        known = proved_between(grid, *((0.0, 16.0) if hi < 16 else (16.0, 32.0)))
        needed = averaging_error(known, hi, delta, 40, largest, lost, torch.float64)
        for part, kept in ((1.05, True), (0.9, False)):
            assert replace(line, errors=(part * needed,) * 3).certified(lo, hi, own, delta) == kept, (lo, part)
    # Around 16 both bands are asked, each for its own error.
    for errors, kept in (((1.0, 1.0, 1.0), True), ((1e-30, 1.0, 1.0), False), ((1.0, 1e-30, 1.0), False)):
        assert replace(line, errors=errors).certified(10.0, 20.0, own, delta) == kept


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_as_far_off_as_roundings_and_uneven_slopes_make_them(dtype: torch.dtype, monkeypatch):
    asked = []
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: asked.append(given) or True)
    line, u = identity_grid(200.0, dtype), torch.finfo(dtype).eps / 2
    first = (len(line.grid) - 32) // 2
    for lift in (0.0, 1e-3):
        slopes = line.grid.slopes.clone()
        slopes[first + 5] += lift
        piece = PolynomialSegment.of(
            replace(line, grid=replace(line.grid, slopes=slopes)), 2.0, 10.0, slice(first, first + 32)
        )
        steps = slopes.double()[first:][:32] - slopes.double()[first]
        uneven = (steps - torch.arange(32).double() * piece.theta).abs().max().item()
        wanted = 16 * (2 * u * piece.theta * 4.0 + 4 * u) + (2 * 8 + 9 * 3) * u + uneven * 4.0
        assert asked[-1][4] == pytest.approx(wanted, rel=1e-6) and asked[-1][3].sum() == 32 and piece.center == 6.0
    Junction.of(line, 28.0, 36.0)
    own, delta = asked[-1][3:]
    size = (
        (line.grid.slopes.double().abs() * 36.0 + line.grid.intercepts.double().abs())[torch.from_numpy(own)]
        .max()
        .item()
    )
    assert delta == pytest.approx(4 * u / (1 - 4 * u) * size + (4 + min(2 * size, 64.0)) * u, rel=1e-9, abs=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("part", "room"), [(0.84, True), (0.86, False)])
def test_powers_take_up_no_more_exponents_than_leave_room_for_coefficients(dtype, part, room, monkeypatch):
    """32 keys, each θ = 1/8 steeper than the one before: z³² at the end of a segment is e^{4·reach}."""
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: True)
    line = identity_grid(20.0, dtype)
    made = replace(line, grid=replace(line.grid, slopes=torch.arange(32, dtype=dtype) / 8 - 2))
    reach = part * np.log(torch.finfo(dtype).max) / 4
    assert (PolynomialSegment.of(made, 0.0, 2 * float(reach), slice(0, 32)) is not None) == room
    assert PolynomialSegment.of(made, 1.0, 1.0, slice(0, 32)) is None


def test_pieces_may_have_any_number_of_keys(monkeypatch):
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: True)
    line, s = identity_grid(20.0), torch.linspace(2.0, 10.0, 50, dtype=torch.float64)
    piece, grid = PolynomialSegment.of(line, 2.0, 10.0, slice(1, 31)), line.grid
    assert piece.coefficients.shape == (8, 8)
    scores = torch.outer(s, grid.slopes[1:31]) + grid.intercepts[1:31]
    torch.testing.assert_close(piece.read(s), torch.softmax(scores, dim=-1) @ grid.values[1:31], rtol=0, atol=1e-11)
