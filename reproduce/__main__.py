"""`python -m reproduce`: list the claims, run them, and make figures and index from their numbers.

It measures and draws with torch and numpy alone. After --minutes no further part of a claim is begun, and the result
names the missing parts; started again, the run resumes. With --minutes 0 it only puts the finished parts together.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_atomically
from emulon.report.figure import chart
from reproduce.arguments import Arguments, Progress, run_script, whole
from reproduce.claim import SCALES, Claim, ScaleName, all_claims, claim_named
from reproduce.index import index, setup_rows
from reproduce.record import fresh, measure, path_of, records, superseded, write

EXAMPLES = """examples, in the root of the repository:
  python -m reproduce                              every claim, its state and its cost
  python -m reproduce emulation-table-4            one of them: numbers, figure, verdict
  python -m reproduce --all                        all of them at the small scale
  python -m reproduce --all --stale                those whose code changed since, or that were never run
  python -m reproduce algoformer-table-1 --scale gpu --minutes 50
  python -m reproduce --figures                    figures and index again, from the numbers alone"""


def arguments() -> Arguments:
    parser = Arguments("reproduce", "Run the sources' claims and compare the numbers.", EXAMPLES)
    parser.add_argument("names", nargs="*", metavar="CLAIM", help="default: list all claims")
    parser.add_argument("--all", action="store_true", help="run every claim that has this scale")
    parser.add_argument("--stale", action="store_true", help="of these, only those without a fresh result")
    parser.add_argument("--figures", action="store_true", help="draw again from the results; measure nothing")
    parser.add_argument("--scale", choices=SCALES, default="small", help="how large (default: small)")
    parser.add_argument("--seed", type=whole(0), default=0, help="the first seed")
    parser.add_argument("--minutes", type=whole(0), help="after these no further part of a claim is begun")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: ./results")
    return parser


def main(words: Sequence[str]) -> int:
    """0 when done, whatever the verdicts; 1 when a claim crashed."""
    options = arguments().read(words)
    # Claims judge errors by their own rules.
    warnings.filterwarnings("ignore", "the (interpolation|certificate) of ", UserWarning)
    chosen = [claim_named(name) for name in dict.fromkeys(options.names)]
    if options.all and chosen:
        raise EmulonError("--all runs every claim: leave the names out, or --all")
    if not (chosen or options.all or options.figures):
        print("\n".join(listed(all_claims().values(), options.out)))
        return 0
    make_folder(options.out)
    crashed: list[str] = []
    if options.figures:
        for claim in chosen or all_claims().values():
            draw(claim, options.out)
    else:
        if options.all:
            chosen = [claim for claim in all_claims().values() if options.scale in claim.scales]
        if options.stale:
            chosen = [claim for claim in chosen if not fresh(claim, options.scale, options.out)]
        deadline = math.inf if options.minutes is None else time.time() + 60 * options.minutes
        crashed = run(chosen, options.scale, options.seed, options.out, deadline)
    write_atomically(options.out / "README.md", index(all_claims().values(), options.out))
    if crashed:
        print(f"reproduce: {len(crashed)} crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def run(claims: Sequence[Claim], scale: ScaleName, seed: int, results: Path, deadline: float) -> list[str]:
    """Runs these claims and writes their results; returns the names of those that crashed while others were left."""
    crashed = []
    for claim in claims:
        try:
            record = measure(claim, scale, seed, results, Progress(claim.name), deadline)
            if superseded(record, claim, results):
                print(f"{claim.name}: the time was up; its complete result stays", flush=True)
                continue
            path = write(record, results)
            draw(claim, results)
        except Exception as error:
            if len(claims) == 1 and isinstance(error, EmulonError):
                raise
            traceback.print_exc()
            crashed.append(claim.name)
            continue
        verdict = record.verdict(claim)
        print(f"{claim.name}: {verdict.state} ({verdict.reason})", flush=True)
        print(f"    theirs  {claim.theirs}\n    ours    {verdict.ours}\n    {record.seconds:.1f} s, {path}", flush=True)
        for what, theirs, ours in setup_rows(claim):
            print(f"    {what}: {theirs} | {ours}")
    return crashed


def draw(claim: Claim, results: Path) -> None:
    """The figure of every result of this claim, from its numbers."""
    for record in records(claim, results):
        if record.tested:
            path = path_of(claim.name, record.scale, results, ".svg")
            write_atomically(path, chart(claim.figure(record.numbers)))


def listed(claims: Collection[Claim], results: Path) -> Iterator[str]:
    """One line for each claim: its cost at each scale, its state and our result."""
    rows = [("claim", "source", *SCALES, "state", "ours")]
    for claim in claims:
        costs = [f"≈{cost.minutes:g} min" if (cost := claim.scales.get(scale)) else "–" for scale in SCALES]
        known = records(claim, results)
        verdict = known[-1].verdict(claim) if known else None
        state, ours = ("not run", "") if verdict is None else (verdict.state, verdict.ours)
        rows.append((claim.name, claim.source, *costs, state, ours))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    yield f"{len(claims)} claims; state from {results}/"


if __name__ == "__main__":
    sys.exit(run_script("reproduce", main, sys.argv[1:]))
