"""Registries, deprecated names of 0.2, and the type of progress callbacks."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeVar

from emulon.core.errors import EmulonError, unknown

# As `silent` is called.
Progress = Callable[[str, float], None]
Item = TypeVar("Item")
Registered = TypeVar("Registered", bound=Any)


def silent(what: str, done: float) -> None:
    """No-op progress callback.

    Args:
        what: The current work.
        done: The finished fraction of the whole.
    """


class Registry(dict[str, Item]):
    """A dict in the order of registration; `kind` is what its errors call an item, as "task".

    Example:
        >>> tasks = Registry[type]("task")
        >>> @tasks.register
        ... class LinearMap: ...
        >>> list(tasks)
        ['linear_map']
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, item: Registered, name: str = "") -> Registered:
        """Add an item and return it, so that this decorates; the name is the item's own in snake case by default."""
        self[name or snake_case(item.__name__)] = item
        return item

    def named(self, name: str) -> Item:
        """The item of this name; raises `EmulonError`, with the nearest name, where there is none."""
        if name not in self:
            raise EmulonError(unknown(self.kind, name, self))
        return self[name]


def snake_case(name: str) -> str:
    """`huber_regression` for HuberRegression."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


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
    """For a module's `__getattr__`: resolve a name of 0.2 with a warning; AttributeError for any other."""
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
