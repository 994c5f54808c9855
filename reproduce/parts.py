"""The finished parts of a claim that is measured in parts: kept until the whole is, so that a stopped run goes on."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emulon.core.files import locked, make_folder, provenance, write_json
from reproduce.claim import Measures, Numbers


class Parts:
    """Beside the result, in NAME.SCALE.parts/: a file a part, with its numbers, its seconds and what made it.

    Processes that share the folder share the work: each takes what no other is at. Parts of other sizes or seeds are of
    another run, and are forgotten; so is a file that cannot be read. No part is begun after `deadline`, on the clock of
    time.time(); what is then missing stays in `missing`.
    """

    def __init__(
        self, folder: Path, run: Mapping[str, Any], device: str, processes: int = 1, deadline: float = math.inf
    ) -> None:
        self.folder, self.device, self.processes, self.deadline = folder, device, processes, deadline
        self.missing: list[str] = []
        self.run = json.loads(json.dumps(run))
        self.kept: dict[str, Numbers] = {}
        for path in folder.glob("*.json"):
            self._read(path.stem)
        # What was measured before this process began: time that it does not see.
        self.seconds_before = sum(part["seconds"] for part in self.kept.values())

    def __call__(self, measures: Measures) -> dict[str, Numbers]:
        """The numbers of all parts: those kept, and those measured now and kept."""
        # first what nobody is at; then what the others have finished by now, or have left undone
        for wait in (False, True):
            for name, measure in measures.items():
                if name not in self.kept:
                    self._take(name, measure, wait)
        self.missing = [name for name in measures if name not in self.kept]
        return {name: self.kept[name]["numbers"] for name in measures if name in self.kept}

    def about(self) -> dict[str, str]:
        """Of this machine, with how many processes it was shared: seconds beside others are longer."""
        made = provenance(self.device)
        return made | ({"machine": f"{made['machine']}, {self.processes} at once"} if self.processes > 1 else {})

    def seen(self, what: str) -> list[str]:
        """Every commit, or machine, that parts were measured by, the oldest first."""
        parts = sorted(self.kept.values(), key=lambda part: str(part["about"]["time"]))
        return list(dict.fromkeys(part["about"][what] for part in parts))

    def _read(self, name: str) -> None:
        try:
            stored = json.loads(self._file(name).read_text())
            if stored.pop("run") == self.run:
                about = {what: str(stored["about"][what]) for what in ("machine", "commit", "time")}
                self.kept[name] = {
                    "numbers": dict(stored["numbers"]),
                    "seconds": stored["seconds"] + 0.0,
                    "about": about,
                }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass

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
            write_json(self._file(name), {"run": self.run} | part)
            self.kept[name] = part

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"
