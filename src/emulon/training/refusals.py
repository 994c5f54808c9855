"""Why a training run stops early. Each says what happened, what is kept, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from emulon.errors import EmulonError


class BadConfig(EmulonError):
    """A configuration with an unknown key, an impossible value, or from another version."""


class TrainingDiverged(EmulonError):
    """The loss, or a weight, is no longer finite."""


class OutOfMemory(EmulonError):
    """The batch does not fit the device."""


class DiskFull(EmulonError):
    """A checkpoint or a metric could not be written."""


class NoRun(EmulonError):
    """A folder that holds no run, or one that already holds another."""


def unknown(kind: str, name: str, known: Iterable[str]) -> BadConfig:
    """A refusal of a name that does not exist, with the nearest that does."""
    options = sorted(known)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(options)}"
    return BadConfig(f"there is no {kind} {name!r}; {hint}")
