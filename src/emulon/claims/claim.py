"""A claim: what a source says, how it is put to the test, and the rule that decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from emulon.claims.figure import Figure
from emulon.errors import EmulonError
from emulon.progress import Progress, silent

State = Literal["holds", "does not hold", "cannot be tested here"]
ScaleName = Literal["small", "paper"]
SCALES: tuple[ScaleName, ...] = ("small", "paper")
# What a run measured, as JSON has it: dicts with string keys, lists, numbers, strings.
Numbers = dict[str, Any]


class CannotTest(EmulonError):
    """What a claim needs is not here (data, a longer run's results); the message says how to get it."""


@dataclass(frozen=True)
class Verdict:
    """Ours in a few words, and whether that is what the source says; `reason` is one line."""

    state: State
    ours: str
    reason: str

    @classmethod
    def that(cls, holds: bool, ours: str, reason: str) -> Verdict:
        return cls("holds" if holds else "does not hold", ours, reason)


@dataclass(frozen=True)
class Scale:
    """How long a run takes on two cores (on a GPU where `sizes` says so), and its sizes, kept beside its numbers."""

    minutes: float | int
    sizes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What a run is given. `sizes["seeds"]` is how many seeds it takes, from `seed` on."""

    sizes: Mapping[str, Any]
    seed: int = 0
    results: Path = Path("results")
    progress: Progress = silent

    @property
    def seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + int(self.sizes.get("seeds", 1))))

    def evidence(self, stem: str) -> Numbers:
        """The numbers of a longer run, by a benchmark, that are kept among the results."""
        path = self.results / f"{stem}.json"
        if not path.exists():
            raise CannotTest(f"needs {path}, which a longer run writes (see benchmarks/)")
        return json.loads(path.read_text())


@dataclass(frozen=True)
class Claim:
    """One table, figure or theorem.

    `run` measures and returns numbers; `judge` and `figure` see these numbers alone, so that verdict, index and figure
    can be made again from a results file without measuring. `differs` says in two sentences at most where our set-up is
    not the source's.
    """

    name: str
    source: str
    statement: str
    theirs: str
    scales: Mapping[ScaleName, Scale]
    run: Callable[[Setting], Numbers]
    judge: Callable[[Numbers], Verdict]
    figure: Callable[[Numbers], Figure]
    differs: str = ""

    def verdict(self, numbers: Numbers) -> Verdict:
        """By the claim's rule; a run that could not be made says so itself."""
        if "cannot" in numbers:
            return Verdict("cannot be tested here", "–", numbers["cannot"])
        return self.judge(numbers)
