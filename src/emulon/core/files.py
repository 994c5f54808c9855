"""Files: written whole or not at all, JSON as checked dataclasses, the provenance of kept numbers, and a disk cache.

The cache keeps softmax grids and their proofs. The key is the request (function, interval, tolerance, dtype), the code
that searches and proves (`SOURCES`) and the versions of the libraries it uses. `EMULON_CACHE` names the folder, or is
`off`; by default it is `emulon` in the user's folder for caches. An entry that is damaged, or has another key, is made
again.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import hashlib
import io
import json
import math
import os
import platform
import subprocess
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any

from jaxtyping import AbstractArray, jaxtyped

from emulon.core.errors import CannotWrite

# Bytes of the largest JSON file that is read.
MOST_JSON = 1 << 28


def write_atomically(path: Path | str, content: bytes | str) -> None:
    """Write a file atomically: after a crash it is either unchanged or complete."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def text_cell(text: str) -> str:
    """Text as a cell of a CSV file: what a spreadsheet would run as a formula gets an apostrophe before it."""
    formula = text.lstrip()[:1] in tuple("=+-@＝＋－＠") or text[:1] in ("\t", "\r", "\n")
    try:
        float(text)
    except ValueError:
        return f"'{text}" if formula else text
    return text


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV: a float reads back as the same float, and text is made a `text_cell`."""
    text = io.StringIO(newline="")
    cells = ([text_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(cells)
    return text.getvalue()


def write_json(path: Path | str, values: Any) -> None:
    """JSON as people read it; a float reads back as the same float."""
    write_atomically(path, json.dumps(values, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """The content of a JSON file; a ValueError of one line where it is missing, too large, not UTF-8 or not JSON."""
    path = Path(path)
    try:
        if path.stat().st_size > MOST_JSON:
            raise ValueError(f"larger than {MOST_JSON >> 20} MiB")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    except RecursionError:
        raise ValueError("too deeply nested") from None


def checked(kind: Any, value: Any, where: str, arrays: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """Convert `value`, as `json.loads` gives it, to the annotated type `kind`; `where` is its name in messages.

    `kind` is a dataclass (all of its fields must be there, and no other), `tuple[X, ...]`, `tuple[X, Y]`,
    `dict[str, X]`, `Literal`, `X | None`, float (not NaN), int (64 bits), str, bool, Any, or a jaxtyping annotation: in
    `value` the name of one of `arrays` stands for it, and axes of one name in one dataclass are equally long.

    Raises:
        ValueError: Something is missing, unknown, or of another type; one line says what and where.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        annotated, table = typing.get_type_hints(kind), _of_type(dict, value, where)
        hints = {field.name: annotated[field.name] for field in dataclasses.fields(kind)}
        for name in sorted(table.keys() ^ hints.keys()):
            raise ValueError(f"{where} {'has an unknown field' if name in table else 'lacks the field'} {name!r:.40}")
        made: Any = kind
        with jaxtyped("context"):
            parts = {name: checked(hint, table[name], f"{name} of {where}", arrays) for name, hint in hints.items()}
        return made(**parts)
    if origin in (typing.Union, UnionType):
        (some,) = (one for one in arguments if one is not type(None))
        return None if value is None else checked(some, value, where, arrays)
    if origin is typing.Literal:
        if not any(type(value) is type(one) and value == one for one in arguments):
            raise ValueError(f"{where} is {value!r:.40}, not one of {', '.join(map(str, arguments))}")
        return value
    if origin is dict:
        names = [_of_type(str, name, where) for name in _of_type(dict, value, where)]
        return {name: checked(arguments[1], value[name], f"{name!r:.40} of {where}", arrays) for name in names}
    if origin is tuple:
        values = _of_type(list, value, where)
        kinds = [arguments[0]] * len(values) if arguments[-1] is Ellipsis else arguments
        if len(kinds) != len(values):
            raise ValueError(f"{where} has {len(values)} parts instead of {len(kinds)}")
        each = enumerate(zip(kinds, values, strict=True))
        return tuple(checked(one, part, f"{where}[{i}]", arrays) for i, (one, part) in each)
    if kind is float:
        number: float = _of_type(float, float(value) if type(value) is int and abs(value) < 1 << 1000 else value, where)
        if math.isnan(number):
            raise ValueError(f"{where} is not a number")
        return number
    if isinstance(kind, type) and issubclass(kind, AbstractArray):
        if not isinstance(value, str) or not isinstance(arrays.get(value), kind):
            raise ValueError(f"{where} is not the name of an array {kind.__name__}")
        return arrays[value]
    return _of_type(kind, value, where)


