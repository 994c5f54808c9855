"""A method of interpretability: one call, from a subject to answers. What it cannot answer it leaves out."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError, unknown
from emulon.core.registry import Registry
from emulon.planted.benchmark.subject import Subject


@dataclass(frozen=True)
class Which:
    """The algorithm by the name of a candidate, all candidates that are not ruled out, and an interval that should hold
    the parameter with a probability of 95 %."""

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
    """Larger scores say yes; only their order counts.

    `places`: how surely each quantity stands in each stream at each token. It answers two questions: where a quantity
    stands (the best place), and what stands at a place (the best of some quantities).
    `heads`, `mlps`: how surely ŷ depends on each head, and on each block's MLP.
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
    """`@method("mine")` makes a function a method that has a name."""
    return partial(METHODS.register, name=name)


def method_named(name: str) -> Method:
    """One of ours by its name, or anybody's as `file.py:function` or `package.module:function`."""
    if ":" not in name:
        if name not in METHODS:
            raise EmulonError(f"{unknown('method', name, METHODS)}, or name your own as file.py:function")
        return METHODS[name]
    place, _, attribute = name.rpartition(":")
    found = getattr(_module(place), attribute, None)
    if not callable(found):
        raise EmulonError(f"{place} has no function {attribute!r}; name a method as file.py:function")
    chosen: Method = found
    return chosen


def _module(place: str) -> object:
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise EmulonError(f"there is no file {place}; name a method as file.py:function")
        specification = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        sys.modules[specification.name] = module  # dataclasses look their own module up
        specification.loader.exec_module(module)
        return module
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as missing:
        raise EmulonError(f"there is no module {place}; name a method as file.py:function") from missing
