"""`emulon train`: a transformer that has to find an algorithm itself. Every field of TrainConfig is an option."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from emulon.commands.options import BadUsage, CommandOptions, shown
from emulon.errors import EmulonError, WorkFailed, unknown
from emulon.models import Learner
from emulon.training import PRESETS, BadConfig, NoRun, TrainConfig, Trained, resume, train
from emulon.training.configuration import recipe_values

EXAMPLES = """examples:
  emulon train standard --task linear --features 20 --points 41 --steps 10000
  emulon train standard --preset small         a few minutes on a CPU; other options change it
  emulon train looped --recipe fast --features 20
  emulon train --resume runs/standard          go on where it stopped"""


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


def main(options: Options) -> int:
    from emulon.report.curves import keep_curve

    try:
        if options.resume is not None:
            if replace(options, resume=None) != Options():
                raise BadUsage("--resume takes a run's folder and nothing else: its configuration is in the folder")
            out, trained = options.resume, resume(options.resume)
        else:
            if options.model not in Learner.registry:
                raise BadConfig(_no_model(options.model))
            out = options.out or Path("runs") / options.model
            trained = train(options.config, out)
    except (BadUsage, BadConfig, NoRun):
        raise
    except EmulonError as error:
        raise WorkFailed(str(error)) from error
    if trained.leads:
        print(summary(trained))
        keep_curve(out, trained)
    return 0


def _no_model(name: str) -> str:
    if not name:
        return f"say which model to train: {', '.join(Learner.registry)}; or --resume RUN"
    return unknown("model", name, Learner.registry)


def summary(trained: Trained) -> str:
    """Errors at a few numbers of in-context samples, the learner's beside the baselines'."""
    last = len(trained.curve) - 1
    columns = sorted({0, last // 4, last // 2, 3 * last // 4, last})
    rows = {"learner": trained.curve, **trained.baselines}
    lines = [f"after {trained.steps} steps, squared error by in-context samples"]
    lines.append(" " * 12 + "".join(f"{column:>10}" for column in columns))
    for name, curve in rows.items():
        lines.append(f"{name:<12}" + "".join(f"{curve[column]:>10.4g}" for column in columns))
    return "\n".join(lines)
