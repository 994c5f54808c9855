"""`emulon show`: what is in a program's prompt, or in a network's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions

EXAMPLES = """example:
  emulon compile ridge --out files && emulon show files/program.safetensors"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Show what is in a program's prompt, row by row."""

    program: Positional[Annotated[Path, arg(metavar="PROGRAM")]]
    """a file of emulon compile, or of emulon compile-network"""


def main(options: Options) -> int:
    from emulon.interpreter import kind_of, load_program

    if kind_of(options.program) == "network":
        return show_network(options.program)
    from emulon.report.anatomy import anatomy, facts, phases
    from emulon.report.terminal import console, table

    program = load_program(options.program)
    terminal = console()
    for name, what in facts(program):
        terminal.print(f"{name}  {what}", highlight=False)
    for phase in phases(program):
        rows = [
            (row.rows, row.slot, row.tokens, row.holds, row.scale, f"{row.largest:.4g}")
            for row in anatomy(program, phase)
        ]
        columns = ("rows", "slot", "tokens", "holds", "scale", "largest")
        title = f"the {phase.name} phase's prompt: {phase.slots.width} rows × {phase.tokens} tokens"
        terminal.print(table(columns, rows, title=title, words=columns[1:5]))
    return 0


def show_network(path: Path) -> int:
    """Its layers as phases: what each reads, what its prompt holds, where its numbers are and what it adds."""
    from emulon.networks import load_network
    from emulon.report.anatomy import network_facts, network_rows
    from emulon.report.terminal import console, table

    program, terminal = load_network(path), console()
    for name, what in network_facts(program):
        terminal.print(f"{name}  {what}", highlight=False)
    columns = ("layer", "reads", "phase", "prompt", "range", "adds")
    terminal.print(table(columns, network_rows(program), title="phases, in order", words=columns[:5]))
    return 0
