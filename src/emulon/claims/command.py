"""`emulon reproduce`: list the claims, run them, and make figures and index from their numbers."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from emulon.claims.claim import SCALES, Claim, ScaleName
from emulon.claims.figure import Figure
from emulon.claims.index import index, records
from emulon.claims.record import measure, path_of, write
from emulon.claims.registry import all_claims, claim_named
from emulon.errors import EmulonError
from emulon.files import write_atomically
from emulon.progress import Progress, progress_bar

Draw = Callable[[Figure], str]
EXAMPLES = """examples:
  emulon reproduce                              every claim, its state and its cost
  emulon reproduce emulation-table-4            one of them: numbers, figure, verdict
  emulon reproduce --all                        all of them at the small scale
  emulon reproduce --figures                    figures and index again, from the numbers alone"""


class _Parser(argparse.ArgumentParser):
    """A refusal is one line."""

    def error(self, message: str) -> NoReturn:
        raise EmulonError(f"{message} (see emulon reproduce --help)")


def main(words: Sequence[str], draw: Draw) -> int:
    """0 when done, whatever the verdicts; 1 when a claim crashed; 2 for a request that makes no sense."""
    try:
        options = _parser().parse_args(list(words))
        return _act(options, draw)
    except SystemExit as end:  # --help
        return int(end.code or 0)
    except (EmulonError, OSError) as error:
        print(f"emulon reproduce: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _parser() -> _Parser:
    parser = _Parser(
        prog="emulon reproduce",
        description="Run the sources' claims and compare the numbers.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="CLAIM", help="default: list all claims")
    parser.add_argument("--all", action="store_true", help="run every claim that has this scale")
    parser.add_argument("--figures", action="store_true", help="draw again from the results; measure nothing")
    parser.add_argument("--scale", choices=SCALES, default="small", help="default small")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default ./results")
    return parser


def _act(options: argparse.Namespace, draw: Draw) -> int:
    chosen = [claim_named(name) for name in dict.fromkeys(options.names)]
    if options.all and chosen:
        raise EmulonError("--all runs every claim: leave the names out, or --all")
    if not 0 <= options.seed < 2**31:
        raise EmulonError(f"--seed must be in 0 … 2³¹−1, got {options.seed}")
    if not (chosen or options.all or options.figures):
        show_list(all_claims().values(), options.out)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    crashed: list[str] = []
    if options.figures:
        for claim in chosen or all_claims().values():
            draw_results(claim, options.out, draw)
    else:
        if options.all:
            chosen = [claim for claim in all_claims().values() if options.scale in claim.scales]
        crashed = reproduce(chosen, options.scale, options.seed, options.out, draw)
    write_atomically(options.out / "README.md", index(all_claims().values(), options.out).encode())
    if crashed:
        print(f"emulon reproduce: {len(crashed)} crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def reproduce(claims: Sequence[Claim], scale: ScaleName, seed: int, folder: Path, draw: Draw) -> list[str]:
    """Runs these claims and writes what they give; a crash does not cost the others their turn. Who crashed."""
    crashed = []
    for claim in claims:
        try:
            with progress_bar() as told:
                record = measure(claim, scale, seed, folder, partial(_told, told, claim.name))
            write(record, folder)
            draw_results(claim, folder, draw)
        except Exception as error:
            if len(claims) == 1 and isinstance(error, EmulonError):
                raise
            traceback.print_exc()
            crashed.append(claim.name)
            continue
        verdict = record.verdict(claim)
        print(f"{claim.name}: {verdict.state} ({verdict.reason})", flush=True)
        print(f"    theirs  {claim.theirs}\n    ours    {verdict.ours}\n    {record.seconds:.1f} s", flush=True)
    return crashed


def _told(progress: Progress, name: str, what: str, done: float) -> None:
    progress(f"{name}: {what}", done)


def draw_results(claim: Claim, folder: Path, draw: Draw) -> None:
    """The figure of every result of this claim, from its numbers."""
    for record in records(claim, folder):
        if "cannot" not in record.numbers:
            svg = draw(claim.figure(record.numbers))
            write_atomically(path_of(claim.name, record.scale, folder, ".svg"), svg.encode())


def show_list(claims: Collection[Claim], folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{len(claims)} claims; state from {folder}/")
    for name in ("claim", "source", "small", "paper", "state", "ours"):
        table.add_column(name, justify="right" if name in ("small", "paper") else "left")
    for claim in claims:
        costs = [f"≈{cost.minutes:g} min" if (cost := claim.scales.get(s)) else "–" for s in SCALES]
        found = records(claim, folder)
        verdict = found[-1].verdict(claim) if found else None
        state, ours = ("not run", "") if verdict is None else (verdict.state, verdict.ours)
        table.add_row(claim.name, claim.source, *costs, state, ours)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
