"""Reading by the keys that can be felt is within what the line promises, and is not done where it would not be."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from emulon.certify.interpolation import Interpolation
from emulon.interpreter import Capacity, Interpreter
from emulon.interpreter import identity_grid as identity_grid_module
from emulon.interpreter.identity_grid import (
    ErrorBound,
    IdentityGrid,
    certified_line,
    identity_grid,
    octaves_for,
    proved_between,
)
from emulon.interpreter.segments import Junction, PolynomialSegment, Segments

DTYPES = [torch.float64, torch.float32]


def numbers(line: IdentityGrid, dtype: torch.dtype) -> torch.Tensor:
    """Of every magnitude, around the seams, and around the ends of segments."""
    edges = torch.tensor([one.hi for one in line.segments.known], dtype=dtype)
    near = (edges[:, None] * (1 + torch.linspace(-1e-6, 1e-6, 7, dtype=dtype))).flatten()
    wide = torch.logspace(-20, np.log2(line.reach), 4001, base=2.0, dtype=dtype)
    s = torch.cat([torch.zeros(1, dtype=dtype), near, wide]).clamp(max=line.reach)
    return torch.cat([s, -s])


@pytest.mark.parametrize("reach", [32.0, 2000.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_read_as_well_as_the_line_promises(dtype: torch.dtype, reach: float):
    line = identity_grid(reach, dtype)
    s = numbers(line, dtype)
    off = (line.segments.read(s).double() - s.double()).abs()
    promised = torch.tensor([line.error(size) for size in s.abs().tolist()], dtype=torch.float64)
    assert (off <= promised).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stretches_follow_each_other_and_read_what_all_keys_read(dtype: torch.dtype):
    line = identity_grid(2000.0, dtype)
    known = line.segments.known
    assert known[0].lo == 0.0 and known[-1].hi == line.reach
    assert all(one.hi == other.lo for one, other in pairwise(known))
    assert {type(one) for one in known} == {PolynomialSegment, Junction}
    assert all(len(one.slopes) <= 64 for one in known if isinstance(one, Junction)) and len(line.grid) > 100
    s, by_all = numbers(line, dtype), Interpreter(Capacity(1, 1, 1, 2000.0), dtype)
    allowed = torch.tensor([2 * line.error(size) for size in s.abs().tolist()], dtype=torch.float64)
    assert ((line.segments.read(s).double() - by_all.read(s).double()).abs() <= allowed).all()


def altered(line: IdentityGrid, **parts: torch.Tensor) -> IdentityGrid:
    return certified_line(replace(line.grid, **parts), octaves_for(line.reach))


def test_keys_that_can_be_felt_are_not_left_out():
    """The outer pieces are raised, so that they reach into the middle, whose own keys alone are far off there."""
    line = identity_grid(200.0)
    lift = torch.zeros_like(line.grid.intercepts)
    lift[:32] = lift[-32:] = 300.0
    other = altered(line, intercepts=line.grid.intercepts + lift)
    honest, blind = other.segments, line.segments
    assert isinstance(blind.known[0], PolynomialSegment) and not isinstance(honest.known[0], PolynomialSegment)
    s = torch.linspace(0.0, 28.0, 2001, dtype=torch.float64)
    by_all = torch.softmax(torch.outer(s, other.grid.slopes) + other.grid.intercepts, dim=-1) @ other.grid.values
    # Left out, they are a hundred thousand times what rounding does.
    assert (blind.read(s) - by_all).abs().max() > 1e-9
    assert (honest.read(s) - by_all).abs().max() < 1e-13


def test_slopes_that_are_not_equally_spaced_are_not_taken_for_powers():
    line = identity_grid(20.0)
    slopes = line.grid.slopes.clone()
    slopes[3] *= 1 + 1e-9
    slopes[-4] *= 1 + 1e-9
    assert isinstance(line.segments.known[0], PolynomialSegment)
    assert not any(isinstance(one, PolynomialSegment) for one in altered(line, slopes=slopes).segments.known)


@pytest.mark.parametrize("delta", [1e-16, 1e-9])
def test_fewer_keys_are_as_good_certified_up_to_what_they_leave_out_and_no_further(delta: float, monkeypatch):
    """The inner piece of a line of three: the outer ones' shares, times their values, and 8 keys more in the sums."""
    line = identity_grid(200.0)
    grid, own = line.grid.numbers, np.zeros(96, dtype=bool)
    own[32:64] = True
    for lo, hi in ((0.0, 10.0), (20.0, 29.0)):
        scores = np.multiply.outer(np.array([lo, hi]), grid.slopes) + grid.intercepts
        shares = np.exp(scores - scores[:, own].max(axis=1, keepdims=True)).max(axis=0)[~own]
        largest = np.abs(grid.values[own]).max()
        band = (0.0, 16.0) if hi < 16 else (16.0, 32.0)
        lost = 1.01 * shares @ (np.abs(grid.values[~own]) + largest)
        needed = ErrorBound(delta, 40, largest, lost).error(proved_between(grid, *band), hi, torch.float64)
        for part, kept in ((1.05, True), (0.9, False)):
            promised = replace(line, errors=(part * needed,) * 3)
            assert promised.certified(lo, hi, own, delta) == kept, (lo, part)
    # Only what is left out counts where it is large, or what it replaces is.
    known = Interpolation(error=0.0, attained=0.0, deviation=0.5, size=2.0)
    monkeypatch.setattr(identity_grid_module, "proved_between", lambda numbers, *band: known)
    for inner, outer in ((0.0, 2.0**100), (2.0**100, 0.0)):
        values = torch.where(torch.from_numpy(own), inner, outer).double()
        lost = 1.01 * shares.sum() * 2.0**100
        other, needed = (
            replace(line.grid, values=values),
            ErrorBound(delta, 40, inner, lost).error(known, hi, torch.float64),
        )
        for part, kept in ((1 + 1e-4, True), (1 - 1e-4, False)):
            promised = replace(line, grid=other, errors=(part * needed,) * 3)
            assert lost > 0.9 * needed and promised.certified(lo, hi, own, delta) == kept, (inner, part)
    # Around 16 both bands are asked, each for its own promise.
    for errors, kept in (((1.0, 1.0, 1.0), True), ((1e-30, 1.0, 1.0), False), ((1.0, 1e-30, 1.0), False)):
        assert replace(line, errors=errors).certified(10.0, 20.0, own, delta) == kept


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_as_far_off_as_roundings_and_uneven_slopes_make_them(dtype: torch.dtype, monkeypatch):
    asked = []
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: asked.append(given) or True)
    line, u = identity_grid(200.0, dtype), torch.finfo(dtype).eps / 2
    begin = line.grid.slopes.double()[(len(line.grid) - 32) // 2 :][:32]
    bent = begin.clone()
    for lift in (0.0, 1e-3):
        bent[5] = begin[5] + lift
        slopes = line.grid.slopes.clone()
        slopes[(len(line.grid) - 32) // 2 + 5] = bent[5].to(dtype)
        made = replace(line, grid=replace(line.grid, slopes=slopes))
        first = (len(line.grid) - 32) // 2
        piece = PolynomialSegment.of(made, 2.0, 10.0, slice(first, first + 32))
        theta = piece.theta
        uneven = max(abs(a - begin[0].item() - r * theta) for r, a in enumerate(made.grid.slopes[first:][:32].tolist()))
        wanted = 16 * (2 * u * theta * 4.0 + 4 * u) + (2 * 8 + 9 * 3) * u + uneven * 4.0
        assert asked[-1][4] == pytest.approx(wanted, rel=1e-6) and asked[-1][3].sum() == 32
        assert theta == pytest.approx((begin[-1] - begin[0]).item() / 31, rel=1e-6) and piece.center == 6.0
    Junction.of(line, 28.0, 36.0)
    own, delta = asked[-1][3:]
    scores = line.grid.slopes.double().abs() * 36.0 + line.grid.intercepts.double().abs()
    size = scores[torch.from_numpy(own)].max().item()
    assert delta == pytest.approx(4 * u / (1 - 4 * u) * size + (4 + min(2 * size, 64.0)) * u, rel=1e-9, abs=0.0)
    flat = replace(line.grid, slopes=line.grid.slopes / 4096, intercepts=line.grid.intercepts / 4096)
    Junction.of(replace(line, grid=flat), 28.0, 36.0)
    assert asked[-1][3].all()
    size = (flat.slopes.double().abs() * 36.0 + flat.intercepts.double().abs()).max().item()
    assert asked[-1][4] == pytest.approx(4 * u / (1 - 4 * u) * size + (4 + 2 * size) * u, rel=1e-9, abs=0.0)


@pytest.mark.parametrize(("hi", "reach"), [(16 + 1.5e-6, 1.5e-6), (16 + 2.5e-6, 2.0**-19)])
def test_a_centre_that_is_rounded_is_as_far_as_the_farther_end(hi: float, reach: float, monkeypatch):
    """Around 16 float32 has steps of 2⁻¹⁹, 1.9e-6: the middle of a shorter stretch is one of its ends, or beyond it."""
    asked = []
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: asked.append(given))
    line = identity_grid(20.0, torch.float32)
    slopes = line.grid.slopes.clone()
    slopes[5] += 1000.0
    PolynomialSegment.of(replace(line, grid=replace(line.grid, slopes=slopes)), 16.0, hi, slice(0, 32))
    assert asked[-1][4] == pytest.approx(1000 * reach, rel=0.01)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("part", "room"), [(0.84, True), (0.86, False)])
def test_powers_take_up_no_more_exponents_than_leave_room_for_coefficients(dtype, part, room, monkeypatch):
    """32 keys, each θ = 1/8 steeper than the one before: z³² at the end of a stretch is e^{4·reach}."""
    monkeypatch.setattr(IdentityGrid, "certified", lambda *given: True)
    line = identity_grid(20.0, dtype)
    slopes = torch.arange(32, dtype=dtype) / 8 - 2
    made = replace(line, grid=replace(line.grid, slopes=slopes))
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


@pytest.mark.parametrize("s", [[1500.0], [40.0], [40.0, 1500.0, 1600.0], [1.0, 40.0, 1500.0]])
def test_numbers_are_read_in_their_own_stretch_wherever_the_others_are(s: list[float]):
    line = identity_grid(2000.0)
    asked = torch.tensor(s, dtype=torch.float64)
    assert ((line.segments.read(asked) - asked).abs() <= torch.tensor([line.error(size) for size in s])).all()


def test_a_line_that_is_not_odd_is_read_by_all_keys():
    line = identity_grid(20.0)
    values = line.grid.values.clone()
    values[0] += 1.0
    assert Segments.of(altered(line, values=values)) is None
