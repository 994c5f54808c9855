"""Reading by the keys that can be felt is within what the line promises, and is not done where it would not be."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from emulon.interpreter import Capacity, Interpreter
from emulon.interpreter.number_line import NumberLine, certified_line, number_line, octaves_for
from emulon.interpreter.stretches import Piece, Seam, Stretches

DTYPES = [torch.float64, torch.float32]


def numbers(line: NumberLine, dtype: torch.dtype) -> torch.Tensor:
    """Of every magnitude, around the seams, and around the ends of stretches."""
    edges = torch.tensor([one.hi for one in line.stretches.known], dtype=dtype)
    near = (edges[:, None] * (1 + torch.linspace(-1e-6, 1e-6, 7, dtype=dtype))).flatten()
    wide = torch.logspace(-20, np.log2(line.reach), 4001, base=2.0, dtype=dtype)
    s = torch.cat([torch.zeros(1, dtype=dtype), near, wide]).clamp(max=line.reach)
    return torch.cat([s, -s])


@pytest.mark.parametrize("reach", [32.0, 2000.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_is_read_as_well_as_the_line_promises(dtype: torch.dtype, reach: float):
    line = number_line(reach, dtype)
    s = numbers(line, dtype)
    off = (line.stretches.read(s).double() - s.double()).abs()
    promised = torch.tensor([line.error(size) for size in s.abs().tolist()], dtype=torch.float64)
    assert (off <= promised).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stretches_follow_each_other_and_read_what_all_keys_read(dtype: torch.dtype):
    line = number_line(2000.0, dtype)
    known = line.stretches.known
    assert known[0].lo == 0.0 and known[-1].hi == line.reach
    assert all(one.hi == other.lo for one, other in pairwise(known))
    assert {type(one) for one in known} == {Piece, Seam}
    assert all(len(one.slopes) <= 64 for one in known if isinstance(one, Seam)) and len(line.grid) > 100
    s, by_all = numbers(line, dtype), Interpreter(Capacity(1, 1, 1, 2000.0), dtype)
    allowed = torch.tensor([2 * line.error(size) for size in s.abs().tolist()], dtype=torch.float64)
    assert ((line.stretches.read(s).double() - by_all.read(s).double()).abs() <= allowed).all()


def altered(line: NumberLine, **parts: torch.Tensor) -> NumberLine:
    return certified_line(replace(line.grid, **parts), octaves_for(line.reach))


def test_keys_that_can_be_felt_are_not_left_out():
    """The outer pieces are raised, so that they reach into the middle, whose own keys alone are far off there."""
    line = number_line(200.0)
    lift = torch.zeros_like(line.grid.intercepts)
    lift[:32] = lift[-32:] = 300.0
    other = altered(line, intercepts=line.grid.intercepts + lift)
    honest, blind = other.stretches, line.stretches
    assert isinstance(blind.known[0], Piece) and not isinstance(honest.known[0], Piece)
    s = torch.linspace(0.0, 28.0, 2001, dtype=torch.float64)
    by_all = torch.softmax(torch.outer(s, other.grid.slopes) + other.grid.intercepts, dim=-1) @ other.grid.values
    # Left out, they are a hundred thousand times what rounding does.
    assert (blind.read(s) - by_all).abs().max() > 1e-9
    assert (honest.read(s) - by_all).abs().max() < 1e-13


def test_slopes_that_are_not_equally_spaced_are_not_taken_for_powers():
    line = number_line(20.0)
    slopes = line.grid.slopes.clone()
    slopes[3] *= 1 + 1e-9
    slopes[-4] *= 1 + 1e-9
    assert isinstance(line.stretches.known[0], Piece)
    assert not any(isinstance(one, Piece) for one in altered(line, slopes=slopes).stretches.known)


def test_a_line_that_is_not_odd_is_read_by_all_keys():
    line = number_line(20.0)
    values = line.grid.values.clone()
    values[0] += 1.0
    assert Stretches.of(altered(line, values=values)) is None
