"""`python -m reproduce.text.corpus`: texts as one file of words, which runs on text read with torch alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from emulon.core.files import make_folder
from reproduce.arguments import Arguments, run_script, whole
from reproduce.text.texts import SOURCES, named_corpus, source_named

EXAMPLES = """examples, in the root of the repository:
  python -m reproduce.text.corpus multi30k --folder multi30k --out corpora/multi30k.safetensors
  python -m reproduce.text.corpus ag_news --out corpora/ag_news.safetensors      downloaded by Hugging Face's datasets
  python -m reproduce.text.train algoformer --task translation:data=corpora/multi30k.safetensors,longest=48"""


def arguments() -> Arguments:
    parser = Arguments("reproduce.text.corpus", "Cut texts into words (byte-level BPE) and write one file.", EXAMPLES)
    parser.add_argument("name", metavar="NAME", help=", ".join(SOURCES))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the corpus")
    where = "where the texts are; default: NAME in the folder that EMULON_DATA names, or what datasets downloads"
    parser.add_argument("--folder", type=Path, metavar="DIR", help=where)
    parser.add_argument("--vocabulary", type=whole(1), default=8000, metavar="COUNT", help="words, at most")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    source_named(options.name)
    make_folder(options.out.parent)  # now, not after the work
    corpus = named_corpus(options.name, options.vocabulary, options.folder)
    corpus.save(options.out)
    counts = ", ".join(f"{len(split)} to {name}" for name, split in corpus.splits.items())
    print(f"{options.out}: {corpus.kind}, {counts} on, {len(corpus.tokeniser)} words")
    for name, split in corpus.splits.items():
        lengths = split.texts.lengths.double()
        print(f"  {name}: {lengths.mean():.1f} words a text, 95 of 100 below {lengths.quantile(0.95):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(run_script("reproduce.text.corpus", main, sys.argv[1:]))
