"""`python -m reproduce.text.translate RUN TEXT …`: translations by a learner that was trained on translation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from reproduce.arguments import Arguments, run_script, whole
from reproduce.text.language import open_run, translated
from reproduce.text.tasks import Translation


def arguments() -> Arguments:
    parser = Arguments("reproduce.text.translate", "Translate each TEXT, a line for each.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run on translation")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="in the language that the run reads")
    parser.add_argument("--beams", type=whole(1), default=1, help="hypotheses that are kept at a time (default: 1)")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    learner, task = open_run(options.run, Translation)
    assert isinstance(task, Translation)
    print("\n".join(translated(learner, task, options.texts, options.beams)))
    return 0


if __name__ == "__main__":
    sys.exit(run_script("reproduce.text.translate", main, sys.argv[1:]))
