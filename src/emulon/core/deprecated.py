"""Modules of 0.2 under their earlier names: importing one warns, and gives the module under its name of today."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

RENAMED = {
    "adapters": "identification.adapters",
    "approximation": "softmax",
    "benchmark": "planted.benchmark",
    "descent": "interpreter",
    "errors": "core.errors",
    "expression": "expressions",
    "files": "core.files",
    "interrogate": "identification",
    "loading": "identification.loading",
    "predictor": "core.predictor",
    "specimens": "planted",
}


def renamed(module: str, name: str, names: Mapping[str, str]) -> Any:
    """For a module's `__getattr__`: what the name of 0.2 is called now, with a DeprecationWarning.

    Raises:
        AttributeError: The name is not one of `names`.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    new = names[name]
    warn_renamed(f"{module}.{name}", new, stacklevel=4)
    return getattr(sys.modules[module], new)


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Say, in a DeprecationWarning, what an earlier name or argument is called now."""
    warnings.warn(f"{old} is {new} since 0.3; the earlier name goes with 0.4", DeprecationWarning, stacklevel)


class RenamedModules(MetaPathFinder, Loader):
    """Import hook that resolves the earlier module names of `RENAMED` with a DeprecationWarning."""

    def find_spec(
        self, name: str, path: Iterable[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = name.partition(".")
        return ModuleSpec(name, self) if package == "emulon" and old in RENAMED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"emulon.{RENAMED[old.partition('.')[2]]}"
        warn_renamed(old, new)
        # importlib hands out what stands in sys.modules after this call.
        sys.modules[old] = import_module(new)
