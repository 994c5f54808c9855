"""What a file claims is held against its own numbers, up to where they end and no further."""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import phase, program

from emulon.attention.codes import circular
from emulon.certify import Domain
from emulon.interpreter import files
from emulon.interpreter.files import _least_distance, _reaches

f32, f64, U = torch.float32, torch.float64, 2.0**-53


@pytest.mark.parametrize(("dtype", "near", "off"), [(f64, 1.8e-14, 2.5e-14), (f32, 2.5e-8, 3.5e-8)])
def test_of_too_many_codes_those_that_are_known_are_believed_to_their_last_places(
    dtype, near, off, monkeypatch
) -> None:
    """float64 computes sines and cosines to 2e-14 everywhere; float32 has half a last place of numbers up to 1."""
    monkeypatch.setattr(files, "PAIRS", 2)
    known = circular(40, dtype)
    row, column = (known.vectors.abs() == known.vectors.abs().min()).nonzero()[0].tolist()
    for moved, gap in ((near, known.gap), (off, -math.inf)):
        vectors = known.vectors.clone()
        vectors[row, column] += moved
        assert _least_distance(vectors) == gap


@pytest.mark.parametrize(("part", "enough"), [(1 + 1e-12, True), (1 - 1e-12, False)])
@pytest.mark.parametrize("which", ["w", "residual", "absolute"])
def test_a_penalty_covers_all_that_a_step_leads_to(part: float, enough: bool, which: str) -> None:
    """0.9·½ of the weights stays, and a step of ¼ moves them by √λ = 1 times the largest slope, 3/2."""
    edge = (0.9 * 0.5 + 0.25 * math.sqrt(1 + 2e-9) * 1.5) * part
    wide = {name: edge if name == which else 2 * edge for name in ("w", "residual", "absolute")}
    proximal = phase(domain=Domain(3, 3, 1.0, 0.0, **wide), name="proximal", readout="rest")
    assert _reaches(program(l1=0.1), proximal) == enough
    assert not _reaches(program(l1=0.1), replace(proximal, domain=Domain(3, 3, 2.0, 0.0, 9.0)))
