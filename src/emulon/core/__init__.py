"""What everything stands on: errors, files, arrays, names, the predictor protocol, and progress of slow work."""

from emulon.core.names import Progress, silent

__all__ = ["Progress", "silent"]
