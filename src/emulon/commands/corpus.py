"""`emulon corpus`: texts as one file of words, which runs on text read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.commands.options import CommandOptions, Count, shown

EXAMPLES = """examples:
  emulon corpus multi30k --folder multi30k --out corpora/multi30k.safetensors
  emulon corpus ag_news --out corpora/ag_news.safetensors      downloaded by Hugging Face's datasets
  emulon train algoformer --task translation:data=corpora/multi30k.safetensors,longest=48 --layers 1 --loops 10"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Cut texts into words (byte-level BPE, trained on the training split) and write them as one file, which training
    reads with torch alone."""

    name: Positional[Annotated[str, arg(metavar="NAME")]]
    """multi30k, iwslt (translation); ag_news, imdb, dbpedia, yelp, yahoo (classification)"""
    out: Annotated[Path, arg(metavar="FILE")]
    """the corpus"""
    folder: Annotated[Path | None, shown("DIR")] = None
    """where the texts are: train.de, train.en, …; train.csv, test.csv, classes.txt; or IMDB's archives (default: NAME
    in the folder that EMULON_DATA names, or else what datasets downloads)"""
    vocabulary: Count = 8000
    """words, at most"""


def main(options: Options) -> int:
    from emulon.experiments.texts import named_corpus, source_named
    from emulon.files import make_folder

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
