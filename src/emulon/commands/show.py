"""`emulon show`: what is in a program's prompt."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.commands.options import CommandOptions

EXAMPLES = """example:
  emulon compile ridge --out files && emulon show files/program.safetensors"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Show what is in a program's prompt, row by row."""

    program: Positional[Annotated[Path, arg(metavar="PROGRAM")]]
    """a file of emulon compile"""


def main(options: Options) -> int:
    from emulon.interpreter import load_program
    from emulon.report.anatomy import anatomy, facts, phases
    from emulon.report.terminal import console, table

    program = load_program(options.program)
    terminal = console()
    for name, what in facts(program):
        terminal.print(f"[bold]{name}[/bold]  {what}", highlight=False)
    for phase in phases(program):
        rows = [
            (row.rows, row.slot, row.tokens, row.holds, row.scale, f"{row.largest:.4g}")
            for row in anatomy(program, phase)
        ]
        columns = ("rows", "slot", "tokens", "holds", "scale", "largest")
        title = f"the {phase.name} phase's prompt: {phase.slots.width} rows × {phase.tokens} tokens"
        terminal.print(table(columns, rows, title=title, words=columns[1:5]))
    return 0
