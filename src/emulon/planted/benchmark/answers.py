"""What a method returns, and the registry of methods."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError, unknown
from emulon.core.names import Registry
from emulon.identification.loading import load_module
from emulon.planted.benchmark.subject import Subject


@dataclass(frozen=True)
class Which:
    """A method's answer to "which algorithm".

    Attributes:
        name: The algorithm, a name of `Subject.candidates`.
        possible: All candidates that are not ruled out.
        interval: 95 % confidence interval of the algorithm's parameter, None if not estimated.

    Example:
        >>> Which("sgd", frozenset({"sgd", "ridge"}), (0.4, 0.6)).name
        'sgd'
    """

    name: str
    possible: frozenset[str] = frozenset()
    interval: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.possible, frozenset | set):
            raise EmulonError(f"Which takes a name and a set of names, not {self.name!r} and {self.possible!r}")
        if self.interval is not None:
            try:
                low, high = self.interval
                float(low), float(high)
            except (TypeError, ValueError):
                raise EmulonError(f"Which.interval is {self.interval!r}; give a pair of numbers, or None") from None


@dataclass(frozen=True)
class Answers:
    """A method's answers; None for questions that it does not answer. Only the order of scores counts.

    Attributes:
        places: Score of each quantity in each stream at each token. It answers where a quantity is (its best place)
            and what is at a place (the best of four quantities).
        heads: Score of ŷ depending on each head.
        mlps: Score of ŷ depending on each block's MLP.
        which: The algorithm.
    """

    places: Float[Tensor, "quantities streams tokens"] | None = None
    heads: Float[Tensor, "blocks heads"] | None = None
    mlps: Float[Tensor, " blocks"] | None = None
    which: Which | None = None

    def __post_init__(self) -> None:
        for name in ("places", "heads", "mlps"):
            scored = getattr(self, name)
            if scored is not None and not isinstance(scored, Tensor):
                raise EmulonError(f"Answers.{name} is a {type(scored).__name__}; give a tensor, or leave it out")
        if self.which is not None and not isinstance(self.which, Which):
            raise EmulonError(f"Answers.which is a {type(self.which).__name__}; give a Which, or leave it out")


Method = Callable[[Subject], Answers]
METHODS: Registry[Method] = Registry("method")


def method(name: str) -> Callable[[Method], Method]:
    """Decorator that registers a method.

    Args:
        name: Its name in `METHODS` and on the command line.
    Returns:
        A decorator that returns the function unchanged.
    """
    return partial(METHODS.register, name=name)


def method_named(name: str) -> Method:
    """A method by its registered name, or as `file.py:function` or `package.module:function`.

    Args:
        name: What to look up or import.
    Returns:
        The method.
    Raises:
        EmulonError: There is no such method, file, module or function.
    """
    if ":" not in name:
        if name not in METHODS:
            raise EmulonError(f"{unknown('method', name, METHODS)}, or name your own as file.py:function")
        return METHODS[name]
    place, _, attribute = name.rpartition(":")
    if place.endswith(".py") and not Path(place).is_file():
        raise EmulonError(f"there is no file {place}; name a method as file.py:function")
    try:
        found = getattr(load_module(place), attribute, None)
    except Exception as error:  # whatever a module does when it is imported
        raise EmulonError(f"{place} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise EmulonError(f"{place} has no function {attribute!r}; name a method as file.py:function")
    chosen: Method = found
    return chosen


class NotInstalled(EmulonError):
    """A method's own library is not installed.

    Cure: install the package that the message names.
    """


def library(module: str, package: str) -> Any:
    """Import a method's own library, which pip calls `package`; raises NotInstalled where that fails."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise NotInstalled(f"needs {package}; pip install 'emulon[lens]'") from missing
