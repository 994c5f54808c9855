"""Engines that a canary is run in: token ids in, the last token's logits out."""

from __future__ import annotations

from emulon.canary import other_engines
from emulon.canary.engine import ENGINES, Engine
from emulon.core.errors import EmulonError

__all__ = ["ENGINES", "Engine", "engines_named", "other_engines"]


def engines_named(start: str) -> list[Engine]:
    """The engines whose names begin so; of a package's name alone, those that are plain.

    Raises:
        EmulonError: There is none, or its package or device is missing.
    """
    found = [engine for name, engine in ENGINES.items() if name.startswith(start)] or [ENGINES.named(start)]
    if " " not in start:
        found = [engine for engine in found if engine.plain] or found
    for engine in found:
        if not engine.installed:
            device = " and a CUDA device" * (engine.device == "cuda")
            raise EmulonError(
                f"{engine.name} needs the package {engine.package}{device}: pip install 'emulon[engines]'"
            )
    return found
