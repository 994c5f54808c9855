"""`emulon plant` and `emulon benchmark`: planted models, and methods of interpretability scored on them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from tyro.conf import Positional, arg

from emulon import planted
from emulon.cli.options import BadUsage, Command, CommandOptions, Count, NotNegative, Seed, shown
from emulon.core.files import read_json
from emulon.planted.benchmark import ALL, METHODS, PLAIN, Cell, score_models, summary
from emulon.planted.benchmark.split import BadEntry, Split, answered, read_entry, read_truth, scored, seal
from emulon.planted.benchmark.study import VARIANTS
from emulon.report import benchmark as report
from emulon.report.terminal import progress, say, table

PLANT_EXAMPLES = """examples:
  emulon plant sgd:features=3,step_size=0.2 --out planted-sgd
  emulon plant switch:first=ridge,second=last-value --obfuscate all --out planted-sgd
  emulon plant --seed 7 --obfuscate rotated permuted --strength 0.5 --out planted-sgd
  emulon plant sgd --architecture llama --out planted-llama
  emulon plant sgd --tokens --out planted-words   numbers as words in, a word out
  emulon plant choice:first=sgd,second=last-value --tokens --out two-in-words   a word says which algorithm answers
  emulon plant --chain faithful --seed 3 --out thinking   steps before the answer, read back or not
  emulon identify planted-sgd                  which algorithm is it?

Mechanisms, with their parameters beside features and samples (the last sample is only a query):
  sgd                step_size, ridge          moving-average     decay
  batch-descent      step_size, steps, ridge   last-value
  momentum           step_size, decay          nearest-average    sharp
  clipped-sgd        step_size, limit          mixture            first, second, share
  ridge              ridge                     switch             first, second, sharp
  least-squares      ridge                     choice             first, second: the first feature says which;
                                                                  with --tokens a word does, "x1 sgd +0.25 y1 …"
Obfuscations, other weights for the same function; all: every one of them but decoy
  distractors        circuits that compute something unused
  dead-blocks        blocks that write to unread directions
  dead-components    random weights for unused heads and neurons, which write to unread directions
  permuted           heads and neurons in another order
  rescaled           queries against keys, values against outputs, by powers of two
  rotated            the stream in another basis
  noisy              every weight perturbed
  decoy              the same mechanism once more, with other parameters, for nothing

The folder: model.safetensors and config.json (a GPT2LMHeadModel or LlamaForCausalLM whose first logit is the answer),
truth.json (directions of every register, heads and neurons of every instruction, causal graph, unused parts,
certificate), and README.md, a model card."""


@dataclass(frozen=True, kw_only=True)
class PlantOptions(CommandOptions):
    """Write a transformer with a planted learning algorithm and its ground truth."""

    mechanism: Positional[Annotated[str | None, shown("[NAME]")]] = None
    """which algorithm, as sgd or sgd:features=3,samples=6,step_size=0.2; without, --seed draws one"""
    seed: Annotated[Seed | None, shown("SEED")] = None
    """draws the mechanism where none is named, and the obfuscations; 0 for that by default"""
    obfuscate: Annotated[tuple[str, ...], shown("[OBFUSCATION ...]")] = ()
    """obfuscations from the list below, or all"""
    strength: Annotated[NotNegative, shown("NUMBER")] = 1.0
    """strength of the obfuscations, 0 … 1"""
    architecture: Literal["gpt2", "llama", "gpt_neox"] = "gpt2"
    """class of the transformer; a llama is float32"""
    dtype: Literal["float64", "float32"] | None = None
    """of the weights; bounds are wider in float32 (default: float32 for llama, float64 for others)"""
    tokens: bool = False
    """a LlamaForCausalLM that reads numbers as words and writes its answer as one"""
    chain: Literal["faithful", "decorative", "mixed", "unfaithful"] | None = None
    """draw a chain of thought of this kind, without NAME: a LlamaForCausalLM that writes steps before its answer"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the files"""


def plant_main(options: PlantOptions) -> int:
    seed = options.seed or 0
    if options.chain is not None:
        if options.mechanism is not None or options.obfuscate or options.tokens:
            raise BadUsage("--chain draws all of a chain of thought; it goes with --seed and --out alone")
        return thinking(planted.ChainModel(planted.draw_chain(options.chain, seed)), options)
    if options.mechanism is not None:
        mechanism = planted.read_mechanism(options.mechanism)
    elif options.seed is not None:
        mechanism = planted.drawn_mechanism(seed)
    else:
        raise BadUsage("NAME or --seed is missing")
    dtype = None if options.dtype is None else getattr(torch, options.dtype)
    architecture = "llama" if options.tokens else options.architecture
    model = planted.plant(mechanism, dtype, architecture=architecture)
    if options.obfuscate:
        chosen = {name.replace("-", " ") for name in options.obfuscate}
        only = planted.OBFUSCATIONS if chosen == {"all"} else tuple(sorted(chosen))
        model = planted.obfuscate(model, seed, options.strength, only=only)
    if options.tokens:
        return in_words(planted.tokenized(model), options)
    folder = planted.save(model, options.out)
    say(described(model, folder))
    return options.finish({**facts(model, folder), "obfuscations": model.build.obfuscations})


