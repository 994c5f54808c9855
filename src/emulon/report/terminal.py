"""What commands print: lines and tables on standard output, notes on standard error, and progress."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from emulon.core.progress import Progress, progress_bar, silent

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


def progress() -> AbstractContextManager[Progress]:
    """A progress bar on standard error where that is a terminal, unless --quiet."""
    return nullcontext(silent) if _quiet else progress_bar()


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
