"""Case after case: drawn from the seed, tried, and where one fails made small and written down as a test."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from emulon.core.files import make_folder, write_atomically
from emulon.core.progress import Progress, silent
from emulon.fuzz.kind import VERDICTS, Kind, Outcome, Values, tried
from emulon.fuzz.shrink import shrunk


@dataclass(frozen=True)
class Failure:
    kind: str
    number: int
    values: Values
    outcome: Outcome
    file: Path


@dataclass
class Counts:
    """What came of the cases so far, by kind; a failure that was met before is counted, and not written again."""

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        return sum(sum(each.values()) for each in self.verdicts.values())

    def of(self, verdict: str) -> int:
        return sum(each[verdict] for each in self.verdicts.values())

    @property
    def failed(self) -> int:
        return self.of("violation") + self.of("traceback")

    def add(self, kind: str, outcome: Outcome, seconds: float) -> None:
        self.verdicts.setdefault(kind, Counter(dict.fromkeys(VERDICTS, 0)))[outcome.verdict] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds
        if outcome.verdict == "refused":
            self.refusals[re.sub(r"[-+]?\d[\d.e+-]*", "…", outcome.said)] += 1


@dataclass(frozen=True)
class Campaign:
    """`seed` decides every case; `only` names the kinds, all of them where it is empty."""

    seed: int = 0
    only: Sequence[str] = ()
    folder: Path = Path("fuzz-failures")

    @property
    def kinds(self) -> list[Kind]:
        return [kind for name, kind in Kind.registry.items() if not self.only or name in self.only]

    def case(self, number: int) -> tuple[Kind, dict[str, Any]]:
        """The same for a seed and a number, whatever ran before."""
        random = Random(f"{self.seed}:{number}")
        kind = random.choices(self.kinds, [kind.weight for kind in self.kinds])[0]
        return kind, kind.draw(random)

    def run(self, more: Callable[[int], float], counts: Counts, report: Progress = silent) -> None:
        """Case after case until `more`, asked with the number of the next for what part is done, says 1."""
        number = 0
        while (done := more(number)) < 1:
            report(f"case {number}: {counts.failed} failed", done)
            kind, values = self.case(number)
            begin = time.monotonic()
            outcome = tried(kind, values)
            counts.add(kind.name, outcome, time.monotonic() - begin)
            known = any(each.kind == kind.name and each.outcome.like(outcome) for each in counts.failures)
            if outcome.bad and not known:
                report(f"case {number}: making it small", done)
                counts.failures.append(self.written(kind, number, values, outcome))
            number += 1

    def written(self, kind: Kind, number: int, values: Values, outcome: Outcome) -> Failure:
        """Made small, unless it hangs: every attempt would take as long."""
        small = values
        if not outcome.place.startswith("Slow"):
            small = shrunk(values, lambda one: tried(kind, one).like(outcome))
            outcome = tried(kind, small)
        name = kind.name.replace(" ", "_")
        file = make_folder(self.folder) / f"test_fuzz_{name}_{self.seed}_{number}.py"
        write_atomically(file, as_test(kind.name, self.seed, number, small, outcome))
        return Failure(kind.name, number, small, outcome, file)


def as_test(kind: str, seed: int, number: int, values: Values, outcome: Outcome) -> str:
    """A test that fails until the fault is mended."""
    name = re.sub(r"\W+", "_", kind)
    said = re.sub(r"[\\\\\"]", "'", outcome.said)[:200]
    return f'''"""{outcome.verdict.capitalize()} found by `emulon fuzz --seed {seed}`, case {number}, made small.

{said}
"""

from math import inf, nan  # noqa: F401 (numbers of a case may be these)

from emulon.fuzz import check

CASE = {_literal(values)}


def test_{name}_{seed}_{number}_keeps_its_promise_or_is_refused():
    check({kind!r}, CASE)
'''


def _literal(values: Values) -> str:
    return "{\n" + "".join(f"    {name!r}: {value!r},\n" for name, value in values.items()) + "}"


def for_minutes(minutes: float, cases: int | None) -> Callable[[int], float]:
    """What part is done: of the time, or of the cases, whichever ends first."""
    begin = time.monotonic()

    def done(number: int) -> float:
        part = (time.monotonic() - begin) / (60 * minutes)
        return max(part, number / cases) if cases else part

    return done


def rows_of(counts: Counts) -> Iterator[tuple[str, ...]]:
    """By kind, and in all, for a table."""
    for kind, verdicts in sorted(counts.verdicts.items()):
        total = sum(verdicts.values())
        yield (
            kind,
            f"{total}",
            *(f"{verdicts[name]}" for name in VERDICTS),
            f"{1e3 * counts.seconds[kind] / total:.1f}",
        )
    if len(counts.verdicts) > 1:
        mean = 1e3 * sum(counts.seconds.values()) / counts.cases
        yield ("all", f"{counts.cases}", *(f"{counts.of(name)}" for name in VERDICTS), f"{mean:.1f}")
