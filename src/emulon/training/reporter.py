"""Where measurements go: metrics.jsonl always; a progress bar, TensorBoard and Weights & Biases where asked for."""

from __future__ import annotations

import sys
import time
from typing import Any

from emulon.core.errors import BadConfig
from emulon.training.configuration import TrainConfig
from emulon.training.run_folder import RunFolder


class Reporter:
    """Receives every measurement. Only the leading process reports; a run without a folder keeps nothing."""

    def __init__(self, folder: RunFolder | None, config: TrainConfig, start: int, leads: bool) -> None:
        self.folder, self.config = folder if leads else None, config
        self._began, self._start = time.monotonic(), start
        self._bar = self._board = self._wandb = None
        if self.folder is None:
            return
        if not config.evaluation.quiet and sys.stderr.isatty():
            self._bar = _bar(config, start)
        if config.evaluation.tensorboard:
            self._board = _tensorboard(self.folder)
        if config.evaluation.wandb:
            self._wandb = _wandb(self.folder, config)

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *_: object) -> None:
        for listener, end in ((self._bar, "stop"), (self._board, "close"), (self._wandb, "finish")):
            if listener is not None:
                getattr(listener, end)()

    def record(self, kind: str, step: int, **values: Any) -> None:
        """One line of metrics.jsonl; numbers also go to TensorBoard and Weights & Biases, where asked for."""
        if self.folder is None:
            return
        rate = (step - self._start) / max(time.monotonic() - self._began, 1e-9)
        self.folder.append({"kind": kind, "step": step, **values, "steps_per_s": round(rate, 2)})
        numbers = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, float)}
        for name, value in numbers.items():
            if self._board is not None:
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)
        self._show(kind, step, values, rate)

    def _show(self, kind: str, step: int, values: dict[str, Any], rate: float) -> None:
        if self._bar is not None:
            shown = {"loss": values["loss"]} if "loss" in values else {}
            self._bar.update(self._bar.task_ids[0], completed=step, rate=rate, **shown)
        elif kind == "evaluation" and not self.config.evaluation.quiet:
            total, error = self.config.schedule.steps, values["error"]
            left = (total - step) / max(rate, 1e-9)
            print(f"step {step}/{total}  error {error:.4g}  {rate:.1f} steps/s  {left:.0f} s left", flush=True)


def _bar(config: TrainConfig, start: int) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = "loss {task.fields[loss]:.4g}  {task.fields[rate]:.1f} steps/s"
    bar = Progress(TextColumn("{task.completed}/{task.total}"), BarColumn(), TextColumn(text), TimeRemainingColumn())
    bar.add_task("train", total=config.schedule.steps, completed=start, loss=float("nan"), rate=0.0)
    bar.start()
    return bar


def _tensorboard(folder: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise BadConfig("tensorboard is not installed; pip install tensorboard, or leave --tensorboard out") from error
    return SummaryWriter(str(folder.path / "tensorboard"))


def _wandb(folder: RunFolder, config: TrainConfig) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise BadConfig("wandb is not installed; pip install wandb, or leave --wandb out") from error
    return wandb.init(project="emulon", name=folder.path.name, config=config.options())
