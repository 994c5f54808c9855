"""Conversion of arrays, DataFrames and lists to tensors and back; checks of free memory."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from emulon.core.errors import BadShape, EmulonError, OutOfMemory

P = ParamSpec("P")
Answer = TypeVar("Answer")
Kind = Literal["tensor", "numpy", "pandas", "list"]
Side = Literal["rows", "columns", "none"]


@dataclass(frozen=True)
class ArrayFormat:
    """The kind of an array; for pandas also the names of rows and columns, for a tensor its device."""

    kind: Kind = "tensor"
    rows: Any = None
    columns: Any = None
    device: torch.device | None = None

    @classmethod
    def of(cls, value: object) -> ArrayFormat:
        """The format of a value; arrays of other libraries count as NumPy arrays, plain numbers as tensors."""
        if isinstance(value, Tensor):
            return cls(device=value.device)
        if isinstance(value, int | float):
            return cls()
        if isinstance(value, list | tuple):
            return cls("list")
        if hasattr(value, "iloc"):
            return cls("pandas", value.index, getattr(value, "columns", None))  # type: ignore[attr-defined]  # pandas has
        return cls("numpy")

    def back(self, answer: Tensor, side: Side = "none") -> Any:
        """Convert an answer to this format; `side` says whether a vector has one number per row or per column."""
        if self.kind == "tensor":
            return answer if self.device is None else answer.to(self.device)
        numbers = answer.detach().cpu().numpy().copy()
        if self.kind == "list":
            return numbers.tolist()
        names = {"rows": self.rows, "columns": self.columns, "none": None}[side]
        if self.kind == "pandas" and names is not None and numbers.shape == (len(names),):
            import pandas as pd

            return pd.Series(numbers, index=names)
        return numbers[()]  # a number where there is but one, as NumPy's own functions answer


def bits(tensor: Tensor) -> bytes:
    """The tensor's bytes in order, whatever its strides; used for hashes."""
    # A tensor of one number counts as contiguous with any stride, and a view of its bytes does not.
    plain = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return plain.flatten().view(torch.uint8).numpy().tobytes()


def as_tensor(value: Any, name: str = "the data") -> Tensor:
    """Convert to a tensor, sharing NumPy's memory where possible. Lists become float64."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "toarray"):
        raise BadShape(f"{name} is a sparse matrix; give a dense one, {name}.toarray()")
    if hasattr(value, "iloc"):
        value = _frame_numbers(value, name)
    try:
        array = np.asarray(value)
        if array.dtype == object:  # Python's own numbers of several kinds, or none at all
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise BadShape(f"{name} is no array of numbers; give rows of equal length, text encoded first") from None
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biufc":
        raise EmulonError(f"{name} holds {array.dtype.name}, not numbers; encode it as numbers first")
    plain = isinstance(value, list | tuple | int | float) and kind in "iu"
    if plain or (kind == "u" and size == 8) or (kind == "f" and size > 8):
        array = array.astype(np.float64)
    elif kind == "u" and size > 1:
        array = array.astype(np.int64)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(array.shape)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def own_copy(x: Tensor, device: torch.device | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Copy a tensor that a run keeps, so that its audit, made when it is asked for, is about the data that ran.

    Dimensions along which x is expanded stay so and take no memory.
    """
    moved = x.to(device or x.device, dtype or x.dtype)
    if moved is not x:
        return moved
    shared = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in x.stride())
    return x[shared].clone().expand(x.shape)


