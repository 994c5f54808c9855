"""A claim: what a source says, how it is put to the test, and the rule that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from emulon.core.errors import EmulonError
from emulon.core.progress import Progress, silent
from emulon.report.figure import Figure

State = Literal[
    "holds",
    "does not hold",
    "holds as corrected",
    "not decided",
    "not tested at scale",
    "not tested as printed",
    "cannot be tested here",
]
ScaleName = Literal["small", "paper", "gpu"]
# What a rule may say; the other states are about what was not, or could not be, tested.
DECIDED = ("holds", "does not hold", "holds as corrected", "not decided")
SCALES: tuple[ScaleName, ...] = ("small", "paper", "gpu")
# What a run measured, as JSON has it: dicts with string keys, lists, numbers, strings.
Numbers = dict[str, Any]


class CannotTest(EmulonError):
    """What a claim needs is not here (data, a trained learner); the message says how to get it.

    Cure: do what the message says (fetch the data, train the learner), and run the claim again.
    """


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
class SetUp:
    """One line of the table "theirs | ours": optimiser, rate, steps, batch, data, model, ….

    `turns` is the verdict that the difference could turn, and with which it is "not tested as printed". Learners that
    were trained for less show what a source has seen in its own; that they do not show it says nothing.
    """

    what: str
    theirs: str
    ours: str
    turns: Literal["", "holds", "does not hold", "both"] = ""


@dataclass(frozen=True)
class Scale:
    """How long a run takes (on two cores; at the scale gpu on one GPU), and its sizes, kept beside its numbers.

    A statement about training is decided at the source's sizes alone: below them `at_source_scale` is False, and the
    verdict is "not tested at scale" whichever way the numbers fall. At these sizes `set_up` is the table of what the
    source had and what this run had. A theorem may be checked at any size.
    """

    minutes: float | int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    at_source_scale: bool = True
    set_up: Sequence[SetUp] = ()


Measures = Mapping[str, Callable[[], Numbers]]


def measured(measures: Measures) -> dict[str, Numbers]:
    """Parts of a claim that are not kept."""
    return {name: measure() for name, measure in measures.items()}


@dataclass(frozen=True)
class Setting:
    """What a run is given. `sizes["seeds"]` is how many seeds it takes, from `seed` on.

    `keep` is what remembers finished parts.
    """

    sizes: Mapping[str, Any]
    seed: int = 0
    results: Path = Path("results")
    report_progress: Progress = silent
    keep: Callable[[Measures], dict[str, Numbers]] = measured

    @property
    def seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + int(self.sizes.get("seeds", 1))))

    def parts(self, measures: Mapping[str, Callable[[Setting], Numbers]]) -> dict[str, Numbers]:
        """What each measures, or measured in a run that was stopped later on, or in a process beside this one: claims
        that take long are measured in such parts, in any order. Each is given this setting, with its progress as an
        equal share of the whole."""

        def told(number: int, what: str, part: float) -> None:
            self.report_progress(what, (number + part) / len(measures))

        each = enumerate(measures.items())
        return self.keep(
            {name: partial(one, replace(self, report_progress=partial(told, k))) for k, (name, one) in each}
        )


@dataclass(frozen=True)
class Claim:
    """One table, figure or theorem.

    `run` measures and returns numbers; `judge` and `figure` see these numbers alone, so that verdict, index and figure
    can be made again from a results file without measuring. `differs` says in two sentences at most where our set-up is
    not the source's. `correction` is for a statement that fails as printed: what was mended, and what holds then.
    `reversal` says what would change a negative verdict.
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
    correction: str = ""
    reversal: str = ""

    @property
    def set_up(self) -> Sequence[SetUp]:
        """The table "theirs | ours" of the largest scale that has one."""
        return next((scale.set_up for scale in reversed(list(self.scales.values())) if scale.set_up), ())

    def verdict(self, numbers: Numbers, scale: ScaleName) -> Verdict:
        """By the claim's rule; a run that could not be made says so itself."""
        if "cannot" in numbers:
            return Verdict("cannot be tested here", "–", numbers["cannot"])
        verdict = self.judge({name: each for name, each in numbers.items() if name != "missing"})
        if missing := numbers.get("missing"):
            verdict = replace(verdict, reason=f"{verdict.reason}; not measured: {', '.join(missing)}")
        if verdict.state == "holds" and self.correction:
            verdict = replace(verdict, state="holds as corrected")
        said = "is not decided" if verdict.state == "not decided" else verdict.state
        if verdict.state in DECIDED and not self.scales[scale].at_source_scale:
            reason = f"at this size it {said}: {verdict.reason}"
            return Verdict("not tested at scale", verdict.ours, reason)
        turns = {verdict.state, "both"} if verdict.state in DECIDED else set()
        turning = [each.what for each in self.scales[scale].set_up if each.turns in turns]
        if turning:
            reason = f"as set up here it {said}: {verdict.reason}; {', '.join(turning)} could turn that"
            return Verdict("not tested as printed", verdict.ours, reason)
        return verdict
