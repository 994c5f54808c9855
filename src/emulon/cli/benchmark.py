"""`emulon benchmark`: methods of interpretability on models whose mechanism is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional

from emulon.cli.names import require_known
from emulon.cli.options import CommandOptions, Count, Seed, shown

if TYPE_CHECKING:
    from emulon.planted.benchmark import Cell

EXAMPLES = """examples:
  emulon benchmark --specimens 50 --report page                every method, plain and in every disguise: minutes
  emulon benchmark linear-probe random --specimens 10
  emulon benchmark mine.py:method random --disguise plain turned
  emulon benchmark activation-patching --json numbers.json

A specimen is a GPT-2 with a planted learning algorithm. A method is one function from a subject (the model, prompts,
quantities that the algorithm works out on them) to answers, without the truth; yours is file.py:function. Ours:
  linear-probe mlp-probe control-probe coordinate-probe             where a quantity stands, what stands at a place
  activation-patching attribution-patching readout-attribution      which heads and MLPs matter
  identify                                                          which algorithm, its parameter with an interval
  random                                                            what chance gives

where     streams and tokens between the best place and the nearest true one (less is better; all others: more)
found     share of quantities whose best place is true
what      share of places whose quantity is chosen from four
circuit   area under the ROC curve over heads and MLPs
which     share of algorithms named; refused: of those that are no candidate, the share that is said to be none
allowed   share of right algorithms not ruled out; power: of wrong ones, the share that is
coverage  share of parameters inside their 95 % interval

Numbers are means over specimens ± half a 95 % bootstrap interval; ↑ ↓: significantly other than in the plain."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Judge methods of interpretability on models whose mechanism is known."""

    methods: Positional[Annotated[tuple[str, ...], shown("[METHOD ...]")]] = ()
    """names, or file.py:function; default: all of ours"""
    specimens: Count = 10
    """how many are drawn; 50 for a table worth keeping"""
    disguise: Annotated[tuple[str, ...], shown("[DISGUISE ...]")] = ()
    """plain, distractors, "idle blocks", "idle weights", permuted, rescaled, turned, noisy, "all at once";
    default: all of them"""
    seed: Seed = 0
    """of the first specimen; the others have those that follow"""
    processes: Count = 2
    """specimens worked on side by side"""
    json: Annotated[Path | None, shown("FILE")] = None
    """write every number there"""
    report: Annotated[Path | None, shown("DIR")] = None
    """write a page there"""


def main(options: Options) -> int:
    for name in options.methods:
        if ":" not in name:
            require_known("method", name, "planted/benchmark")
    import time

    import torch

    from emulon.core.files import make_folder, write_json
    from emulon.core.progress import progress_bar
    from emulon.planted.benchmark import METHODS, specimens_scored, summary
    from emulon.planted.benchmark.study import DRESSES
    from emulon.report import benchmark as report
    from emulon.report.terminal import console

    torch.set_num_threads(1)  # small tensors: processes are what helps
    if options.report is not None:
        make_folder(options.report)
    methods, dresses = options.methods or tuple(METHODS), options.disguise or DRESSES
    seeds, began = range(options.seed, options.seed + options.specimens), time.perf_counter()
    with progress_bar() as progress:
        rows = specimens_scored(
            methods, seeds, dresses, processes=min(options.processes, len(seeds)), progress=progress
        )
    cells, seconds = summary(rows), time.perf_counter() - began
    record = report.record(rows, cells, seeds, seconds)
    if options.json is not None:
        write_json(options.json, record)
    if options.report is not None:
        print(report.write(record, options.report))
    console(width=170).print(_table(cells, dresses))
    for line in report.coverage_told(record):
        print(line)
    print(f"{len(seeds)} specimens, {len(dresses)} dresses, {len(methods)} methods: {seconds:.0f} s")
    return 0


def _table(cells: Sequence[Cell], dresses: Sequence[str]) -> object:
    from emulon.report.benchmark import table_rows
    from emulon.report.terminal import table

    return table(("method", "measure", *dresses), table_rows(cells, dresses), words=("method", "measure"), tight=True)
