"""Data at the edges: single samples and features, duplicates, zeros, subnormal, collinear, huge and tiny numbers."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from emulon.fuzz.kind import Undecided, Violation

DTYPES = ("float64", "float64", "float64", "float32", "float32", "float16", "bfloat16")
# How numbers are handed over; all but the first few should be understood as what they are, or refused.
GUISES = ("transposed", "strided", "float32", "float16", "int64", "bool", "complex128", "gradient", "batch", "column")
SCALES = (1e-3, 1e3, 1e-8, 1e8, 1e-20, 1e20, 1e-150, 1e150, 1e-310, 1e300)


def a_scale(random: Random, ordinary: float = 0.85) -> float:
    return 1.0 if random.random() < ordinary else random.choice(SCALES)


def a_guise(random: Random) -> str:
    return "plain" if random.random() < 0.75 else random.choice(GUISES)


def a_dtype(random: Random, *, known: float = 0.95) -> str:
    """Mostly one that is offered."""
    return random.choice(DTYPES[:5]) if random.random() < known else random.choice(DTYPES)


def numbers(random: Random, count: int, scale: float = 1.0) -> list[float]:
    return [random.gauss(0, 1) * scale for _ in range(count)]


def table(random: Random, samples: int, features: int) -> list[list[float]]:
    """Rows, of one of many characters."""
    scale = a_scale(random)
    rows = [numbers(random, features, scale) for _ in range(samples)]
    character = random.random()
    if character < 0.5:
        return rows
    if character < 0.58:
        return [[float(round(3 * value / scale)) for value in row] for row in rows]
    if character < 0.64:
        return [list(random.choice(rows[: max(1, samples // 2)])) for _ in rows]
    if character < 0.68:
        return [[0.0] * features for _ in rows]
    if character < 0.74:
        rows[random.randrange(samples)] = [0.0] * features
        return rows
    if character < 0.80:
        empty = random.randrange(features)
        return [[0.0 if k == empty else value for k, value in enumerate(row)] for row in rows]
    if character < 0.86:
        return [[row[0] * (k + 1) for k in range(features)] for row in rows]
    if character < 0.90:
        return [[random.choice((-scale, scale)) for _ in row] for row in rows]
    if character < 0.94:
        return [[random.choice((5e-324, -5e-324, 1e-310, 0.0, value)) for value in row] for row in rows]
    return [[value * random.choice(SCALES[:4]) for value in row] for row in rows]


def targets(random: Random, x: list[list[float]], link: str) -> list[float]:
    """Labels for a margin, counts for a rate, else a noisy or exact fit, zeros, or something quite different."""
    if random.random() < 0.03:
        link = "residual"
    if link == "margin":
        return [random.choice((-1.0, 1.0)) for _ in x]
    if link == "rate":
        return [float(random.choice((0, 0, 1, 1, 2, 5))) for _ in x]
    character, w = random.random(), numbers(random, len(x[0]))
    fit = [sum(a * b for a, b in zip(row, w, strict=True)) for row in x]
    if character < 0.6:
        return [value + 0.3 * random.gauss(0, 1) for value in fit]
    if character < 0.7:
        return fit
    if character < 0.8:
        return [0.0 for _ in fit]
    return numbers(random, len(x), a_scale(random, 0.4))


def sizes(random: Random, samples: int = 6, features: int = 3) -> tuple[int, int]:
    return random.choice((1, 2, random.randint(1, samples))), random.choice((1, 2, random.randint(1, features)))


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def tensor(values: Any, dtype: str, guise: str = "plain") -> Tensor:
    """The numbers as a tensor of this dtype, handed over in this guise."""
    made = torch.tensor(values, dtype=torch.float64).to(dtype_named(dtype))
    if guise == "transposed" and made.ndim >= 2:
        return made.mT.contiguous().mT
    if guise == "strided":
        return torch.stack([made, torch.full_like(made, 7.0)], dim=-1).flatten(-2)[..., ::2]
    if guise in ("float32", "float16", "int64", "bool"):
        return made.to(dtype_named(guise))
    if guise == "complex128":
        return torch.complex(made.double(), torch.ones_like(made.double()))
    if guise == "gradient":
        return made.requires_grad_()
    if guise == "batch":
        return made.expand(2, *made.shape)
    return made.unsqueeze(-1) if guise == "column" else made


def stored(values: Any, dtype: str, guise: str) -> Any:
    """What the promise is about: the numbers, as they were handed over, as the dtype then holds them; as lists."""
    kept = guise if guise in ("float32", "float16", "int64", "bool") else "plain"
    return tensor(values, dtype, kept).to(dtype_named(dtype)).double().tolist()


def require_meant(guise: str, *given: Tensor) -> None:
    """For what was accepted: it must have been understood as it was meant."""
    if any(part.is_complex() for part in given):
        raise Violation("complex numbers were taken for real ones")
    if guise == "column":
        raise Undecided("a column may be read as a batch of other problems")


def first_of_batch(out: Tensor, guise: str) -> Tensor:
    """The answer for the one dataset that a batch repeats: every member must have it, to the last bit or nearly."""
    return out[0] if guise == "batch" else out
