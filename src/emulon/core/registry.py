"""A registry: things of one kind by name, filled where they are defined."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from emulon.core.errors import EmulonError, unknown

Item = TypeVar("Item")
Registered = TypeVar("Registered", bound=Any)


class Registry(dict[str, Item]):
    """A dict in the order of registration; `kind` is what its errors call an item.

    Args:
        kind: The word for one item, as in "there is no task 'linaer'; did you mean linear?".

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
