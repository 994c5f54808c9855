"""The algorithms by name: a class registers itself where it is defined, under its own name in snake case."""

from __future__ import annotations

import re
from typing import TypeVar

from emulon.algorithms.algorithm import Algorithm

ALGORITHMS: dict[str, type[Algorithm]] = {}
Registered = TypeVar("Registered", bound=type[Algorithm])


def register(algorithm: Registered) -> Registered:
    ALGORITHMS[name_of(algorithm)] = algorithm
    return algorithm


def name_of(algorithm: type[Algorithm]) -> str:
    """`huber_regression` for HuberRegression: what commands and files call it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", algorithm.__name__).lower()
