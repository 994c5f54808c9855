"""Rows of numbers in files, for networks: read from .csv, .npy or .safetensors, written as .csv or .safetensors."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from emulon.core.arrays import as_tensor
from emulon.core.errors import EmulonError
from emulon.core.files import write_atomically

WRITTEN = (".csv", ".safetensors")


def read_rows(path: Path) -> Tensor:
    """A .csv with a line of names first, a .npy, or the one tensor of a .safetensors (of several, the one called x)."""
    try:
        if path.suffix == ".safetensors":
            return _one_tensor(path)
        numbers = np.load(path) if path.suffix == ".npy" else np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)
    except EmulonError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        why = " ".join(str(error).split())[:100]
        kinds = "give a .csv with a line of names, a .npy, or a .safetensors"
        raise EmulonError(f"{path} cannot be read as numbers ({why}); {kinds}") from None
    return as_tensor(numbers, str(path))


def _one_tensor(path: Path) -> Tensor:
    tensors = load_file(path)
    name = "x" if "x" in tensors else next(iter(tensors), "")
    if name != "x" and len(tensors) != 1:
        raise EmulonError(f"{path} holds {', '.join(sorted(tensors)) or 'no tensor'}; give one tensor, or call it x")
    return tensors[name]


def require_writable(path: Path) -> None:
    """Refuse a file of another kind before the work, not after."""
    if path.suffix not in WRITTEN:
        raise EmulonError(f"{path} is neither .csv nor .safetensors; name the kind of file to write by its ending")


def write_rows(outputs: Tensor, path: Path) -> None:
    """To the last bit, in either kind of file."""
    text = path.suffix == ".csv"
    write_atomically(path, as_csv(outputs) if text else save({"outputs": outputs.contiguous().clone()}))


def as_csv(outputs: Tensor) -> str:
    """A line for each row, all of its numbers beside each other."""
    lines = outputs.reshape(len(outputs), -1).tolist()
    names = [f"output {number}" for number in range(len(lines[0]) if lines else 0)]
    text = io.StringIO(newline="")
    rows = [(number, *map(repr, line)) for number, line in enumerate(lines, start=1)]
    csv.writer(text, lineterminator="\n").writerows([("row", *names), *rows])
    return text.getvalue()
