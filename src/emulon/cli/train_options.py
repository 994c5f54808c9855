"""The options over TrainConfig's fields: `emulon train` has four more, `emulon sweep` its grid's and its engine's.
Importing them imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, UseAppendAction, arg

from emulon.cli.options import CommandOptions, Count, Size, shown
from emulon.core.errors import unknown
from emulon.models import Learner
from emulon.tasks import TASKS
from emulon.training import PRESETS, BadConfig, TrainConfig
from emulon.training.configuration import (
    OPTIONS,
    DeviceConfig,
    EvaluationConfig,
    ModelConfig,
    OptimiserConfig,
    ScheduleConfig,
    TaskConfig,
    recipe_values,
)

# The rest of what the help says about a task.
BEHIND_THE_NAME = "with options that have no flag, as mixture:noises=0.1/0.5"


@dataclass(frozen=True, kw_only=True)
class LearnerOptions(
    DeviceConfig, EvaluationConfig, ScheduleConfig, OptimiserConfig, ModelConfig, TaskConfig, CommandOptions
):
    """A flag for every field, and presets and recipes that give the defaults."""

    task: Annotated[str, arg(help=f"{', '.join(TASKS)}; {BEHIND_THE_NAME}")] = "linear"
    seed: int = 0
    """of the initial weights, the data and dropout"""
    recipe: str = "paper"
    """paper: Adam as the sources have it; fast: Muon and all that goes with it. Other flags change a recipe"""
    preset: Annotated[str | None, shown("NAME")] = None
    """start from a named configuration: small"""

    def defaults(self) -> CommandOptions | None:
        if self.preset is not None and self.preset not in PRESETS:
            raise BadConfig(unknown("preset", self.preset, PRESETS))
        start = TrainConfig() if self.preset is None else PRESETS[self.preset]
        # the recipe that nobody asked for leaves a preset its own
        changes = {} if self.recipe == "paper" else recipe_values(self.recipe, self.model)
        if self.preset is None and not changes:
            return None
        return type(self)(**start.options() | changes | {"model": ""})

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.of(**_values(self))

    @property
    def changes(self) -> dict[str, Any]:
        """What was said beyond the defaults of the preset and the recipe, and these two."""
        start = self.defaults() or type(self)()
        changed = {name: value for name, value in _values(self).items() if value != getattr(start, name)}
        return changed | ({} if self.preset is None else {"preset": self.preset})


@dataclass(frozen=True, kw_only=True)
class Options(LearnerOptions):
    """Train a transformer that has to find an algorithm itself, and show its errors beside the baselines'."""

    model: Positional[Annotated[str, arg(help=", ".join(Learner.registry)), shown("MODEL")]] = ""
    out: Annotated[Path | None, shown("DIR")] = None
    """the run's folder (default runs/MODEL)"""
    resume: Annotated[Path | None, shown("RUN")] = None
    """go on with the run of this folder; its configuration is there, so that no other option is taken"""


@dataclass(frozen=True, kw_only=True)
class SweepOptions(LearnerOptions):
    """Train every run of a grid, some at a time, and show their errors over what varies. A run whose process dies goes
    on from its last checkpoint, and so does the whole sweep when it is started again."""

    model: Positional[Annotated[str, shown("GRID")]] = ""
    """a grid's file, {"base": {…}, "grid": {"seed": [0, 1]}}; or a model, with the options of `emulon train`"""
    vary: UseAppendAction[Annotated[tuple[str, ...], shown("NAME=VALUES")]] = ()
    """what varies, as seed=0,1,2; once for each"""
    out: Annotated[Path, shown("DIR")] = Path("runs/sweep")
    """a folder of runs, one each, and sweep.json and sweep.svg beside them"""
    executor: Literal["auto", "local", "slurm", "inline"] = "auto"
    """where the jobs run: Slurm, processes of this machine, or this process; auto is Slurm where there is one"""
    jobs: Annotated[Count | None, shown("COUNT")] = None
    """at a time: by default one, or one a GPU; on Slurm all"""
    restarts: Size = 3
    """how often a run whose process died is started again"""
    slurm: Annotated[str, shown("NAME=VALUE,…")] = ""
    """for Slurm, as partition=gpu,gpus_per_node=1,timeout_min=600"""
    stack: bool = False
    """train all runs at once on one device, in this process; for grids that vary seed, lr, muon_lr, noise or prior"""
    dry_run: bool = False
    """show the plan and write nothing"""


def _values(options: LearnerOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in OPTIONS}
