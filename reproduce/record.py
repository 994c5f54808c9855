"""Results: claims/NAME.json for the small scale, claims/NAME.SCALE.json for the others; and the parts of a long run.

`results` is everywhere the folder that has claims/, learners/ and bench/ in it.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError
from emulon.core.files import locked, make_folder, provenance, write_json
from reproduce.claim import CannotTest, Claim, Measures, Numbers, ScaleName, Setting, Verdict
from reproduce.freshness import code_of

PARTS = ".parts"
ABOUT = ("machine", "torch", "python", "commit", "time", "code")
UNFINISHED = "parts were not measured before the deadline; run it again with more --minutes"


@dataclass(frozen=True)
class Record:
    """The numbers of one run, and its provenance. `cpu_seconds` depends less on other load, and counts one process."""

    claim: str
    scale: ScaleName
    seeds: list[int]
    config: Mapping[str, Any]
    about: Mapping[str, str]
    seconds: float
    cpu_seconds: float
    numbers: Numbers

    def verdict(self, claim: Claim) -> Verdict:
        return claim.verdict(self.numbers, self.scale)

    @property
    def tested(self) -> bool:
        """Whether there are numbers, of all parts or of enough of them."""
        return "cannot" not in self.numbers

    @property
    def complete(self) -> bool:
        return not {"missing", "cannot"} & set(self.numbers)

    def stale(self, claim: Claim) -> bool:
        """Whether other code, or other sizes, measured this than the claim has now."""
        sizes = json.loads(json.dumps(dict(claim.scales[self.scale].sizes)))
        return self.about["code"] != code_of(claim) or dict(self.config) != sizes


class Parts:
    """The finished parts of a run, kept beside its result in NAME.SCALE.parts/, a file each, until all are finished.

    Processes that share the folder share the work: each takes parts that no other has locked. Parts of other sizes or
    seeds, and unreadable files, are ignored. No part is begun after `deadline`, on the clock of time.time(); `missing`
    names the parts that are then left out. Without `wait`, parts that other processes have locked are left to them.
    """

    def __init__(
        self,
        claim: Claim,
        scale: ScaleName,
        seed: int,
        results: Path,
        processes: int = 1,
        deadline: float = math.inf,
        wait: bool = True,
    ) -> None:
        if scale not in claim.scales:
            raise EmulonError(f"{claim.name} has no {scale} scale; it runs at {', '.join(claim.scales)}")
        self.folder = path_of(claim.name, scale, results, PARTS)
        self.processes, self.deadline, self.wait = processes, deadline, wait
        self.missing: list[str] = []
        self.run = json.loads(json.dumps({"sizes": claim.scales[scale].sizes, "seed": seed}))
        self.kept: dict[str, Numbers] = {}
        for path in self.folder.glob("*.json"):
            self._read(path.stem)
        # Time of earlier runs, which the clock of this process does not see.
        self.seconds_before = sum(part["seconds"] for part in self.kept.values())

    def __call__(self, measures: Measures) -> dict[str, Numbers]:
        """The numbers of all parts: those kept, and those measured now and kept."""
        # First the parts that no other process has locked; then, waiting for the lock, the others.
        for wait in (False, True) if self.wait else (False,):
            for name, measure in measures.items():
                if name not in self.kept:
                    self._take(name, measure, wait)
        self.missing = [name for name in measures if name not in self.kept]
        return {name: self.kept[name]["numbers"] for name in measures if name in self.kept}

    def about(self) -> dict[str, str]:
        """The provenance, with the number of processes: seconds beside others are longer."""
        made = provenance("cuda" if torch.cuda.is_available() else "cpu")
        return made | ({"machine": f"{made['machine']}, {self.processes} at once"} if self.processes > 1 else {})

    def _read(self, name: str) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            part = json.loads((self.folder / f"{name}.json").read_text())
            if part["run"] == self.run:
                self.kept[name] = {key: part[key] for key in ("numbers", "seconds", "about")}

    def _take(self, name: str, measure: Callable[[], Numbers], wait: bool) -> None:
        with locked(make_folder(self.folder) / f".{name}.lock", wait) as mine:
            if not mine:
                return
            self._read(name)  # another process may have finished it since
            if name in self.kept or time.time() >= self.deadline:
                return
            began = time.perf_counter()
            numbers = json.loads(json.dumps(measure(), allow_nan=False))
            part = {"numbers": numbers, "seconds": time.perf_counter() - began, "about": self.about()}
            write_json(self.folder / f"{name}.json", {"run": self.run} | part)
            self.kept[name] = part


def path_of(name: str, scale: ScaleName, results: Path, suffix: str = ".json") -> Path:
    return results / "claims" / (f"{name}{suffix}" if scale == "small" else f"{name}.{scale}{suffix}")


def measure(
    claim: Claim,
    scale: ScaleName,
    seed: int,
    results: Path,
    report_progress: Progress = silent,
    deadline: float = math.inf,
) -> Record:
    """Runs the claim, or resumes a run that was stopped. That it cannot be tested here is a result, too.

    Args:
        claim: What to measure.
        scale: One of the claim's scales.
        seed: The first seed.
        results: The folder of all results.
        report_progress: Called with a text and the finished share.
        deadline: On the clock of time.time(); parts not begun by then are named in the numbers, as "missing".
    """
    parts = Parts(claim, scale, seed, results, deadline=deadline)
    setting = Setting(claim.scales[scale].sizes, seed, results, report_progress, parts)
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        numbers = claim.run(setting)
    except Exception as error:
        if not (parts.missing or isinstance(error, CannotTest)):
            raise
        numbers = {"cannot": UNFINISHED if parts.missing else str(error)}
    if parts.missing:
        numbers = (numbers if parts.kept else {"cannot": UNFINISHED}) | {"missing": parts.missing}
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    # Parts may be measured on one machine and put together on another: both are named, the oldest first.
    about = parts.about() | {"code": code_of(claim)}
    earlier = sorted((part["about"] for part in parts.kept.values()), key=lambda made: str(made["time"]))
    for what, joint in (("machine", "; then "), ("commit", ", ")):
        about[what] = joint.join(dict.fromkeys([*(made[what] for made in earlier), about[what]]))
    # Through JSON and back: what is judged now is what will be read from the file.
    numbers = json.loads(json.dumps(numbers, allow_nan=False))
    seconds += parts.seconds_before
    return Record(claim.name, scale, setting.seeds, dict(setting.sizes), about, seconds, cpu_seconds, numbers)


def take_parts(
    claim: Claim, scale: ScaleName, seed: int, results: Path, report_progress: Progress, processes: int, deadline: float
) -> None:
    """Measures the parts of a claim that no other process has taken; `measure` puts all together later."""
    parts = Parts(claim, scale, seed, results, processes, deadline, wait=False)

    def keep(measures: Measures) -> dict[str, Numbers]:
        parts(measures)
        raise _Taken

    with suppress(_Taken, CannotTest):
        claim.run(Setting(claim.scales[scale].sizes, seed, results, report_progress, keep))


class _Taken(Exception):
    """No part is left to take: ends `Claim.run` before it uses numbers that are not there yet."""


def write(record: Record, results: Path) -> Path:
    path = path_of(record.claim, record.scale, results)
    content = asdict(record)
    content |= content.pop("about") | {name: round(content[name], 2) for name in ("seconds", "cpu_seconds")}
    order = ("claim", "scale", *record.about, "seeds", "config", "seconds", "cpu_seconds", "numbers")
    make_folder(path.parent)
    write_json(path, {name: content[name] for name in order})
    if record.complete:
        shutil.rmtree(path_of(record.claim, record.scale, results, PARTS), ignore_errors=True)
    return path


def read(name: str, scale: ScaleName, results: Path) -> Record | None:
    """None where this claim has not been run."""
    path = path_of(name, scale, results)
    if not path.exists():
        return None
    try:
        stored = {"code": ""} | json.loads(path.read_text())
        return Record(about={key: stored.pop(key) for key in ABOUT}, **stored)
    except (ValueError, KeyError, TypeError) as error:
        raise EmulonError(
            f"{path} is not a result of python -m reproduce ({error}); remove it and run the claim again"
        ) from None


def fresh(claim: Claim, scale: ScaleName, results: Path) -> bool:
    """Whether there is a complete result of this scale, by the code as it is now."""
    record = read(claim.name, scale, results)
    return record is not None and not record.stale(claim) and record.complete


def superseded(record: Record, claim: Claim, results: Path) -> bool:
    """Whether a complete result of the same code is there, which this one, cut short by the time, must not replace."""
    return not record.complete and fresh(claim, record.scale, results)


def records(claim: Claim, results: Path) -> list[Record]:
    """The results of every scale that was run, small scale first."""
    every = (read(claim.name, scale, results) for scale in claim.scales)
    return [record for record in every if record is not None]
