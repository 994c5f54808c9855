"""`emulon plant`: a transformer with a planted learning algorithm, as a folder with the truth beside the weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from tyro.conf import Positional, arg

from emulon import planted
from emulon.cli.options import BadUsage, CommandOptions, NotNegative, Seed, shown
from emulon.report.terminal import say

EXAMPLES = """examples:
  emulon plant sgd:features=3,step_size=0.2 --out planted-sgd
  emulon plant switch:first=ridge,second=last-value --obfuscate all --out planted-sgd
  emulon plant --seed 7 --obfuscate rotated permuted --strength 0.5 --out planted-sgd
  emulon plant sgd --architecture llama --out planted-llama
  emulon plant sgd --tokens --out planted-words   numbers as words in, a word out
  emulon plant --chain faithful --seed 3 --out thinking   steps before the answer, read back or not
  emulon identify planted-sgd                  which algorithm is it?

Mechanisms, with their parameters beside features and samples (the last sample is only a query):
  sgd                step_size, ridge          moving-average     decay
  batch-descent      step_size, steps, ridge   last-value
  momentum           step_size, decay          nearest-average    sharp
  clipped-sgd        step_size, limit          mixture            first, second, share
  ridge              ridge                     switch             first, second, sharp
  least-squares      ridge
Obfuscations, other weights for the same function; all: every one of them
  distractors        circuits that compute something unused
  dead-blocks        blocks that write to unread directions
  dead-components    random weights for unused heads and neurons, which write to unread directions
  permuted           heads and neurons in another order
  rescaled           queries against keys, values against outputs, by powers of two
  rotated            the stream in another basis
  noisy              every weight perturbed

The folder: model.safetensors and config.json (a GPT2LMHeadModel or LlamaForCausalLM whose first logit is the answer),
truth.json (directions of every register, heads and neurons of every instruction, causal graph, unused parts,
certificate), and README.md, a model card."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
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


def main(options: Options) -> int:
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
    bound = model.certificate.bound if math.isfinite(model.certificate.bound) else None
    record = {"model": model.name, "folder": str(folder), "bound": bound, "obfuscations": model.build.obfuscations}
    return options.finish(record)


def in_words(model: planted.TokenModel, options: Options) -> int:
    """Write a model of words and say how to ask it."""
    folder = model.save_pretrained(options.out)
    xs, ys = model.draw(1)
    say(f"""{model.name}
|ŷ − exact answer| {model.planted.error_bound}, before ŷ is rounded to a word

pipeline("text-generation", model="{folder}", dtype="float32")("{model.words.text(xs[0], ys[0])}")
emulon.planted.TokenModel.from_pretrained("{folder}")   the same, with the truth and the exact algorithm""")
    bound = model.certificate.bound if math.isfinite(model.certificate.bound) else None
    return options.finish({"model": model.name, "folder": str(folder), "bound": bound})


def thinking(model: planted.ChainModel, options: Options) -> int:
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
