"""The built-in methods; importing registers them."""

from emulon.planted.benchmark.methods import alignment, circuits, guesses, probes

__all__ = ["alignment", "circuits", "guesses", "probes"]
