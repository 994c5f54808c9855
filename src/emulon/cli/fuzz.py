"""`emulon fuzz`: random cases of everything that promises something, against the exact answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from emulon.cli.names import require_known
from emulon.cli.options import CommandOptions, Count, Positive, Seed, shown

if TYPE_CHECKING:
    from emulon.fuzz import Counts

EXAMPLES = """examples:
  emulon fuzz --minutes 10
  emulon fuzz --only audit --cases 10000       one kind of case, a number of them
A case keeps its promise, is refused in one line, is open where the exact path runs through a jump, or fails. What
fails is made small and written as a test. Exit code 0: nothing failed. 1: something did. 130: stopped, after the counts
so far."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Try random cases, with Arb as the judge of the exact answer."""

    minutes: Positive = 10.0
    """how long"""
    cases: Annotated[Count | None, shown("COUNT")] = None
    """at most so many"""
    seed: Seed = 0
    """decides every case"""
    only: Annotated[tuple[str, ...], shown("[KIND ...]")] = ()
    """these kinds of cases; default: all"""
    out: Annotated[Path, shown("DIR")] = Path("fuzz-failures")
    """where failing cases go, made when there is one; default ./fuzz-failures"""


def main(options: Options) -> int:
    for name in options.only:
        require_known("kind of case", name, "fuzz")
    import torch

    from emulon.core.progress import progress_bar
    from emulon.fuzz import Campaign, Counts, for_minutes

    torch.set_num_threads(1)  # thousands of tiny tensors: threads would only wait for each other
    counts, stopped = Counts(), False
    campaign = Campaign(options.seed, options.only, options.out)
    with progress_bar() as report:
        try:
            campaign.run(for_minutes(options.minutes, options.cases), counts, report)
        except KeyboardInterrupt:
            stopped = True
    show(counts, options.seed)
    return 1 if counts.failed else 130 if stopped else 0


def show(counts: Counts, seed: int) -> None:
    from emulon.fuzz import rows_of
    from emulon.report.terminal import console, table

    columns = ("kind", "cases", "kept", "refused", "open", "violations", "tracebacks", "ms each")
    console().print(table(columns, rows_of(counts), words=("kind",), title=f"seed {seed}"))
    for failure in counts.failures:
        print(f"case {failure.number}, {failure.kind}: {failure.outcome.verdict}: {failure.outcome.said}")
        print(f"    written to {failure.file}")
    print(f"{counts.cases} cases: {counts.of('violation')} violations, {counts.of('traceback')} tracebacks")
