"""The folder of a run: config.json, metrics.jsonl, baselines.json, checkpoints/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from emulon.core.errors import NoRun
from emulon.core.files import cannot_write, make_folder, write_atomically, write_json
from emulon.models import Learner
from emulon.training.checkpoint import (
    best_of,
    checkpoints,
    copy_into,
    read_checkpoint,
    step_of,
    weights_of,
    write_checkpoint,
)
from emulon.training.configuration import TrainConfig


class RunFolder:
    """The folder of a run, and what is kept in it.

    Args:
        path: The folder; `begin` makes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"

    def begin(self, config: TrainConfig) -> None:
        """A new run; a folder that holds another is refused."""
        if self.config_file.exists():
            raise NoRun(
                f"{self.path} already holds a run; continue it with --resume {self.path}, or choose another --out"
            )
        make_folder(self.checkpoints)
        write_atomically(self.config_file, config.to_json())

    def config(self) -> TrainConfig:
        if not self.config_file.exists():
            raise NoRun(f"{self.path} holds no run: there is no {self.config_file}; start one with --out {self.path}")
        return TrainConfig.from_json(self.config_file.read_text())

    def rewind(self, step: int) -> None:
        """Drops what was measured after `step`: a resumed run measures it again. A half-written line goes too."""
        if self.metrics_file.exists():
            kept = [line for line in self.metrics() if line["step"] <= step]
            write_atomically(self.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))

    def append(self, record: dict[str, Any]) -> None:
        try:
            with open(self.metrics_file, "a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise cannot_write(self.metrics_file, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        found = []
        for line in self.metrics_file.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the process died while writing this line
                continue
        return found

    def kept_steps(self) -> list[int]:
        """The steps after which there is a checkpoint, in order."""
        return [step_of(path) for path in checkpoints(self.checkpoints)]

    def write_json(self, name: str, values: Any) -> None:
        write_json(self.path / name, values)


def save_learner(learner: Learner, config: TrainConfig, steps: int, path: Path | str) -> None:
    """Write a run folder of configuration and weights alone: `load_learner` reads it, `resume` cannot.

    Args:
        learner: What was trained.
        config: Its configuration.
        steps: How many steps it has had.
        path: A new folder.
    Raises:
        NoRun: The folder holds a run.
    """
    folder = RunFolder(Path(path))
    folder.begin(config)
    config.make_task().keep_beside(folder.path)
    write_checkpoint(folder.checkpoints, steps, weights_of(learner), {})


def load_learner(path: Path | str, step: int | None = None) -> tuple[Learner, TrainConfig]:
    """Open the learner of a run at its newest checkpoint, which may hold weights alone.

    Args:
        path: The run's folder.
        step: Take the checkpoint after so many steps instead; where a run has stopped early, the newest is its best.
    Returns:
        The learner in eval mode, and its configuration.
    Raises:
        NoRun: There is no run, no such checkpoint, or one that cannot be read.
    """
    folder = RunFolder(Path(path))
    config = folder.config()
    found = read_checkpoint(folder.checkpoints, step)
    if found is None and step is not None:
        kept = ", ".join(map(str, folder.kept_steps())) or "none"
        raise NoRun(f"{folder.checkpoints} holds no checkpoint after {step} steps; those it holds: {kept}")
    if found is None:
        raise NoRun(f"{folder.checkpoints} holds no checkpoint yet; train the run first: --resume {path}")
    learner = config.make_learner(config.make_task().beside(folder.path))
    # what a run that may stop early has ended with; at a step that was asked for, what it had then
    best = best_of(found[1]) if step is None else {}
    copy_into(weights_of(learner), best or found[1], folder.checkpoints)
    return learner.eval(), config
