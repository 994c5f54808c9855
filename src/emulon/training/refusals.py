"""Why a training run stops early. Each says what happened, what is kept, and what to do."""

from __future__ import annotations

from emulon.errors import EmulonError


class BadConfig(EmulonError):
    """A configuration with an unknown key, an impossible value, or from another version."""


class TrainingDiverged(EmulonError):
    """The loss, or a weight, is no longer finite."""


class OutOfMemory(EmulonError):
    """The batch does not fit the device."""


class NoRun(EmulonError):
    """A folder that holds no run, or one that already holds another."""
