"""A disk cache of softmax grids and their proofs.

The key is the request (function, interval, tolerance, dtype), the code that searches and proves (`SOURCES`) and the
versions of the libraries it uses. `EMULON_CACHE` names the folder, or is `off`; by default it is `emulon` in the
user's folder for caches. An entry that is damaged, or has another key, is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from emulon.core.errors import CannotWrite
from emulon.core.files import write_atomically

# The oldest entries beyond this many are deleted.
MOST = 2000
# What entries are computed with. Proofs do not depend on the machine, nor does it matter on which one a grid was found.
LIBRARIES = ("python-flint", "sympy", "numpy", "scipy", "torch")
# The files of emulon that search for softmaxes, prove them, or weigh them by the rounding of where they are used. A
# test follows searches, and fails where one of them runs code of any other file.
SOURCES = (
    *(f"softmax/{name}.py" for name in ("approximate", "grid", "piecewise", "spectral")),
    "attention/codes.py",
    *(f"certify/{name}.py" for name in ("certificate", "domain", "interpolation", "rounding")),
    "interpreter/layout.py",
    "expressions/evaluation.py",
    "expressions/expression.py",
    *(f"interpreter/{name}" for name in ("compiler.py", "identity_grid.json", "identity_grid.py", "phase.py")),
    "networks/softmaxes.py",
    "expressions/parser.py",
)
ROOT = Path(__file__).parents[1]


def disk_cached(kind: str, request: object, make: Callable[[], Any]) -> Any:
    """`make()`, or what it gave before for the same request and the same code.

    Args:
        kind: What is made, a word for file names.
        request: All that `make` depends on besides the code in `SOURCES`, as JSON.
        make: Gives JSON; numbers are kept to the last bit.

    Returns:
        What `make` returned, now or before.

    Example:
        >>> disk_cached("square", [3.0], lambda: [9.0])
        [9.0]
    """
    folder = _folder()
    if folder is None:
        return make()
    key = hashlib.sha256(json.dumps([kind, request, code()], sort_keys=True).encode()).hexdigest()
    path = folder / f"{kind}-{key[:32]}.json"
    entry = _read(path, key)
    if entry is None:
        entry = make()
        _keep(path, key, entry)
    return entry


def _folder() -> Path | None:
    chosen = os.environ.get("EMULON_CACHE")
    if chosen == "off":
        return None
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "emulon")


@cache
def code(root: Path = ROOT) -> str:
    """sha256 of the `SOURCES`, and the versions of what they compute with."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in LIBRARIES]).encode())
    for name in SOURCES:
        digest.update(hashlib.sha256((root / name).read_bytes()).digest())
    return digest.hexdigest()


def _checksum(key: str, entry: Any) -> str:
    return hashlib.sha256(json.dumps([key, entry], sort_keys=True).encode()).hexdigest()


def _read(path: Path, key: str) -> Any:
    """None where there is nothing, or nothing whole."""
    try:
        content = json.loads(path.read_bytes())
        whole = content["sha256"] == _checksum(key, content["entry"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content["entry"] if whole else None


def _keep(path: Path, key: str, entry: Any) -> None:
    """A cache that cannot be written to is no reason to fail."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"sha256": _checksum(key, entry), "entry": entry}))
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-MOST]:
            old.unlink(missing_ok=True)
    except (CannotWrite, OSError):
        return
