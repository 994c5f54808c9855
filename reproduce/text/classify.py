"""`python -m reproduce.text.classify RUN TEXT`: its class, by a learner that was trained on classification."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from reproduce.arguments import Arguments, run_script
from reproduce.text.language import classified, open_run
from reproduce.text.tasks import Classification


def arguments() -> Arguments:
    parser = Arguments("reproduce.text.classify", "The class of TEXT, and the probability of each.")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run on classification")
    parser.add_argument("text", metavar="TEXT", help="in the language that the run reads")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    learner, task = open_run(options.run, Classification)
    assert isinstance(task, Classification)
    chances = classified(learner, task, options.text)
    print(next(iter(chances)))
    for name, chance in chances.items():
        print(f"  {name:<16} {chance:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_script("reproduce.text.classify", main, sys.argv[1:]))
