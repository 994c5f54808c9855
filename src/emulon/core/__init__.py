"""Shared foundations: errors, files, arrays, registries, the predictor protocol and progress callbacks."""

from emulon.core.names import Progress, silent

__all__ = ["Progress", "silent"]
