"""`emulon bench`: how long things take here, as ratios within one run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from emulon.commands.options import CommandOptions, shown

EXAMPLES = """example:
  emulon bench interpreter                     cost of a step, and how it grows with ten times the samples"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Measure how long things take here, as ratios within one run."""

    names: Positional[Annotated[tuple[str, ...], shown("[BENCHMARK ...]")]] = ()
    """interpreter, machine, identify (default: all)"""
    json: Annotated[Path | None, shown("FILE")] = None
    """also write the numbers there"""


def main(options: Options) -> int:
    from emulon.experiments.bench import bench, write
    from emulon.progress import progress_bar
    from emulon.report.terminal import console, table

    with progress_bar() as report_progress:
        timings = bench(options.names, report_progress)
    import torch

    if options.json is not None:
        write(timings, options.json)
    rows = [(one.benchmark, one.what, f"{1e3 * one.seconds:.3g}", f"{one.ratio:.3g}") for one in timings]
    title = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    columns = ("benchmark", "what", "milliseconds", "ratio")
    console().print(table(columns, rows, title=title, words=columns[:2]))
    return 0