def accepts_arraylike(
    *names: str, like: str, side: Side = "none"
) -> Callable[[Callable[P, Answer]], Callable[P, Answer]]:
    """Decorator: lets a function of tensors take anything that `as_tensor` reads, in these parameters.

    A tensor that it returns comes back as what `like` was given as; anything else as it is. The annotations say what
    the function itself sees.
    """

    def decorate(function: Callable[P, Answer]) -> Callable[P, Answer]:
        order = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def read(*args: P.args, **options: P.kwargs) -> Answer:
            given = dict(zip(order, args, strict=False)) | options
            # Bounds and the like may stand where arrays do.
            own = {name: given[name] for name in names if not isinstance(given.get(name), int | float | None)}
            if all(isinstance(value, Tensor) for value in own.values()):
                return function(*args, **options)
            tensors = {name: as_tensor(value, name) for name, value in own.items()}
            rest = {name: tensors.get(name, value) for name, value in options.items()}
            placed = [tensors.get(name, value) for name, value in zip(order, args, strict=False)]
            answer = function(*placed, *args[len(order) :], **rest)  # type: ignore[arg-type]  # tensors for arrays
            if not isinstance(answer, Tensor):
                return answer
            back: Answer = ArrayFormat.of(given[like]).back(answer, side)
            return back

        return read

    return decorate


def _frame_numbers(frame: Any, name: str) -> np.ndarray:
    """A DataFrame's or Series' numbers, missing ones as NaN; refuses columns that hold something else, by name."""
    from pandas.api.types import is_numeric_dtype

    columns = (
        {name: frame.dtype} if frame.ndim == 1 else {f"column {k!r} of {name}": t for k, t in frame.dtypes.items()}
    )
    for what, dtype in columns.items():
        if not is_numeric_dtype(dtype):
            raise EmulonError(f"{what} holds {dtype}, not numbers; encode it as numbers, or leave it out")
    numbers: np.ndarray = frame.to_numpy()
    return numbers if numbers.dtype.kind in "biu" else frame.to_numpy(dtype=np.float64, na_value=np.nan)


# Where Linux keeps what a container may use, and uses: version 2 of control groups, and version 1.
LIMITS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
)


def free_memory() -> int | None:
    """Free bytes: the least of what the machine and its container allow."""
    found = [size for size in (_of_machine(), *(_of_container(*files) for files in LIMITS)) if size]
    return min(found, default=None)


# How much more is done at a time on a GPU: no cache would hold it, and a launch costs as much as a megabyte does.
ON_GPU = 1 << 8


def at_a_time(numbers: int, device: torch.device) -> int:
    """Block size for a device, given the number of elements that fit a processor's cache."""
    return numbers * (ON_GPU if device.type == "cuda" else 1)


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one CPU thread inside: work on blocks that fit one core's cache gains nothing from a second.

    Where another process holds a core, two threads that wait for each other after every operation take a hundred times
    as long as one.
    """
    before = torch.get_num_threads()
    if device.type != "cpu" or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_memory(needed: int, what: str, cure: str, device: torch.device | None = None) -> None:
    """Refuse work that needs more memory than is free on the device; unknown sizes are not refused."""
    free = free_memory() if device is None or device.type != "cuda" else _of_gpu(device)
    if free is not None and needed > free:
        raise OutOfMemory(f"{what} needs about {_shown(needed)} of memory and {_shown(free)} are free; {cure}")


def _shown(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.2g} MB"


def _of_gpu(device: torch.device) -> int:
    """Free memory of the GPU, including what torch has reserved and does not use."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def _of_machine() -> int | None:
    path = Path("/proc/meminfo")
    if path.exists():
        lines = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        if "MemAvailable" in lines:
            return int(lines["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_container(folder: str, limit: str, used: str, cached: str) -> int | None:
    try:
        most, now = (Path(folder, name).read_text().strip() for name in (limit, used))
        facts = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
        # Files that are kept in memory count as used, and are given up when asked for.
        return max(int(most) - int(now) + int(facts.get(cached, 0)), 1)
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None


def zeros(*size: int) -> Tensor:
    """Zeros in float64 on the CPU, whatever the defaults are."""
    return torch.zeros(*size, dtype=torch.float64, device="cpu")


def ones(*size: int) -> Tensor:
    """Ones in float64 on the CPU, whatever the defaults are."""
    return torch.ones(*size, dtype=torch.float64, device="cpu")


def eye(size: int) -> Tensor:
    """The identity in float64 on the CPU, whatever the defaults are."""
    return torch.eye(size, dtype=torch.float64, device="cpu")
