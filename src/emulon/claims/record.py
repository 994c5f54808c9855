"""Results: NAME.json for the small scale, NAME.paper.json for the paper's. Everything else is made from them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from emulon.claims.claim import CannotTest, Claim, Numbers, ScaleName, Setting, Verdict
from emulon.claims.provenance import provenance
from emulon.errors import EmulonError
from emulon.files import write_atomically
from emulon.progress import Progress, silent


@dataclass(frozen=True)
class Record:
    """The numbers of one run, and what they were made with. `cpu_seconds` is what a busy machine leaves alone."""

    claim: str
    scale: ScaleName
    seeds: list[int]
    config: Mapping[str, Any]
    about: Mapping[str, str]
    seconds: float
    cpu_seconds: float
    numbers: Numbers

    def verdict(self, claim: Claim) -> Verdict:
        return claim.verdict(self.numbers)


def path_of(name: str, scale: ScaleName, folder: Path, suffix: str = ".json") -> Path:
    return folder / (f"{name}{suffix}" if scale == "small" else f"{name}.{scale}{suffix}")


def measure(claim: Claim, scale: ScaleName, seed: int, folder: Path, progress: Progress = silent) -> Record:
    """Runs the claim. What cannot be tested here is a result, too."""
    if scale not in claim.scales:
        raise EmulonError(f"{claim.name} has no {scale} scale; it runs at {', '.join(claim.scales)}")
    sizes = claim.scales[scale].sizes
    setting = Setting(sizes, seed, folder, progress)
    start, cpu_start = time.perf_counter(), time.process_time()
    try:
        numbers = claim.run(setting)
    except CannotTest as error:
        numbers = {"cannot": str(error)}
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    about = provenance(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    # Through JSON and back: what is judged now is what will be read from the file.
    numbers = json.loads(json.dumps(numbers, allow_nan=False))
    return Record(claim.name, scale, setting.seeds, dict(sizes), about, seconds, cpu_seconds, numbers)


def write(record: Record, folder: Path) -> Path:
    path = path_of(record.claim, record.scale, folder)
    parts: dict[str, Any] = {"claim": record.claim, "scale": record.scale, **record.about, "seeds": record.seeds}
    parts |= {"config": record.config, "seconds": round(record.seconds, 2)}
    parts |= {"cpu_seconds": round(record.cpu_seconds, 2), "numbers": record.numbers}
    write_atomically(path, (json.dumps(parts, indent=1, ensure_ascii=False) + "\n").encode())
    return path


def read(name: str, scale: ScaleName, folder: Path) -> Record | None:
    """None where this claim has not been run."""
    path = path_of(name, scale, folder)
    if not path.exists():
        return None
    try:
        parts = json.loads(path.read_text())
        about = {key: parts.pop(key) for key in ("machine", "torch", "python", "commit", "time")}
        return Record(**parts, about=about)
    except (ValueError, KeyError, TypeError) as error:
        raise EmulonError(
            f"{path} is not a result of emulon reproduce ({error}); remove it and run the claim again"
        ) from None
