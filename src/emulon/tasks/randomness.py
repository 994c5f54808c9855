"""Random numbers that are a function of (seed, step) alone, so that a resumed run sees the same stream."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int) -> int:
    """A 63-bit seed for one step of one run: splitmix64's mixing of both numbers.

    Neighbouring seeds and steps must not give neighbouring generators, hence the mixing.

    Args:
        seed: Of the run.
        step: From 0; −1 is the evaluation's.
    """
    mixed = _splitmix(_splitmix(seed & _MASK) ^ (step & _MASK))
    return mixed >> 1


def at_step(generator: torch.Generator, seed: int, step: int) -> torch.Generator:
    """Put a generator where step `step` of seed `seed` begins. Legal between the replays of a CUDA graph.

    Args:
        generator: Changed in place.
        seed: Of the run.
        step: From 0; −1 is the evaluation's.
    Returns:
        The generator.
    """
    return generator.manual_seed(stream_seed(seed, step))


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*shape"]:
    """Draw from N(0, 1), on the generator's device.

    Args:
        generator: Source of randomness.
        *shape: Of the result.
        dtype: Of the result.
    """
    return torch.randn(*shape, generator=generator, device=generator.device, dtype=dtype)


def uniform(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Float[Tensor, "*shape"]:
    """Draw from [0, 1), on the generator's device.

    Args:
        generator: Source of randomness.
        *shape: Of the result.
        dtype: Of the result.
    """
    return torch.rand(*shape, generator=generator, device=generator.device, dtype=dtype)


def _splitmix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
