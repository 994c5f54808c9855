"""Planted models by name, and drawn from the stated distribution."""

from __future__ import annotations

from typing import Any

import torch

from emulon.planted.compounds import Mixture, Switch
from emulon.planted.learners import (
    BatchDescent,
    ClippedSgd,
    LastValue,
    LeastSquares,
    Momentum,
    MovingAverage,
    NearestAverage,
    Ridge,
    Sgd,
)
from emulon.planted.mechanism import MECHANISMS, Mechanism, mechanism_named, whole
from emulon.planted.model import PlantedModel, compiled

# Importing them registers them.
LEARNERS: tuple[type[Mechanism], ...] = (
    *(Sgd, BatchDescent, Momentum, ClippedSgd, Ridge, LeastSquares, MovingAverage, LastValue, NearestAverage),
    *(Mixture, Switch),
)


def plant(mechanism: str | Mechanism, dtype: torch.dtype = torch.float64, **parameters: Any) -> PlantedModel:
    """Compile a learning algorithm into the weights of a GPT-2.

    Args:
        mechanism: A name of `MECHANISMS`, or a mechanism with its parameters.
        dtype: Of the weights; float32 allows much weaker bounds than float64.
        parameters: Of the named mechanism: features, samples, and its own; the rest by default.
    Returns:
        A `PlantedModel` without obfuscation.
    Raises:
        EmulonError: The mechanism or a parameter does not exist, or has an impossible value.

    Example:
        >>> plant("sgd", features=3, step_size=0.2).truth.blocks
        7
    """
    return compiled(mechanism_named(mechanism, **parameters) if isinstance(mechanism, str) else mechanism, dtype)


def drawn_mechanism(seed: int) -> Mechanism:
    """Each kind as likely, its parameters as its docstring says."""
    generator = torch.Generator().manual_seed(seed)
    kind = list(MECHANISMS.values())[whole(generator, 0, len(MECHANISMS) - 1)]
    return kind.drawn(generator)


def sample(seed: int, dtype: torch.dtype = torch.float64) -> PlantedModel:
    """One planted model, a function of its seed."""
    return compiled(drawn_mechanism(seed), dtype)
