"""`emulon translate`: asks a run that was trained to translate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.commands.options import CommandOptions, Count

EXAMPLES = """examples:
  emulon translate runs/algoformer "Ein Hund läuft über die Wiese."
  emulon translate runs/algoformer "Ein Hund." "Zwei Katzen schlafen." --beams 4"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Translate TEXT by a learner that was trained on translation; a line for each text."""

    run: Positional[Annotated[Path, arg(metavar="RUN")]]
    """the folder of a run on translation"""
    texts: Positional[Annotated[tuple[str, ...], arg(metavar="TEXT")]]
    """in the language that the run reads"""
    beams: Count = 1
    """hypotheses that are kept at a time; 1 takes the most probable word every time"""


def main(options: Options) -> int:
    from emulon.commands.options import BadUsage
    from emulon.experiments.language import open_run, translated
    from emulon.tasks import Translation

    if not options.texts:
        raise BadUsage("TEXT is missing: what is to be translated?")
    learner, task = open_run(options.run, Translation)
    assert isinstance(task, Translation)
    for said in translated(learner, task, options.texts, options.beams):
        print(said)
    return 0
