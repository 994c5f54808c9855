"""`emulon benchmark`: methods of interpretability on models whose mechanism is known."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional

from emulon.cli.options import BadUsage, CommandOptions, Count, Seed, shown
from emulon.core.files import read_json
from emulon.planted.benchmark import ALL, METHODS, PLAIN, method_named, score_models, summary
from emulon.planted.benchmark.split import BadEntry, Split, answered, read_entry, read_truth, scored, seal
from emulon.planted.benchmark.study import VARIANTS
from emulon.report import benchmark as report
from emulon.report.terminal import progress, say, table

EXAMPLES = """examples:
  emulon benchmark --models 50 --report page                every method, plain and under every obfuscation: minutes
  emulon benchmark linear-probe random --models 10
  emulon benchmark mine.py:method random --obfuscate plain rotated
  emulon benchmark activation-patching --json numbers.json
  emulon benchmark mine.py:method --split sealed --folder split --json entry.json
  emulon benchmark --verify entry.json --truth split-truth.json

A planted model is a transformer with a known learning algorithm. A method is a function from a subject (the model,
prompts, quantities that the algorithm computes on them) to answers, without the truth; yours is file.py:function.
Built in:
  linear-probe mlp-probe control-probe                              where a quantity is, which quantity is at a place
  coordinate-probe sae logit-lens tuned-lens das                    the same
  activation-patching attribution-patching readout-attribution      which heads and MLPs matter
  eap eap-ig gim acdc                                               the same, along edges or by pruning
  identify                                                          which algorithm, its parameter with an interval
  random                                                            chance level

where     streams and tokens between the best place and the nearest true one (less is better; all others: more)
found     share of quantities whose best place is true
what      share of places whose quantity is chosen from four
circuit   area under the ROC curve over heads and MLPs
which     share of algorithms named; refused: of those that are no candidate, the share recognised as none
allowed   share of right algorithms not ruled out; power: of wrong ones, the share that is
coverage  share of parameters inside their 95 % interval

Numbers are means over models ± half a 95 % bootstrap interval; ↑ ↓: significant change under obfuscation."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Score interpretability methods on models whose mechanism is known."""

    methods: Positional[Annotated[tuple[str, ...], shown("[METHOD ...]")]] = ()
    """names, or file.py:function; default: all built-in methods"""
    models: Count = 10
    """number of planted models; 50 for narrow intervals"""
    obfuscate: Annotated[tuple[str, ...], shown("[OBFUSCATION ...]")] = ()
    """plain, distractors, "dead blocks", "dead components", permuted, rescaled, rotated, noisy, "all at once";
    default: all of them"""
    architecture: Literal["gpt2", "llama", "gpt_neox"] = "gpt2"
    """class of the planted models"""
    seed: Seed = 0
    """seed of the first planted model; the others follow"""
    processes: Count = 2
    """planted models in parallel"""
    report: Annotated[Path | None, shown("DIR")] = None
    """write a page there"""
    split: Literal["public", "sealed"] | None = None
    """write one method's answers to these models, or to a sealed split, as an entry of the leaderboard (--json FILE)"""
    folder: Annotated[Path | None, shown("DIR")] = None
    """the sealed split"""
    verify: Annotated[Path | None, shown("FILE")] = None
    """check an entry, or a record of this command: its digest, and its scores once more from its answers"""
    truth: Annotated[Path | None, shown("FILE")] = None
    """for --verify: the revealed truth of a sealed split"""
    seal: Annotated[Path | None, shown("DIR")] = None
    """make a sealed split there, and its truth beside it in DIR-truth.json, to be kept back"""


def main(options: Options) -> int:
    if options.verify is not None:
        return _verify(options, options.verify)
    if options.seal is not None:
        with progress() as report_progress:
            path = seal(options.seal, options.models, architecture=options.architecture, progress=report_progress)
        say(f"{options.models} models in {options.seal}; keep {path} back until answers are in")
        return 0
    if options.split is not None:
        return _enter(options)
    for name in options.methods:
        if ":" not in name:
            method_named(name)  # an unknown one is refused before the work
    torch.set_num_threads(1)  # small tensors: processes are what helps
    options.require_writable(options.report)
    methods, variants = options.methods or tuple(METHODS), options.obfuscate or VARIANTS
    seeds, began = range(options.seed, options.seed + options.models), time.perf_counter()
    processes = min(options.processes, len(seeds))
    with progress() as report_progress:
        rows = score_models(
            methods, seeds, variants, architecture=options.architecture, processes=processes, progress=report_progress
        )
    cells, seconds = summary(rows), time.perf_counter() - began
    record = report.record(rows, cells, seeds, seconds, options.architecture)
    if options.report is not None:
        say(report.write(record, options.report))
    columns = ("method", "measure", *variants)
    say(table(columns, report.table_rows(cells, variants, record["missing"]), words=columns[:2], tight=True), width=170)
    say(*report.coverage_told(record))
    say(f"{len(seeds)} models, {len(variants)} variants, {len(methods)} methods: {seconds:.0f} s")
    return options.finish(record)


def _enter(options: Options) -> int:
    """Write one method's answers to a split."""
    if len(options.methods) != 1 or options.json is None or (options.split == "sealed") != (options.folder is not None):
        raise BadUsage("--split takes one method and --json FILE, and with sealed --folder DIR")
    torch.set_num_threads(1)
    options.require_writable()
    variants = options.obfuscate or (PLAIN, ALL)
    public = Split("public", options.architecture, options.models, options.seed, variants, None)
    with progress() as report_progress:
        entry = answered(options.methods[0], options.folder or public, report_progress)
    say(f"{entry.method}: answers about {len(entry.answers)} models, digest {entry.digest[:12]}…")
    return options.finish(asdict(entry))


def _verify(options: Options, path: Path) -> int:
    """Check a file, and print what it scores."""
    try:
        told = read_json(path)
    except ValueError as error:
        raise BadEntry(f"{path} cannot be read: {error}") from None
    if isinstance(told, dict) and "answers" not in told:
        report.check(told)
        say(f"{path}: the means are those of its scores")
        return options.finish(told)
    entry = read_entry(path)
    entry = scored(entry, None if options.truth is None else read_truth(options.truth))
    cells = [report.cell_of({"method": entry.method, **cell}) for cell in entry.cells]
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    say(
        table(
            ("method", "measure", *variants),
            report.table_rows(cells, variants),
            words=("method", "measure"),
            tight=True,
        )
    )
    say(f"{path}: digest and scores are those of its answers")
    return options.finish(asdict(entry))
