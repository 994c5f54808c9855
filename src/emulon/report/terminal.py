"""The one console, and tables on it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 140


def console(width: int = PIPE_WIDTH) -> Console:
    """The console that everything is printed on. It takes no markup: names from tables and users may hold brackets.

    A pipe has no width: `width` is taken there, and a table is not squeezed into eighty columns.
    """
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)


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
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(title=title or None, caption=caption or None)
    if tight:
        made.box, made.pad_edge, made.collapse_padding = SIMPLE_HEAD, False, True
    for column in columns:
        made.add_column(column, justify="left" if column in words else "right", no_wrap=not wrap)
    for row in rows:
        made.add_row(*row)
    return made
