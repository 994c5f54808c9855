"""`emulon publish`: planted models as a collection for the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import BadUsage, CommandOptions, Count, Seed, shown
from emulon.planted.collection import push_collection, write_collection
from emulon.report.terminal import say

EXAMPLES = """examples:
  emulon publish collection --dry-run              fifty models, index.json and cards, and nothing is uploaded
  emulon publish collection --namespace me         the same, uploaded: a repository a model, a dataset with the index

Uploads need huggingface_hub (pip install 'emulon[hf]') and its login, hf auth login."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Write a collection of planted models for the Hugging Face hub, and upload it."""

    out: Positional[Annotated[Path, arg(metavar="DIR")]]
    """folder for the collection: models/NAME, index.json, README.md"""
    models: Count = 50
    """how many; every second one is obfuscated"""
    seed: Annotated[Seed, shown("SEED")] = 0
    """draws mechanisms and obfuscations"""
    namespace: Annotated[str, shown("NAME")] = ""
    """user or organisation of the hub"""
    private: bool = False
    """make the repositories private"""
    dry_run: bool = False
    """write the collection and upload nothing"""


def main(options: Options) -> int:
    if not (options.dry_run or options.namespace):
        raise BadUsage("give --namespace, the hub's user or organisation, or --dry-run")
    rows = write_collection(options.out, options.models, options.seed, options.namespace)
    proved = sum(row["proved"] for row in rows)
    say(f"{len(rows)} models in {options.out}, {proved} with a proved bound; index.json and README.md list them")
    if not options.dry_run:
        say(push_collection(options.out, options.namespace, private=options.private))
    return options.finish({"models": rows, "uploaded": not options.dry_run})
