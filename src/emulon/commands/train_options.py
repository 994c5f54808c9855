"""The options of `emulon train`: every field of TrainConfig, and four of its own. Importing them imports torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from emulon.commands.options import CommandOptions, shown
from emulon.errors import unknown
from emulon.training import PRESETS, BadConfig, TrainConfig
from emulon.training.configuration import recipe_values


@dataclass(frozen=True, kw_only=True)
class Options(TrainConfig, CommandOptions):
    """Train a transformer that has to find an algorithm itself, and show its errors beside the baselines'."""

    model: Positional[Annotated[str, shown("MODEL")]] = ""
    """standard, looped, algoformer or frozen"""
    out: Annotated[Path | None, shown("DIR")] = None
    """the run's folder (default runs/MODEL)"""
    preset: Annotated[str | None, shown("NAME")] = None
    """start from a named configuration: small"""
    resume: Annotated[Path | None, shown("RUN")] = None
    """go on with the run of this folder; its configuration is there, so that no other option is taken"""

    def defaults(self) -> CommandOptions | None:
        if self.preset is not None and self.preset not in PRESETS:
            raise BadConfig(unknown("preset", self.preset, PRESETS))
        changes = recipe_values(self.recipe, self.model)
        if self.preset is None and not changes:
            return None
        start = TrainConfig() if self.preset is None else PRESETS[self.preset]
        return type(self)(**_values(start) | changes | {"model": ""})

    @property
    def config(self) -> TrainConfig:
        return TrainConfig(**_values(self))


def _values(config: TrainConfig) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in fields(TrainConfig)}
