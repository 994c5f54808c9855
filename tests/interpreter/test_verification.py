"""What a file claims is held against its own numbers, up to where they end and no further."""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import BOUNDS, GRID, phase, program

from emulon.attention.codes import circular
from emulon.certify import Domain
from emulon.interpreter import verification
from emulon.interpreter.verification import _false_claims_of_phase, _least_distance, _reaches

f32, f64, U = torch.float32, torch.float64, 2.0**-53


@pytest.mark.parametrize("size", [1.0, 2.0])
def test_codes_are_least_distance_by_their_nearest_products_less_what_is_rounded(size: float) -> None:
    """13/16 is the smaller product with itself, 1/2 the one with the other; each product of two terms rounds thrice."""
    vectors = size * torch.tensor([[1.0, 0.0], [0.5, 0.75]], dtype=f64)
    assert abs(_least_distance(vectors) - (0.3125 * size**2 - 6 * U * size**2)) <= 0.6 * U * size**2
    assert abs(_least_distance(vectors[1:]) - 0.8125 * size**2 * (1 - 6 * U)) <= 0.6 * U * size**2
    assert _least_distance(torch.eye(3, dtype=f64)) == 1.0


@pytest.mark.parametrize(("dtype", "near", "off"), [(f64, 1.8e-14, 2.5e-14), (f32, 2.5e-8, 3.5e-8)])
def test_of_too_many_codes_those_that_are_known_are_believed_to_their_last_places(
    dtype, near, off, monkeypatch
) -> None:
    """float64 computes sines and cosines to 2e-14 everywhere; float32 has half a last place of numbers up to 1."""
    monkeypatch.setattr(verification, "PAIRS", 2)
    known = circular(40, dtype)
    row, column = (known.vectors.abs() == known.vectors.abs().min()).nonzero()[0].tolist()
    for moved, gap in ((near, known.gap), (off, -math.inf)):
        vectors = known.vectors.clone()
        vectors[row, column] += moved
        assert _least_distance(vectors) == gap


@pytest.mark.parametrize(("short", "leaks"), [(7e-13, False), (2e-12, True), (1e-3, True)])
def test_codes_are_as_strong_as_their_leak_asks_for(short: float, leaks: bool) -> None:
    """ln of four others over the leak, what they may be ahead, and a tenth to spare; in log, to 1e-12."""
    needed = GRID.log_normaliser_range + math.log(4 / 2e-5) + 0.1
    said = list(_false_claims_of_phase(phase(needed / 0.5 * (1 - short)), "t"))
    assert any("leaks more" in line for line in said) == leaks
    said = list(_false_claims_of_phase(replace(phase(), proved=replace(BOUNDS, leak=0.0)), "t"))
    assert any("leaks more" in line for line in said)


@pytest.mark.parametrize(("part", "enough"), [(1 + 1e-12, True), (1 - 1e-12, False)])
@pytest.mark.parametrize("which", ["w", "residual", "absolute"])
def test_a_penalty_covers_all_that_a_step_leads_to(part: float, enough: bool, which: str) -> None:
    """0.9·½ of the weights stays, and a step of ¼ moves them by √λ = 1 times the largest slope, 3/2."""
    edge = (0.9 * 0.5 + 0.25 * math.sqrt(1 + 2e-9) * 1.5) * part
    wide = {name: edge if name == which else 2 * edge for name in ("w", "residual", "absolute")}
    proximal = phase(domain=Domain(3, 3, 1.0, 0.0, **wide), name="proximal", readout="rest")
    assert _reaches(program(l1=0.1), proximal) == enough
    assert not _reaches(program(l1=0.1), replace(proximal, domain=Domain(3, 3, 2.0, 0.0, 9.0)))
