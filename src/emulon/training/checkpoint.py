"""Checkpoints: one safetensors file each, written beside and renamed, so that a reader never sees half of one."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from emulon.core.arrays import bits
from emulon.core.errors import NoRun
from emulon.core.files import write_atomically

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


def step_of(checkpoint: Path) -> int:
    """After how many steps a checkpoint was written, by its name."""
    return int(checkpoint.stem.removeprefix("step-"))


def read_checkpoint(folder: Path, step: int | None = None) -> tuple[int, dict[str, Tensor], dict[str, str]] | None:
    """Step, tensors and notes of the newest checkpoint, or of that after `step` steps; None where there is none."""
    kept = [path for path in checkpoints(folder) if step in (None, step_of(path))]
    if not kept:
        return None
    try:
        with safe_open(kept[-1], "pt") as opened:
            notes = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a mapping)
        _require_checksum(tensors, notes)
        return int(notes.pop("step")), tensors, notes
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise NoRun(f"{kept[-1]} cannot be read ({error}); delete it to resume from the one before") from error


def _require_checksum(tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Take checksum and format out of the notes, and compare the checksum. Older checkpoints have neither."""
    claimed = notes.pop(_CHECKSUM, None)
    if claimed is None and _FORMAT not in notes:
        return
    if claimed != _checksum(tensors, notes):
        raise ValueError("its checksum does not match its content")
    del notes[_FORMAT]


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
