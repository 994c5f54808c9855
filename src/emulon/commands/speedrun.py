"""`emulon speedrun`: in-context linear regression from nothing to a fixed error, against the clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from emulon.commands.options import CommandOptions, Count, Size, shown

EXAMPLES = """examples:
  emulon speedrun                              12 layers of 256, eight seeds (minutes on a GPU)
  emulon speedrun --track open                 the looped transformer
  emulon speedrun --track adam                 the standard model by Adam, at five rates"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Train the standard model of in-context linear regression to 0.02 after d and 0.0006 after 2d examples, and print
    the seconds it took."""

    track: Literal["standard", "open", "adam"] = "standard"
    """standard: 12 layers of width 256; open: any transformer of the library (looped); adam: standard's baseline"""
    seeds: Count = 8
    """how many, from 0 on; a record takes eight"""
    steps: Size = 0
    """of training, where they are not the track's own (0)"""
    out: Annotated[Path, shown("DIR")] = Path("results")
    """the record is written to DIR/bench/speedrun.json"""


def main(options: Options) -> int:
    from emulon.experiments.speedrun import adam_sweep, keep, lines, speedrun
    from emulon.files import make_folder
    from emulon.progress import progress_bar

    make_folder(options.out / "bench")
    with progress_bar() as report_progress:
        told: dict[str, Any] = {"steps": options.steps, "report_progress": report_progress}
        if options.track == "adam":
            record = adam_sweep(options.out, **told)
        else:
            record = speedrun(options.track, options.out, seeds=range(options.seeds), **told)
    print("\n".join([*lines(record), str(keep(options.track, record, options.out))]))
    return 0
