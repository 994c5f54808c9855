"""`emulon speedrun`: in-context linear regression from nothing to a fixed error, against the clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from emulon.commands.options import CommandOptions, Count, Size, shown

EXAMPLES = """examples:
  emulon speedrun                              12 layers of 256, three seeds, and Adam beside them (minutes on a GPU)
  emulon speedrun --track open --no-compare    the looped transformer, without Adam"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Train the standard model of in-context linear regression to 0.02 after d and 0.0006 after 2d examples, and print
    the seconds it took."""

    track: Literal["standard", "open"] = "standard"
    """standard: 12 layers of width 256; open: any transformer of the library (looped)"""
    seeds: Count = 3
    """how many, from 0 on; a record takes three"""
    steps: Size = 0
    """of training, where they are not the track's own (0)"""
    compare: bool = True
    """also train with Adam at 1e-4, for the ratio of times to equal error"""
    out: Annotated[Path, shown("DIR")] = Path("results")
    """the record is written to DIR/bench/speedrun.json"""


def main(options: Options) -> int:
    from emulon.experiments.speedrun import keep, lines, speedrun
    from emulon.files import make_folder
    from emulon.progress import progress_bar

    make_folder(options.out / "bench")
    with progress_bar() as report_progress:
        record = speedrun(
            options.track,
            seeds=range(options.seeds),
            compare=options.compare,
            steps=options.steps,
            report_progress=report_progress,
        )
    print("\n".join(lines(record)))
    print(f"{'reached' if record['reached'] else 'not reached'}; {keep(record, options.out)}")
    return 0
