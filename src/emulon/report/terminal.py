"""What commands print: lines and tables on standard output, notes on standard error, and progress."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from emulon.core import Progress, silent

PIPE_WIDTH = 140
_quiet = False


@contextmanager
def quiet(on: bool) -> Iterator[None]:
    """Within, `say` prints nothing and `progress` draws no bar, where `on`."""
    global _quiet
    before, _quiet = _quiet, on
    try:
        yield
    finally:
        _quiet = before


def say(*things: object, width: int = PIPE_WIDTH, err: bool = False) -> None:
    """Print lines and tables, unless --quiet; on standard error with `err`, where data go to standard output.

    Text is printed as it is: names in tables may hold brackets. A pipe has no width: `width` is taken there.
    """
    if _quiet:
        return
    file = sys.stderr if err else sys.stdout
    console = Console(file=file, width=None if file.isatty() else width, markup=False, emoji=False)
    for thing in things:
        if isinstance(thing, Table):
            console.print(thing)
        else:
            print(thing, file=file, flush=True)  # a server runs on after its address


def note(text: str) -> None:
    """Print a warning on standard error, even if --quiet."""
    print(f"note: {text}", file=sys.stderr)


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress bar on standard error where that is a terminal, unless --quiet."""
    if _quiet:
        yield silent
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    caption: str = "",
    words: Collection[str] = (),
    wrap: bool = True,
    tight: bool = False,
) -> Table:
    """Numbers to the right; the columns of `words` to the left. `tight`: a space between columns, and no rules."""
    made = Table(title=title or None, caption=caption or None)
    if tight:
        made.box, made.pad_edge, made.collapse_padding = SIMPLE_HEAD, False, True
    for column in columns:
        made.add_column(column, justify="left" if column in words else "right", no_wrap=not wrap)
    for row in rows:
        made.add_row(*row)
    return made
