"""`emulon classify`: asks a run that was trained to classify texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.commands.options import CommandOptions

EXAMPLES = """example:
  emulon classify runs/algoformer "The central bank raised its rate for the third time this year." """


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The class of TEXT by a learner that was trained on classification, and the probability of each."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """the folder of a run on classification"""
    text: Positional[Annotated[str, arg(metavar="TEXT")]]
    """in the language that the run reads"""


def main(options: Options) -> int:
    from emulon.experiments.language import classified, open_run
    from emulon.tasks import Classification

    learner, task = open_run(options.run, Classification)
    assert isinstance(task, Classification)
    chances = classified(learner, task, options.text)
    print(next(iter(chances)))
    for name, chance in chances.items():
        print(f"  {name:<16} {chance:.3f}")
    return 0
