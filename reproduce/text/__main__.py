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


def corpus_arguments() -> Arguments:
    parser = Arguments("reproduce.text corpus", corpus.__doc__ or "", EXAMPLES)
    parser.add_argument("name", metavar="NAME", help=", ".join(SOURCES))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the corpus")
    where = "of the texts; default: NAME in the folder that EMULON_DATA names, or what datasets downloads"
    parser.add_argument("--folder", type=Path, metavar="DIR", help=where)
    parser.add_argument("--vocabulary", type=whole(1), default=8000, metavar="COUNT", help="words, at most")
    return parser


def corpus(options: Namespace) -> int:
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
    return 0


def translate_arguments() -> Arguments:
    parser = Arguments("reproduce.text translate", translate.__doc__ or "")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run on translation")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="in the language that the run reads")
    parser.add_argument("--beams", type=whole(1), default=1, help="hypotheses that are kept at a time (default: 1)")
    return parser


def translate(options: Namespace) -> int:
    """Translate each TEXT, a line for each, by a learner that was trained on translation."""
    learner, task = open_run(options.run, Translation)
    assert isinstance(task, Translation)
    print("\n".join(translated(learner, task, options.texts, options.beams)))
    return 0


def classify_arguments() -> Arguments:
    parser = Arguments("reproduce.text classify", classify.__doc__ or "")
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run on classification")
    parser.add_argument("text", metavar="TEXT", help="in the language that the run reads")
    return parser


def classify(options: Namespace) -> int:
    """The class of TEXT, and the probability of each, by a learner that was trained on classification."""
    learner, task = open_run(options.run, Classification)
    assert isinstance(task, Classification)
    chances = classified(learner, task, options.text)
    print(next(iter(chances)))
    for name, chance in chances.items():
        print(f"  {name:<16} {chance:.3f}")
    return 0


COMMANDS = {
    "corpus": (corpus_arguments, corpus),
    "translate": (translate_arguments, translate),
    "classify": (classify_arguments, classify),
}


def read(words: Sequence[str]) -> Namespace:
    """The options of the command that the first word names.

    Raises:
        EmulonError: There is no such command, or the other words cannot be read.
    """
    if words[0] not in COMMANDS:
        raise EmulonError(unknown("command", words[0], COMMANDS))
    return COMMANDS[words[0]][0]().read(words[1:])


def main(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(f"{name:<10} {work.__doc__}" for name, (_, work) in COMMANDS.items()), "", EXAMPLES, sep="\n")
        return 0
    options = read(words)
    return COMMANDS[words[0]][1](options)


if __name__ == "__main__":
    sys.exit(run_script("reproduce.text", main, sys.argv[1:]))
