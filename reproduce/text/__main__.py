"""`python -m reproduce.text`: makes a corpus of words from texts, and queries learners that were trained on one."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from emulon.core.errors import EmulonError, unknown
from emulon.core.files import make_folder
from reproduce.arguments import Arguments, run_script, whole
from reproduce.text.language import classified, open_run, translated
from reproduce.text.tasks import Classification, Translation
from reproduce.text.texts import SOURCES, named_corpus, source_named

EXAMPLES = """examples, in the root of the repository:
  python -m reproduce.text corpus multi30k --folder multi30k --out corpora/multi30k.safetensors
  python -m reproduce.text corpus ag_news --out corpora/ag_news.safetensors      downloaded by Hugging Face's datasets
  python -m reproduce.text.train algoformer --task translation:data=corpora/multi30k.safetensors,longest=48
  python -m reproduce.text translate runs/de-en "Ein Hund schläft." --beams 4
  python -m reproduce.text classify runs/topics "The snow comes again." """


def corpus(options: Namespace) -> None:
    """Cut texts into words (byte-level BPE) and write one file."""
    source_named(options.name)
    make_folder(options.out.parent)  # now, not after the work
    made = named_corpus(options.name, options.vocabulary, options.folder)
    made.save(options.out)
    counts = ", ".join(f"{len(split)} to {name}" for name, split in made.splits.items())
    print(f"{options.out}: {made.kind}, {counts} on, {len(made.tokeniser)} words")
    for name, split in made.splits.items():
        lengths = split.texts.lengths.double()
        print(f"  {name}: {lengths.mean():.1f} words a text, 95 of 100 below {lengths.quantile(0.95):.0f}")


def translate(options: Namespace) -> None:
    """Translate each TEXT, a line for each, by a learner that was trained on translation."""
    learner, task = open_run(options.run, Translation)
    print("\n".join(translated(learner, task, options.texts, options.beams)))


def classify(options: Namespace) -> None:
    """The class of TEXT, and the probability of each, by a learner that was trained on classification."""
    learner, task = open_run(options.run, Classification)
    chances = classified(learner, task, options.texts[0])
    print(next(iter(chances)))
    for name, chance in chances.items():
        print(f"  {name:<16} {chance:.3f}")


COMMANDS = {work.__name__: work for work in (corpus, translate, classify)}


def read(words: Sequence[str]) -> Namespace:
    """The options of the command that the first word names.

    Raises:
        EmulonError: There is no such command, or the other words cannot be read.
    """
    name, *rest = words
    if name not in COMMANDS:
        raise EmulonError(unknown("command", name, COMMANDS))
    parser = Arguments(f"reproduce.text {name}", COMMANDS[name].__doc__ or "", EXAMPLES)
    if name == "corpus":
        parser.add_argument("name", metavar="NAME", help=", ".join(SOURCES))
        parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the corpus")
        where = "of the texts; default: NAME in the folder that EMULON_DATA names, or what datasets downloads"
        parser.add_argument("--folder", type=Path, metavar="DIR", help=where)
        parser.add_argument("--vocabulary", type=whole(1), default=8000, metavar="COUNT", help="words, at most")
    else:
        parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
        count = "+" if name == "translate" else 1
        parser.add_argument("texts", nargs=count, metavar="TEXT", help="in the language that the run reads")
    if name == "translate":
        parser.add_argument("--beams", type=whole(1), default=1, help="hypotheses kept at a time (default: 1)")
    return parser.read(rest)


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(f"{name:<10} {work.__doc__}" for name, work in COMMANDS.items()), "", EXAMPLES, sep="\n")
        return 0
    options = read(words)
    COMMANDS[words[0]](options)
    return 0


if __name__ == "__main__":
    sys.exit(run_script("reproduce.text", main, sys.argv[1:]))
