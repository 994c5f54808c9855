"""A claim: what a source states, how it is tested, and the rule that decides; and the list of all claims."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError, unknown
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
# States that a rule may return for what was tested.
DECIDED = ("holds", "does not hold", "holds as corrected", "not decided")
SCALES: tuple[ScaleName, ...] = ("small", "paper", "gpu")
# Measured values as JSON has them: dicts with string keys, lists, numbers, strings.
Numbers = dict[str, Any]
Measures = Mapping[str, Callable[[], Numbers]]


class CannotTest(EmulonError):
    """Data or a trained learner that a claim needs is missing; the message says how to get it.

    Cure: do what the message says (fetch the data, train the learner), and run the claim again.
    """


@dataclass(frozen=True)
class Verdict:
    """The state, our result in a few words, and the reason in one line."""

    state: State
    ours: str
    reason: str

    @classmethod
    def that(cls, holds: bool, ours: str, reason: str) -> Verdict:
        return cls("holds" if holds else "does not hold", ours, reason)


@dataclass(frozen=True)
class SetUp:
    """One line of the table "theirs | ours": optimiser, rate, steps, batch, data, model, ….

    `turns` is the verdict that the difference could change; such a verdict becomes "not tested as printed". A learner
    that was trained for less than the source's may confirm a statement; it cannot refute it.
    """

    what: str
    theirs: str
    ours: str
    turns: Literal["", "holds", "does not hold", "both"] = ""


def set_up(text: str) -> tuple[SetUp, ...]:
    """The table from text with a line `what | theirs | ours`, or `what | theirs | ours | turns`, for each row.

    A line that begins with "..." continues the line before it.
    """
    lines = re.sub(r"\s*\n\s*\.\.\.\s*", " ", text.strip()).splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return tuple(SetUp(*row) for row in rows)  # type: ignore[arg-type]  # a test reads `turns` of all claims


@dataclass(frozen=True)
class Scale:
    """The minutes of a run (on two cores; at the scale gpu on one GPU), and its sizes, kept beside its numbers.

    A statement about training is decided only at the source's sizes: below them `at_source_scale` is False, and the
    verdict is "not tested at scale" whatever the numbers are. A theorem may be checked at any size.
    """

    minutes: float | int
    sizes: Mapping[str, Any] = field(default_factory=dict)
    at_source_scale: bool = True
    set_up: Sequence[SetUp] = ()


def measured(measures: Measures) -> dict[str, Numbers]:
    """Measures all parts and keeps none of them on disk."""
    return {name: measure() for name, measure in measures.items()}


@dataclass(frozen=True)
class Setting:
    """What `Claim.run` is given. `sizes["seeds"]` is the number of seeds, from `seed` on; `keep` stores parts."""

    sizes: Mapping[str, Any]
    seed: int = 0
    results: Path = Path("results")
    report_progress: Progress = silent
    keep: Callable[[Measures], dict[str, Numbers]] = measured

    @property
    def seeds(self) -> list[int]:
        return list(range(self.seed, self.seed + int(self.sizes.get("seeds", 1))))

    def parts(self, measures: Mapping[str, Callable[[Setting], Numbers]]) -> dict[str, Numbers]:
        """The numbers of every part, measured now, in an earlier run that was stopped, or by another process.

        Each part is called with this setting; its progress is an equal share of the whole.
        """

        def part_progress(number: int, what: str, done: float) -> None:
            self.report_progress(what, (number + done) / len(measures))

        each = enumerate(measures.items())
        return self.keep(
            {name: partial(one, replace(self, report_progress=partial(part_progress, k))) for k, (name, one) in each}
        )


@dataclass(frozen=True)
class Claim:
    """One table, figure or theorem.

    Attributes:
        theirs: The printed number, or the source's words.
        run: Measures and returns plain numbers.
        judge: The rule. It sees the numbers alone, so that a verdict is derived again without measuring.
        figure: Drawn from the numbers alone.
        differs: Where our set-up is not the source's, in two sentences at most.
        correction: For a statement that fails as printed: what was corrected, and what holds then.
        reversal: What would change a negative verdict.
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
        """By the claim's rule; limited by the scale and by differences of set-up that could change the outcome."""
        missing = f"; not measured: {', '.join(numbers['missing'])}" if "missing" in numbers else ""
        if "cannot" in numbers:
            return Verdict("cannot be tested here", "–", numbers["cannot"] + missing)
        try:
            verdict = self.judge({name: each for name, each in numbers.items() if name != "missing"})
        except Exception:
            if not missing:
                raise
            return Verdict("cannot be tested here", "–", f"too few parts were measured for a verdict{missing}")
        verdict = replace(verdict, reason=verdict.reason + missing)
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


# Folders, and kinds of statement, in the order of the index.
SOURCES = ("emulation", "learning", "algoformer", "ours")
KINDS = ("theorem", "corollary", "corollaries", "lemmas", "remark", "example", "hopfield", "section", "table", "figure")


@cache
def all_claims() -> dict[str, Claim]:
    """By name, in the order of the index: every Claim that is a variable of a module in the folders of the sources."""
    found: dict[str, Claim] = {}
    for source in SOURCES:
        package = importlib.import_module(f"reproduce.{source}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            every = vars(importlib.import_module(module.name)).values()
            found |= {each.name: each for each in every if isinstance(each, Claim)}
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def _place(name: str) -> tuple[int, int, bool, list[int], str]:
    """By source, kind of statement and number; an appendix's (D.1) after the others."""
    source, kind, *rest = name.split("-", 2)
    number = "".join(rest)
    rank = KINDS.index(kind) if kind in KINDS else len(KINDS)
    digits = [int(part) for part in re.findall(r"\d+", number)]
    return SOURCES.index(source), rank, not number[:1].isdecimal(), digits, name


def claim_named(name: str) -> Claim:
    known = all_claims()
    if name not in known:
        raise EmulonError(f"{unknown('claim', name, known)} (python -m reproduce lists all {len(known)})")
    return known[name]
