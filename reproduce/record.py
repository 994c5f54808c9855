"""Results: claims/NAME.json for the small scale, claims/NAME.SCALE.json for the others, and all that is made of them.

`results` is everywhere the folder that has claims/, learners/ and bench/ in it.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_json
from emulon.core.progress import Progress, silent
from reproduce.claim import CannotTest, Claim, Numbers, ScaleName, Setting, Verdict
from reproduce.freshness import code_of
from reproduce.parts import Parts
from reproduce.registry import claim_named

PARTS = ".parts"
JOINTS = {"machine": "; then ", "commit": ", "}


@dataclass(frozen=True)
class Record:
    """The numbers of one run, and what they were made with. `cpu_seconds` is what a busy machine leaves alone, and of
    the last process alone where several measured parts of it."""

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

    def stale(self, claim: Claim) -> bool:
        """Whether other code, or other sizes, measured this than the claim has now."""
        sizes = json.loads(json.dumps(dict(claim.scales[self.scale].sizes)))
        return self.about["code"] != code_of(claim) or dict(self.config) != sizes


def path_of(name: str, scale: ScaleName, results: Path, suffix: str = ".json") -> Path:
    return results / "claims" / (f"{name}{suffix}" if scale == "small" else f"{name}.{scale}{suffix}")


def measure(
    claim: Claim,
    scale: ScaleName,
    seed: int,
    results: Path,
    report_progress: Progress = silent,
    processes: int = 1,
    deadline: float = math.inf,
) -> Record:
    """Runs the claim, or goes on with one that was stopped. What cannot be tested here is a result, too.

    `processes` share its parts, of which a GPU runs several small ones in less time than one after another. Parts that
    were not begun by `deadline` are named in the numbers, as "missing".
    """
    if scale not in claim.scales:
        raise EmulonError(f"{claim.name} has no {scale} scale; it runs at {', '.join(claim.scales)}")
    sizes = claim.scales[scale].sizes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    run = {"sizes": sizes, "seed": seed}
    parts = Parts(path_of(claim.name, scale, results, PARTS), run, device, processes, deadline)
    setting = Setting(sizes, seed, results, report_progress, parts)
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        with _hands(processes - 1, claim.name, setting):
            numbers = claim.run(setting)
    except CannotTest as error:
        numbers = {"cannot": str(error)}
    if parts.missing:
        nothing = {"cannot": "none of its parts was measured before the deadline; run it again with more --minutes"}
        numbers = numbers | {"missing": parts.missing} if parts.kept else nothing
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    about = parts.about()
    # measured in parts by one machine and put together by another: both are named
    about["code"] = code_of(claim)
    about |= {what: joint.join(dict.fromkeys([*parts.seen(what), about[what]])) for what, joint in JOINTS.items()}
    # Through JSON and back: what is judged now is what will be read from the file.
    numbers = json.loads(json.dumps(numbers, allow_nan=False))
    seconds += parts.seconds_before
    return Record(claim.name, scale, setting.seeds, dict(sizes), about, seconds, cpu_seconds, numbers)


@contextmanager
def _hands(number: int, name: str, setting: Setting) -> Iterator[None]:
    """So many processes beside this one, at the same parts; all have ended when this one goes on."""
    told = replace(setting, report_progress=silent)
    beside = [
        multiprocessing.get_context("spawn").Process(target=_lend_a_hand, args=(name, told)) for _ in range(number)
    ]
    for hand in beside:
        hand.start()
    try:
        yield
    except BaseException:
        for hand in beside:
            hand.terminate()
        raise
    finally:
        for hand in beside:
            hand.join()


def _lend_a_hand(name: str, setting: Setting) -> None:
    with suppress(CannotTest):
        claim_named(name).run(setting)


def write(record: Record, results: Path) -> Path:
    path = path_of(record.claim, record.scale, results)
    parts: dict[str, Any] = {"claim": record.claim, "scale": record.scale, **record.about, "seeds": record.seeds}
    parts |= {"config": record.config, "seconds": round(record.seconds, 2)}
    parts |= {"cpu_seconds": round(record.cpu_seconds, 2), "numbers": record.numbers}
    make_folder(path.parent)
    write_json(path, parts)
    if not {"missing", "cannot"} & set(record.numbers):
        shutil.rmtree(path_of(record.claim, record.scale, results, PARTS), ignore_errors=True)
    return path


def read(name: str, scale: ScaleName, results: Path) -> Record | None:
    """None where this claim has not been run."""
    path = path_of(name, scale, results)
    if not path.exists():
        return None
    try:
        parts = json.loads(path.read_text())
        about = {key: parts.pop(key) for key in ("machine", "torch", "python", "commit", "time")}
        about["code"] = parts.pop("code", "")
        return Record(**parts, about=about)
    except (ValueError, KeyError, TypeError) as error:
        raise EmulonError(
            f"{path} is not a result of python -m reproduce ({error}); remove it and run the claim again"
        ) from None


def records(claim: Claim, results: Path) -> list[Record]:
    """What was measured, small scale first."""
    every = (read(claim.name, scale, results) for scale in claim.scales)
    return [record for record in every if record is not None]
