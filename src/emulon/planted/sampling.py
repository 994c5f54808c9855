"""Specimens by name, and drawn from the stated distribution."""

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
from emulon.planted.specimen import Specimen, specimen_of

# Importing them registers them.
LEARNERS: tuple[type[Mechanism], ...] = (
    *(Sgd, BatchDescent, Momentum, ClippedSgd, Ridge, LeastSquares, MovingAverage, LastValue, NearestAverage),
    *(Mixture, Switch),
)


def specimen_named(name: str, dtype: torch.dtype = torch.float64, **parameters: Any) -> Specimen:
    """`specimen_named("sgd", features=3, step_size=0.2)`."""
    return specimen_of(mechanism_named(name, **parameters), dtype)


def drawn_mechanism(seed: int) -> Mechanism:
    """Each kind as likely, its parameters as its docstring says."""
    generator = torch.Generator().manual_seed(seed)
    kind = list(MECHANISMS.values())[whole(generator, 0, len(MECHANISMS) - 1)]
    return kind.drawn(generator)


def sample(seed: int, dtype: torch.dtype = torch.float64) -> Specimen:
    """One specimen, a function of its seed."""
    return specimen_of(drawn_mechanism(seed), dtype)
