"""The finished parts of a claim that is measured in parts: kept until the whole is, so that a stopped run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emulon.claims.claim import Numbers
from emulon.files import make_folder, provenance, write_json


class Parts:
    """Beside the result, as NAME.SCALE.parts.json: for every part its numbers, its seconds and what made it.

    Parts of other sizes or seeds are of another run, and are forgotten; so is a file that cannot be read.
    """

    def __init__(self, path: Path, run: Mapping[str, Any], device: str) -> None:
        self.path, self.device = path, device
        self.run = json.loads(json.dumps(run))
        self.kept: dict[str, Numbers] = {}
        try:
            stored = json.loads(path.read_text())
            if stored["run"] == self.run:
                self.kept = stored["parts"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        # What was measured before this process began: time that it does not see.
        self.seconds_before = sum(part["seconds"] for part in self.kept.values())

    def __call__(self, name: str, measure: Callable[[], Numbers]) -> Numbers:
        """The numbers of a part: those kept, or measured now and kept."""
        if name not in self.kept:
            began = time.perf_counter()
            numbers = json.loads(json.dumps(measure(), allow_nan=False))
            about = provenance(self.device)
            self.kept[name] = {"numbers": numbers, "seconds": time.perf_counter() - began, "about": about}
            make_folder(self.path.parent)
            write_json(self.path, {"run": self.run, "parts": self.kept})
        numbers = self.kept[name]["numbers"]
        assert isinstance(numbers, dict)
        return numbers

    def seen(self, what: str) -> list[str]:
        """Every commit, or machine, that parts were measured by, the oldest first."""
        return list(dict.fromkeys(part["about"][what] for part in self.kept.values()))
