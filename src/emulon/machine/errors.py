"""What the compiler refuses, before any weight is built."""

from emulon.errors import EmulonError


class BadProgram(EmulonError):
    """A program that reads what was never written, loses or overlaps writes, or leaves its domain."""
