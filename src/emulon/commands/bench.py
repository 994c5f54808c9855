"""`emulon bench`: how long things take here, as ratios within one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from emulon.commands.options import CommandOptions, shown

if TYPE_CHECKING:
    from emulon.experiments.bench import Timing

EXAMPLES = """example:
  emulon bench runs                            whole runs, data to weights, beside the exact algorithms
  emulon bench rows --json rows.json           time and memory up to a million rows, with a figure beside the file"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Measure how long things take here, as ratios within one run."""

    names: Positional[Annotated[tuple[str, ...], shown("[BENCHMARK ...]")]] = ()
    """interpreter, runs, machine, identify, rows (minutes; default: the others)"""
    json: Annotated[Path | None, shown("FILE")] = None
    """also write the numbers there, and how they grow with the rows beside them, as an SVG"""


def main(options: Options) -> int:
    from emulon.experiments.bench import bench, slopes, write
    from emulon.files import write_atomically
    from emulon.progress import progress_bar
    from emulon.report.terminal import console, table

    with progress_bar() as report_progress:
        timings = bench(options.names, report_progress)
    import torch

    grown = slopes(timings)
    if options.json is not None:
        write(timings, options.json)
        if grown:
            write_atomically(options.json.with_suffix(".svg"), _drawn(timings))
    columns = ("what", "ms", "least–most", "ratio", *(["GB"] if grown else []))
    rows = [
        (
            one.what,
            _shown(1e3 * one.seconds),
            f"{_shown(1e3 * one.least)}–{_shown(1e3 * one.most)}",
            _shown(one.ratio),
            *([_shown(one.gigabytes)] if grown else []),
        )
        for one in timings
    ]
    title = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    console().print(table(columns, rows, title=title, words=columns[:1]))
    for name, value in grown.items():
        console().print(f"{name} grow like rows^{value:.2f} from 10,000 rows on")
    return 0


def _shown(number: float) -> str:
    """A dash where a busy machine left nothing to be seen."""
    return f"{number:.3g}" if number == number else "–"


def _drawn(timings: Sequence[Timing]) -> str:
    from emulon.report.chart import chart
    from emulon.report.figure import Figure, Panel, Series

    sizes = [one for one in timings if one.rows]
    counts = [one.rows for one in sizes]
    time = Series("200 steps of ridge", counts, [one.seconds for one in sizes])
    memory = Series("above what importing takes", counts, [one.gigabytes for one in sizes])
    parts = (("seconds", time), ("GB", memory))
    return chart(Figure([Panel("rows × 10", what, [one], log_x=True, log_y=True) for what, one in parts]))
