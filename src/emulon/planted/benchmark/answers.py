"""What a method returns, how it is scored, and the registry of methods."""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from emulon.core.errors import BadShape, EmulonError, unknown
from emulon.core.registry import Registry
from emulon.planted.benchmark.questions import NONE, Questions
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


class NotInstalled(EmulonError):
    """A method's own library is not installed.

    Cure: install the package that the message names.
    """


def library(module: str, package: str) -> Any:
    """Import a method's own library.

    Args:
        module: Its name in Python.
        package: Its name for pip.
    Returns:
        The module.
    Raises:
        NotInstalled: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise NotInstalled(f"needs {package}; pip install 'emulon[lens]'") from missing


# By name: description, and chance level where that is one number.
MEASURES = {
    "where": ("streams and tokens between the best place and the nearest true one", None),
    "found": ("share of quantities whose best place is true", None),
    "what": ("share of places whose quantity is chosen from four", 0.25),
    "circuit": ("area under the ROC curve over heads and MLPs that ŷ depends on", 0.5),
    "which": ("share of algorithms named", 1 / 7),
    "refused": ("share of algorithms outside the candidates that are recognised as such", 1 / 7),
    "allowed": ("share of right algorithms not ruled out", None),
    "power": ("share of wrong algorithms ruled out", None),
    "coverage": ("share of parameters inside their 95 % interval", None),
}

# Scores closer than this, relative to the range of a method's scores, are ties.
ROUNDING = 1e-6


def score(answers: Answers, questions: Questions) -> dict[str, float]:
    """Score a method's answers.

    Args:
        answers: What the method returned.
        questions: What it was asked.
    Returns:
        Scores by the names of `MEASURES`, for the questions that were answered.
    Raises:
        BadShape: An answer has the wrong shape.
    """
    out: dict[str, float] = {}
    if answers.places is not None:
        places = _like(answers.places, questions.held, "places")
        out["where"], out["found"] = where(places, questions.held)
        out["what"] = what(places, questions)
    if answers.heads is not None and answers.mlps is not None:
        heads = _like(answers.heads, questions.used_heads, "heads")
        mlps = _like(answers.mlps, questions.used_mlps, "mlps")
        used = torch.cat([questions.used_heads.flatten(), questions.used_mlps])
        out["circuit"] = area(torch.cat([heads.flatten(), mlps]), used)
    if answers.which is not None:
        which, candidates = answers.which, questions.subject.candidates
        possible = which.possible | {which.name}
        out["which"] = float(which.name == questions.kind)
        out["refused"] = out["which"] if questions.kind == NONE else math.nan
        out["allowed"] = float(questions.kind in possible)
        out["power"] = sum(name not in possible for name in candidates if name != questions.kind) / (
            len(candidates) - 1
        )
        out["coverage"] = math.nan
        if questions.parameter is not None and which.name == questions.kind and which.interval is not None:
            low, high = which.interval
            out["coverage"] = float(low <= questions.parameter <= high)
    return out


def where(
    places: Float[Tensor, "quantities streams tokens"], held: Bool[Tensor, "quantities streams tokens"]
) -> tuple[float, float]:
    """Mean distance of the best place from the nearest true one, and how often it is zero."""
    if not len(held):
        return math.nan, math.nan
    distances = []
    for scored, true in zip(places, held, strict=True):
        best = torch.tensor(divmod(int(scored.argmax()), scored.shape[1]), device="cpu")
        distances.append((true.nonzero() - best).abs().sum(dim=1).min().item())
    return sum(distances) / len(distances), sum(one == 0 for one in distances) / len(distances)


def what(places: Float[Tensor, "quantities streams tokens"], questions: Questions) -> float:
    """How often the quantity at a place has the best score there, of those to choose from."""
    if not questions.places:
        return math.nan
    right = 0.0
    for stream, token, choices in questions.places:
        scored = places[list(choices), stream, token]
        # A tie is right by chance.
        right += float(scored[0] == scored.max()) / int((scored == scored.max()).sum())
    return right / len(questions.places)


def area(scored: Float[Tensor, " components"], used: Bool[Tensor, " components"]) -> float:
    """P(a used component scores above an unused one), ties counted half.

    Differences below a millionth of the range are ties: a dead head scores exactly zero and a used head whose output
    happens to be constant scores a rounding error, which is no evidence.
    """
    if used.all() or not used.any():
        return math.nan
    difference = scored[used][:, None] - scored[~used]
    least = ROUNDING * (scored.max() - scored.min())
    return ((difference > least).double() + 0.5 * (difference.abs() <= least)).mean().item()


def _like(scored: Tensor, wanted: Tensor, name: str) -> Tensor:
    """The scores in float64, NaN lowest; refused if their shape is wrong."""
    if scored.shape != wanted.shape:
        raise BadShape(f"{name} has shape {tuple(scored.shape)}, wanted {tuple(wanted.shape)}")
    return scored.detach().double().nan_to_num(nan=-1e300)
