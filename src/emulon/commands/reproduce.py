"""`emulon reproduce`: list the claims, run them, and make figures and index from their numbers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import FlagCreatePairsOff, Positional

from emulon.claims.claim import SCALES, Claim, ScaleName
from emulon.claims.registry import all_claims, claim_named
from emulon.commands.names import require_known
from emulon.commands.options import BadUsage, CommandOptions, Seed, shown
from emulon.errors import EmulonError
from emulon.files import make_folder, write_atomically
from emulon.progress import Progress, progress_bar

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """examples:
  emulon reproduce                              every claim, its state and its cost
  emulon reproduce emulation-table-4            one of them: numbers, figure, verdict
  emulon reproduce --all                        all of them at the small scale
  emulon reproduce --figures                    figures and index again, from the numbers alone"""
LIST_WIDTH = 160


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Run the sources' claims and compare the numbers."""

    names: Positional[Annotated[tuple[str, ...], shown("[CLAIM ...]")]] = ()
    """default: list all claims"""
    all: FlagCreatePairsOff[Annotated[bool, shown("")]] = False
    """run every claim that has this scale"""
    figures: FlagCreatePairsOff[Annotated[bool, shown("")]] = False
    """draw again from the results; measure nothing"""
    scale: ScaleName = "small"
    """how large"""
    seed: Seed = 0
    """the first seed"""
    out: Annotated[Path, shown("DIR")] = Path("results")
    """default ./results"""


def main(options: Options) -> int:
    """0 when done, whatever the verdicts; 1 when a claim crashed."""
    for name in options.names:
        require_known("claim", name, "claims")
    from emulon.claims.index import index

    chosen = [claim_named(name) for name in dict.fromkeys(options.names)]
    if options.all and chosen:
        raise BadUsage("--all runs every claim: leave the names out, or --all")
    if not (chosen or options.all or options.figures):
        show_list(all_claims().values(), options.out)
        return 0
    make_folder(options.out)
    crashed: list[str] = []
    if options.figures:
        for claim in chosen or all_claims().values():
            draw_results(claim, options.out)
    else:
        if options.all:
            chosen = [claim for claim in all_claims().values() if options.scale in claim.scales]
        crashed = reproduce(chosen, options.scale, options.seed, options.out)
    write_atomically(options.out / "README.md", index(all_claims().values(), options.out))
    if crashed:
        print(f"emulon reproduce: {len(crashed)} crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def reproduce(claims: Sequence[Claim], scale: ScaleName, seed: int, folder: Path) -> list[str]:
    """Runs these claims and writes what they give; a crash does not cost the others their turn. Who crashed."""
    from emulon.claims.index import setup_rows
    from emulon.claims.record import measure, write

    crashed = []
    for claim in claims:
        try:
            with progress_bar() as report_progress:
                record = measure(claim, scale, seed, folder, partial(_within, report_progress, claim.name))
            write(record, folder)
            draw_results(claim, folder)
        except Exception as error:
            if len(claims) == 1 and isinstance(error, EmulonError):
                raise
            traceback.print_exc()
            crashed.append(claim.name)
            continue
        verdict = record.verdict(claim)
        print(f"{claim.name}: {verdict.state} ({verdict.reason})", flush=True)
        print(f"    theirs  {claim.theirs}\n    ours    {verdict.ours}\n    {record.seconds:.1f} s", flush=True)
        for what, theirs, ours in setup_rows(claim):
            print(f"    {what}: {theirs} | {ours}")
    return crashed


def _within(report_progress: Progress, name: str, what: str, done: float) -> None:
    report_progress(f"{name}: {what}", done)


def draw_results(claim: Claim, folder: Path) -> None:
    """The figure of every result of this claim, from its numbers."""
    from emulon.claims.record import path_of, records
    from emulon.report.chart import chart

    for record in records(claim, folder):
        if "cannot" not in record.numbers:
            write_atomically(path_of(claim.name, record.scale, folder, ".svg"), chart(claim.figure(record.numbers)))


def show_list(claims: Collection[Claim], folder: Path) -> None:
    from emulon.report.terminal import console

    console(LIST_WIDTH).print(claims_table(claims, folder))


def claims_table(claims: Collection[Claim], folder: Path) -> Table:
    from emulon.claims.record import records
    from emulon.report.terminal import table

    rows = []
    for claim in claims:
        costs = [f"≈{cost.minutes:g} min" if (cost := claim.scales.get(s)) else "–" for s in SCALES]
        known = records(claim, folder)
        verdict = known[-1].verdict(claim) if known else None
        state, ours = ("not run", "") if verdict is None else (verdict.state, verdict.ours)
        rows.append((claim.name, claim.source, *costs, state, ours))
    words = ("claim", "source", "state", "ours")
    title = f"{len(claims)} claims; state from {folder}/"
    return table(("claim", "source", *SCALES, "state", "ours"), rows, title=title, words=words)
