"""A kind of case: how one is drawn, and how its promise is put to the test; and what may come of that."""

from __future__ import annotations

import signal
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import FrameType
from typing import Any, ClassVar, Literal

from emulon.core.errors import EmulonError, NotCertified, unknown

# Plain values, so that a case can be written down: numbers, words, lists of them.
Values = Mapping[str, Any]
Verdict = Literal["kept", "refused", "open", "violation", "traceback"]
VERDICTS: tuple[Verdict, ...] = ("kept", "refused", "open", "violation", "traceback")
# A case that takes more seconds of the processor hangs.
PATIENCE = 60.0


class Violation(Exception):
    """A promise that was not kept."""


class Undecided(Exception):
    """The judge cannot tell: the exact path runs through a jump, or the promise is met to the last of many digits."""


class Slow(Exception):
    """More than `PATIENCE` seconds."""


@dataclass(frozen=True)
class Outcome:
    """`said` is one line about it; `place` is where a traceback ended, so that two of them can be told apart."""

    verdict: Verdict
    said: str = ""
    place: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict in ("violation", "traceback")

    def like(self, other: Outcome) -> bool:
        """The same fault, as far as can be seen."""
        return (self.verdict, self.place) == (other.verdict, other.place)


class Kind(ABC):
    """Supplies `draw` and `check`; `class Mine(Kind, name="mine")` registers itself."""

    registry: ClassVar[dict[str, Kind]] = {}
    name: ClassVar[str]
    # How often, next to the others.
    weight: ClassVar[float] = 1.0

    def __init_subclass__(cls, name: str = "") -> None:
        super().__init_subclass__()
        if name:
            cls.name = name
            Kind.registry[name] = cls()

    @abstractmethod
    def draw(self, random: Random) -> dict[str, Any]:
        """A case in plain values."""

    @abstractmethod
    def check(self, values: Values) -> None:
        """Raises `Violation` where a promise is broken, `Undecided` where nobody can tell; a refusal passes through."""


def kind_named(name: str) -> Kind:
    if name not in Kind.registry:
        raise EmulonError(unknown("kind of case", name, Kind.registry))
    return Kind.registry[name]


def tried(kind: Kind, values: Values) -> Outcome:
    """What comes of a case. Warnings count as tracebacks: users of `-W error` would see them."""
    try:
        with warnings.catch_warnings(), _limited(), _every_warning():
            warnings.simplefilter("error")
            # Said of a tolerance that a program does not keep; what it does promise is put to the test.
            warnings.filterwarnings("ignore", "the (interpolation|certificate) of .* (can promise|says)", UserWarning)
            kind.check(values)
    except Undecided as error:
        return Outcome("open", str(error))
    except Violation as error:
        return Outcome("violation", str(error))
    except NotCertified as error:
        return Outcome("violation", str(error))
    except EmulonError as error:
        line = str(error)
        if not line.strip() or "\n" in line:
            return Outcome("violation", f"a refusal that is not one line: {line!r}")
        return Outcome("refused", line)
    except Exception as error:
        if type(error).__name__ == "TypeCheckError":  # a test run under a type checker, which stands before everything
            return Outcome("refused", "by the type checker")
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome("traceback", said, f"{type(error).__name__} in {last.name}")
    return Outcome("kept")


def check(kind: str, values: Values) -> None:
    """For tests that were written from failing cases: passes where the promise is kept, or refused in one line."""
    outcome = tried(kind_named(kind), values)
    if outcome.bad:
        raise AssertionError(f"{outcome.verdict}: {outcome.said}")


@contextmanager
def _every_warning() -> Iterator[None]:
    """Torch gives some of its own once a process: what is tried again must come out as it did."""
    import torch

    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        yield
    finally:
        torch.set_warn_always(before)


@contextmanager
def _limited() -> Iterator[None]:
    """Interrupts what hangs, where the system can (not on Windows, and only in the main thread)."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Slow(f"it takes more than {PATIENCE:g} seconds")

    try:
        before = signal.signal(signal.SIGPROF, ring)
    except (ValueError, AttributeError):
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