def facts(model: planted.PlantedModel | planted.TokenModel, folder: Path) -> dict[str, Any]:
    """For --json."""
    bound = model.certificate.bound
    return {"model": model.name, "folder": str(folder), "bound": bound if math.isfinite(bound) else None}


def in_words(model: planted.TokenModel, options: PlantOptions) -> int:
    """Write a model of words and say how to ask it."""
    folder = model.save_pretrained(options.out)
    xs, ys = model.draw(1)
    say(f"""{model.name}
|ŷ − exact answer| {model.planted.error_bound}, before ŷ is rounded to a word

pipeline("text-generation", model="{folder}", dtype="float32")("{model.words.text(xs[0], ys[0])}")
emulon.planted.TokenModel.from_pretrained("{folder}")   the same, with the truth and the exact algorithm""")
    return options.finish(facts(model, folder))


def thinking(model: planted.ChainModel, options: PlantOptions) -> int:
    """Write a chain of thought and show what it writes."""
    folder, prompt = model.save_pretrained(options.out), model.chain.draw(0)
    say(f"""{model!r}
{prompt}
→ {model.chain.follow(prompt)}

pipeline("text-generation", model="{folder}", dtype="float32")
emulon.planted.ChainModel.from_pretrained("{folder}")   the same, with the truth
{folder}/truth.json: how each written number is used""")
    return options.finish({"model": repr(model), "folder": str(folder), "kind": model.chain.kind})


def described(model: planted.PlantedModel, folder: Path) -> str:
    """What it is, its error bound, and how to open it."""
    truth = model.truth
    heads, neurons = truth.blocks * truth.heads, truth.blocks * truth.neurons
    title, dtype = model.architecture.title, str(model.dtype).removeprefix("torch.")
    return f"""{model.name}
a {title} of {truth.blocks} blocks, width {truth.width}, in {dtype}; answers depend \
on {len(truth.used_heads)} of {heads} heads and {len(truth.used_neurons)} of {neurons} neurons
|answer − exact answer| {model.error_bound}

{model.architecture.with_head}.from_pretrained("{folder}")   with inputs_embeds=model.embed(xs, ys)
emulon.planted.load("{folder}")           the same, with the truth, the exact algorithm and its data
emulon identify {folder}
{folder}/README.md, {folder}/truth.json: what is where"""


BENCHMARK_EXAMPLES = """examples:
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
class BenchmarkOptions(CommandOptions):
    """Score interpretability methods on models whose mechanism is known."""

    methods: Positional[Annotated[tuple[str, ...], shown("[METHOD ...]")]] = ()
    """names, or file.py:function; default: all built-in methods"""
    models: Count = 10
    """number of planted models; 50 for narrow intervals"""
    obfuscate: Annotated[tuple[str, ...], shown("[OBFUSCATION ...]")] = ()
    """plain, distractors, "dead blocks", "dead components", permuted, rescaled, rotated, noisy, "all at once",
    decoy; default: all of them"""
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


def benchmark_main(options: BenchmarkOptions) -> int:
    if options.verify is not None:
        return _verify(options, options.verify)
    if options.seal is not None:
        with progress() as report_progress:
            path = seal(options.seal, options.models, architecture=options.architecture, progress=report_progress)
        say(f"{options.models} models in {options.seal}; keep {path} back until answers are in")
        return 0
    if options.split is not None:
        return _enter(options)
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
    _say_table(cells, variants, record["missing"])
    say(*report.coverage_lines(record))
    say(f"{len(seeds)} models, {len(variants)} variants, {len(methods)} methods: {seconds:.0f} s")
    return options.finish(record)


def _enter(options: BenchmarkOptions) -> int:
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


def _verify(options: BenchmarkOptions, path: Path) -> int:
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
    _say_table(cells, list(dict.fromkeys(cell.variant for cell in cells)), {})
    say(f"{path}: digest and scores are those of its answers")
    return options.finish(asdict(entry))


def _say_table(cells: Sequence[Cell], variants: Sequence[str], missing: Mapping[str, str]) -> None:
    columns = ("method", "measure", *variants)
    say(table(columns, report.table_rows(cells, variants, missing), words=columns[:2], tight=True), width=170)


COMMANDS = {
    "plant": Command(PlantOptions, plant_main, PLANT_EXAMPLES),
    "benchmark": Command(BenchmarkOptions, benchmark_main, BENCHMARK_EXAMPLES),
}
