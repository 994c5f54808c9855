"""Progress of slow work: the type of the callback, and a bar on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with a description of the current work and the finished fraction of the whole.
Progress = Callable[[str, float], None]


def silent(what: str, done: float) -> None:
    """No-op progress callback."""


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on stderr; nothing at all where stderr is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
