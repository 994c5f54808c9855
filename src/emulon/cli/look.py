"""`emulon show` and `emulon playground`: what is in a prompt or a run, and the page in the browser."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import Command, CommandOptions, Count, Seed, Size, shown
from emulon.core.errors import EmulonError
from emulon.identification.loading import is_run
from emulon.interpreter import kind_of, load_program
from emulon.networks import load_network
from emulon.playground import address, places_of, serving
from emulon.report.learners import network_facts, network_rows, write_run
from emulon.report.page import facts, prompt_rows
from emulon.report.terminal import progress, say, table

SHOW_EXAMPLES = """examples:
  emulon compile ridge --out files && emulon show files/program.safetensors
  emulon train standard --preset small --keep-checkpoints 0 --out runs/small && emulon show runs/small
The second prints the nearest algorithm at every checkpoint, and writes runs/small/report/index.html."""


@dataclass(frozen=True, kw_only=True)
class ShowOptions(CommandOptions):
    """Show what is in a prompt, row by row, or phase by phase; of a training run write the page: its errors beside the
    baselines', its loss, and which algorithm it ran when."""

    what: Positional[Annotated[Path, arg(metavar="WHAT")]]
    """a file of emulon compile (a program or a network), its folder, or the folder of a training run"""
    report: Annotated[Path | None, shown("DIR")] = None
    """of a training run: where its page goes (default WHAT/report)"""
    datasets: Annotated[Count, shown("COUNT")] = 64
    """of a training run: on which the learner is compared with reference algorithms, at every checkpoint"""
    seed: Seed = 0
    """of these datasets"""


def show_main(options: ShowOptions) -> int:
    if is_run(options.what):
        return _show_run(options)
    files = [options.what]
    if options.what.is_dir():
        files = [path for name in ("program", "network") if (path := options.what / f"{name}.safetensors").exists()]
        if not files:
            raise EmulonError(f"{options.what} holds no program, network or training run; name another folder")
    shown = [_show_network(path) if kind_of(path) == "network" else _show_program(path) for path in files]
    return options.finish(shown[0] if len(shown) == 1 else shown)


def _show_run(options: ShowOptions) -> int:
    folder = options.report or options.what / "report"
    options.require_writable(folder)
    with progress() as report_progress:
        page, found = write_run(options.what, folder, options.datasets, options.seed, report_progress)
    say(*found, f"report {page}")
    return options.finish({"report": str(page), "checkpoints": [phase.as_numbers() for phase in found]})


def _show_program(path: Path) -> dict[str, object]:
    program, record = load_program(path), {}
    say(*(f"{name}  {what}" for name, what in facts(program)))
    for phase in program.phases:
        rows = [
            (row.rows, row.slot, row.tokens, row.holds, row.scale, f"{row.largest:.4g}")
            for row in prompt_rows(program, phase)
        ]
        columns = ("rows", "slot", "tokens", "holds", "scale", "largest")
        title = f"the {phase.name} phase's prompt: {phase.slots.width} rows × {phase.tokens} tokens"
        say(table(columns, rows, title=title, words=columns[1:5]))
        record[phase.name] = [dict(zip(columns, row, strict=True)) for row in rows]
    return dict(facts(program)) | {"prompt": record}


def _show_network(path: Path) -> dict[str, object]:
    """Its layers as phases: what each reads, what its prompt holds, where its numbers are and what it adds."""
    program = load_network(path)
    rows, columns = network_rows(program), ("layer", "reads", "phase", "prompt", "range", "adds")
    say(*(f"{name}  {what}" for name, what in network_facts(program)))
    lines = [tuple(row.values()) for row in rows]
    say(table(columns, lines, title="phases, in order", words=columns[:5]))
    return dict(network_facts(program)) | {"phases": rows}


PLAYGROUND_EXAMPLES = """examples:
  emulon playground
  emulon playground --port 0 --no-browser      any free port, printed; no browser is opened
  emulon run ridge --data houses.csv --target price && emulon playground --run report"""


@dataclass(frozen=True, kw_only=True)
class PlaygroundOptions(CommandOptions):
    """Open the playground: one frozen transformer in the browser, running whatever its prompt says."""

    port: Size = 8765
    """of 127.0.0.1; 0 for any that is free"""
    browser: bool = True
    """open it in the browser"""
    run: Annotated[Path | None, shown("DIR")] = None
    """a report folder of emulon run: open with some of its rows, and what it fitted to them"""


def playground_main(options: PlaygroundOptions) -> int:
    places = {} if options.run is None else places_of(options.run)
    with serving(options.port) as server:
        home = address(server)
        addresses = {name: f"{home}#{place}" for name, place in places.items()}
        first, *others = list(addresses.items()) or [("", home)]
        say(f"{first[1]}  (Ctrl-C to stop)", *(f"{name}: {where}" for name, where in others))
        options.finish({"address": first[1], "runs": addresses})
        if options.browser:
            webbrowser.open(first[1])
        server.serve_forever()
    return 0


COMMANDS = {
    "show": Command(ShowOptions, show_main, SHOW_EXAMPLES),
    "playground": Command(PlaygroundOptions, playground_main, PLAYGROUND_EXAMPLES),
}
