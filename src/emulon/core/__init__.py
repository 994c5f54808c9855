"""What everything stands on: errors, files, arrays, names, the predictor protocol, and progress of slow work."""

from collections.abc import Callable

# Called with a description of the current work and the finished fraction of the whole.
Progress = Callable[[str, float], None]


def silent(what: str, done: float) -> None:
    """No-op progress callback."""
