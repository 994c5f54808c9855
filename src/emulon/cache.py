"""What was searched for and proved once is kept on disk, under everything that it depends on: its request and the code.

`EMULON_CACHE` names the folder, or is `off`; by default it is `emulon` in the user's folder for caches. An entry that
is not whole, or not for this very request, is made again.
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

from emulon.errors import CannotWrite
from emulon.files import write_atomically

# The oldest entries beyond this many are deleted.
MOST = 2000
# What entries are computed with. Proofs do not depend on the machine, nor does it matter on which one a grid was found.
LIBRARIES = ("python-flint", "sympy", "numpy", "scipy", "torch")


def remembered(kind: str, request: object, make: Callable[[], Any]) -> Any:
    """`make()`, or what it gave before for the same request and code; both are JSON, numbers kept to the last bit."""
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
def code() -> str:
    """sha256 of all of emulon's sources, and the versions of what they compute with."""
    digest = hashlib.sha256(repr([(name, version(name)) for name in LIBRARIES]).encode())
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
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
