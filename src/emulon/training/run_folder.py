"""The folder of a run (config.json, metrics.jsonl, baselines.json, checkpoints/), and what is reported beside it: lines
of progress, and a tracker where asked for."""

from __future__ import annotations

import hashlib
import json
import re
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from emulon.core.arrays import bits
from emulon.core.errors import BadConfig, NoRun
from emulon.core.files import cannot_write, make_folder, write_atomically
from emulon.models import Learner
from emulon.training.configuration import TrainConfig

_NAME = re.compile(r"step-(\d+)\.safetensors")
# What the checksum adds to the notes; both or neither, so that no flipped bit can pass one off as older than these.
_FORMAT, _CHECKSUM = "format", "sha256"
BEST = "best/"


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], notes: dict[str, str], keep: int = 2) -> Path:
    """Save the state after `step` steps and drop all but the newest `keep` checkpoints; 0 drops none."""
    where = folder / f"step-{step:09d}.safetensors"
    kept = {name: tensor.contiguous().cpu() for name, tensor in tensors.items()}
    notes = {"step": str(step), **notes, _FORMAT: "2"}
    write_atomically(where, save(kept, notes | {_CHECKSUM: _checksum(kept, notes)}))
    for old in checkpoints(folder)[:-keep] if keep else []:
        old.unlink(missing_ok=True)
    return where


def weights_of(learner: nn.Module) -> dict[str, Tensor]:
    """A learner's parameters by their names in a checkpoint: the tensors themselves, to copy into."""
    return {f"weights/{name}": parameter.detach() for name, parameter in learner.named_parameters()}


def best_of(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The best weights so far, which a run that may stop early keeps in its checkpoints, without their prefix."""
    return {name.removeprefix(BEST): tensor for name, tensor in tensors.items() if name.startswith(BEST)}


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name))


def read_checkpoint(folder: Path, step: int | None = None) -> tuple[int, dict[str, Tensor], dict[str, str]] | None:
    """Step, tensors and notes of the newest checkpoint, or of that after `step` steps; None where there is none."""
    kept = [path for path in checkpoints(folder) if step in (None, int(path.stem[5:]))]
    if not kept:
        return None
    try:
        with safe_open(kept[-1], "pt") as opened:
            notes = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
        claimed, known = notes.pop(_CHECKSUM, None), _FORMAT in notes  # older checkpoints have neither
        if (claimed is not None or known) and claimed != _checksum(tensors, notes):
            raise ValueError("its checksum does not match its content")
        notes.pop(_FORMAT, None)
        return int(notes.pop("step")), tensors, notes
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise NoRun(f"{kept[-1]} cannot be read ({error}); delete it to resume from the one before") from error


def _checksum(tensors: dict[str, Tensor], notes: dict[str, str]) -> str:
    """SHA-256 of all notes and of every tensor's name, dtype, shape and bits."""
    digest = hashlib.sha256(json.dumps(notes, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(bits(tensor))
    return digest.hexdigest()


@torch.no_grad()
def copy_into(state: dict[str, Tensor], tensors: dict[str, Tensor], where: Path | str) -> None:
    """Copy a checkpoint's tensors into those of the same names."""
    for name, tensor in state.items():
        if name not in tensors:
            what = "weights alone, which cannot be trained further" if name.startswith("optimiser/") else f"no {name!r}"
            raise NoRun(f"the newest checkpoint in {where} holds {what}; begin a new run")
        if tensors[name].shape != tensor.shape:
            raise NoRun(
                f"the newest checkpoint in {where} is not of the learner in config.json: {name!r} is"
                f" {tuple(tensors[name].shape)} and not {tuple(tensor.shape)}; put the configuration back as it was"
            )
    for name, tensor in state.items():
        tensor.copy_(tensors[name])


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
        """Begin a new run; a folder that holds another is refused."""
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
        """Drop measurements after `step`, which a resumed run makes again, and half-written lines."""
        kept = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        if self.metrics_file.exists():
            write_atomically(self.metrics_file, "".join(kept))

    def append(self, record: dict[str, Any]) -> None:
        try:
            with open(self.metrics_file, "a") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise cannot_write(self.metrics_file, error) from error

    def metrics(self) -> list[dict[str, Any]]:
        """Every measurement; none where there is no file yet."""
        found: list[dict[str, Any]] = []
        for line in self.metrics_file.read_text().splitlines() if self.metrics_file.exists() else []:
            try:
                found.append(json.loads(line))
            except ValueError:  # the process died while writing this line
                continue
        return found

    def kept_steps(self) -> list[int]:
        """The steps after which there is a checkpoint, in order."""
        return [int(path.stem[5:]) for path in checkpoints(self.checkpoints)]


class Reporter:
    """Receives every measurement; a run without a folder keeps nothing."""

    def __init__(self, folder: RunFolder | None, config: TrainConfig, start: int) -> None:
        self.folder, self.config = folder, config
        self._began, self._start = time.monotonic(), start
        self._tracker: Any = None
        if folder is not None and config.evaluation.tracker:
            self._tracker = _tracker(config.evaluation.tracker, folder, config)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tracker is not None:
            self._tracker.finish()

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One line of metrics.jsonl; numbers also go to the tracker, where asked for."""
        if self.folder is None:
            return
        rate = (step - self._start) / max(time.monotonic() - self._began, 1e-9)
        self.folder.append({"kind": kind, "step": step, **values, "steps_per_s": round(rate, 2)})
        if self._tracker is not None:
            numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, float)}
            self._tracker.log(numbers, step=step)
        if kind == "evaluation" and not self.config.evaluation.quiet:
            total, left = self.config.schedule.steps, (self.config.schedule.steps - step) / max(rate, 1e-9)
            print(
                f"step {step}/{total}  error {values['error']:.4g}  {rate:.1f} steps/s  {left:.0f} s left", flush=True
            )


def _tracker(name: str, folder: RunFolder, config: TrainConfig) -> Any:
    """A run of wandb, or of trackio, which has the same functions."""
    try:
        module = import_module(name)
    except ImportError as error:
        raise BadConfig(f"{name} is not installed; pip install {name}, or leave --tracker out") from error
    return module.init(project="emulon", name=folder.path.name, config=config.options())


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
    config.make_task().save_data(folder.path)
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
    learner = config.make_learner(config.make_task().with_saved_data(folder.path))
    # what a run that may stop early has ended with; at a step that was asked for, what it had then
    best = best_of(found[1]) if step is None else {}
    copy_into(weights_of(learner), best or found[1], folder.checkpoints)
    return learner.eval(), config