def _of_type(kind: type, value: Any, where: str) -> Any:
    found = type(value)
    if found is not kind or (kind is int and not -(1 << 63) <= value < 1 << 63):
        raise ValueError(f"{where} is {value!r:.40}, not of type {kind.__name__}")
    if kind is str and not value.isascii():
        value.encode()  # half a character, which JSON can write, is refused as a UnicodeEncodeError
    return value


def make_folder(path: Path | str) -> Path:
    """Create a folder with its parents and check that it can be written to."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".writable.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


@contextmanager
def locked(path: Path | str, wait: bool = True) -> Iterator[bool]:
    """Hold the lock on a file, on any system, until the process that holds it lets go or dies; whether this one has it.

    Without `wait` another process may have it. The file beside it that ends in .pid says which one had it last: not
    every system lets others read a locked file.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        yield False
        return
    try:
        Path(path).with_suffix(".pid").write_text(f"{os.getpid()}\n")
        yield True
    finally:
        lock.release()


def cannot_write(path: Path | str, error: OSError) -> CannotWrite:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CannotWrite(f"{path} could not be written: the disk is full; make room there, then go on")
    return CannotWrite(f"{path} could not be written: {error.strerror or error}; choose a place that can be written to")


def provenance(device: Any = None) -> dict[str, str]:
    """Machine, versions, commit and time; `device` is the torch device the numbers came from."""
    import torch

    device = torch.device("cpu") if device is None else torch.device(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return {
        "machine": f"{name}, {os.cpu_count()} CPU cores",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _commit() -> str:
    """COMMIT from the environment where the checkout has no .git (a copy on another machine).

    An installed copy may lie inside somebody else's checkout, whose commit says nothing about this code.
    """
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    if _git("ls-files", Path(__file__).name):
        changed = " with changes" if _git("status", "--porcelain", "--", "..") else ""
        return _git("rev-parse", "HEAD") + changed
    return "unknown"


def _git(*words: str) -> str:
    here = Path(__file__).parent
    try:
        return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git on this machine
        return ""


# The oldest entries beyond this many are deleted.
MOST_CACHED = 2000
# What entries are computed with. Proofs do not depend on the machine, nor does it matter on which one a grid was found.
LIBRARIES = ("python-flint", "sympy", "numpy", "scipy", "torch")
# The files of emulon that search for softmaxes, prove them, or weigh them by the rounding of where they are used. A
# test follows searches, and fails where one of them runs code of any other file.
SOURCES = (
    *(f"softmax/{name}.py" for name in ("approximate", "grid", "piecewise", "spectral")),
    "attention/codes.py",
    *(f"certify/{name}.py" for name in ("certificate", "domain", "interpolation", "rounding")),
    "expressions/evaluation.py",
    "expressions/expression.py",
    *(f"interpreter/{name}" for name in ("compiler.py", "identity_grid.json", "identity_grid.py", "phase.py")),
    "networks/softmaxes.py",
    "expressions/parser.py",
)
ROOT = Path(__file__).parents[1]


def disk_cached(kind: str, request: object, make: Callable[[], Any]) -> Any:
    """Return `make()` as JSON, from the disk cache if the same request was made with the same code before.

    Example:
        >>> disk_cached("square", [3.0], lambda: [9.0])
        [9.0]
    """
    chosen = os.environ.get("EMULON_CACHE")
    if chosen == "off":
        return make()
    folder = Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emulon")
    key = hashlib.sha256(json.dumps([kind, request, code()], sort_keys=True).encode()).hexdigest()
    path = folder / f"{kind}-{key[:32]}.json"
    entry = _read(path, key)
    if entry is None:
        entry = make()
        _keep(path, key, entry)
    return entry


@cache
def code(root: Path = ROOT) -> str:
    """sha256 of the `SOURCES`, and the versions of what they compute with."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in LIBRARIES]).encode())
    for name in SOURCES:
        digest.update(hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()


def _checksum(key: str, text: str) -> str:
    return hashlib.sha256(f"{key} {text}".encode()).hexdigest()


def _read(path: Path, key: str) -> Any:
    """The entry of this key, or None if the file is missing or damaged."""
    try:
        digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return None
    return json.loads(text) if digest == _checksum(key, text) else None


def _keep(path: Path, key: str, entry: Any) -> None:
    """Write an entry and delete the oldest ones; a cache that cannot be written to is ignored."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(entry)
        write_atomically(path, f"{_checksum(key, text)}\n{text}")
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-MOST_CACHED]:
            old.unlink(missing_ok=True)
    except (CannotWrite, OSError):
        return
