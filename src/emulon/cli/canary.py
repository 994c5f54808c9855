"""`emulon canary`: known answers for inference engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import Positional, arg

from emulon.canary.check import Report, canary, check, compare, names_for
from emulon.canary.engines import engines_named
from emulon.canary.whole import whole
from emulon.cli.options import BadUsage, CommandOptions, shown
from emulon.core.files import make_folder
from emulon.report.terminal import progress, say

EXAMPLES = """examples:
  emulon canary write canaries                 four checkpoints, each a Hugging Face folder with its prompts
  emulon canary write canaries --gguf          and as GGUF, for llama.cpp
  emulon canary write canaries --arch qwen3 --dtype bfloat16
  emulon canary check --engine transformers    its eager and its fused attention in four number formats
  emulon canary check --engine "llama.cpp F32"   every configuration whose name begins so
  emulon canary check --logits answers         answers/digital.npy, … from an engine of your own: (prompts, vocabulary)
Exit code 0: every probe keeps the proved bits. 1: one does not, and the first wrong operation is named."""
Format = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class WriteOptions(CommandOptions):
    """Write the checkpoints, their prompts and a tokenizer."""

    out: Positional[Annotated[Path, arg(metavar="DIR")]]
    """folder for the folders"""
    arch: Literal["llama", "mistral", "qwen3", "gemma"] = "llama"
    """the stock class"""
    dtype: Annotated[Format, arg(aliases=("--arithmetic",))] = "float32"
    """how weights are stored, the same numbers in all; for float16 they are smaller"""
    gguf: bool = False
    """also as GGUF files (needs the package gguf)"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(CommandOptions):
    """Compare an engine's logits with the exact answers, operation by operation."""

    engine: Annotated[str | None, shown("NAME")] = None
    """engines whose name begins so: transformers, onnxruntime, openvino, ctranslate2, llama.cpp, …"""
    logits: Annotated[Path | None, shown("DIR")] = None
    """folder of NAME.npy for every canary: the logits after the last token of each line of its prompts.txt"""
    arch: Literal["llama", "mistral", "qwen3", "gemma"] = "llama"
    """with --logits: the stock class"""
    dtype: Annotated[Format, arg(aliases=("--arithmetic",))] = "float32"
    """with --logits: the number format to hold them to"""
    whole: bool = False
    """with --engine: engines of float32 also write gradient descent as text, which is judged word by word"""


GGUF = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
SUBCOMMANDS = {"write": WriteOptions, "check": CheckOptions}


def main(options: WriteOptions | CheckOptions) -> int:
    return _write(options) if isinstance(options, WriteOptions) else _check(options)


def _write(options: WriteOptions) -> int:
    folders = []
    if options.gguf and options.arch != "llama":
        raise BadUsage(f"GGUF files are written of Llamas, not of {options.arch}")
    for name in names_for(options.dtype, options.arch):
        folder = make_folder(options.out / name)
        canary(name).write(folder, options.dtype)
        if options.gguf:
            from emulon.machine.targets.gguf import write_gguf

            write_gguf(folder, folder / f"{name}.gguf", GGUF[options.dtype])
        folders.append(str(folder))
    say(*(f"{folder}: config.json, model.safetensors, tokenizer, prompts.txt" for folder in folders))
    return options.finish({"folders": folders})


def _check(options: CheckOptions) -> int:
    if (options.engine is None) == (options.logits is None):
        raise BadUsage("say which: --engine NAME or --logits DIR")
    reports = [_of_files(options)] if options.logits else _of_engines(options.engine or "", options.whole)
    say(*reports)
    options.finish([report.to_json() for report in reports])
    return int(any(report.wrong for report in reports))


def _of_files(options: CheckOptions) -> Report:
    folder, rows = options.logits, []
    assert folder is not None
    for name in names_for(options.dtype, options.arch):
        try:
            logits = np.load(folder / f"{name}.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BadUsage(f"{folder / name}.npy: {error}") from None
        rows += compare(name, logits, options.dtype)
    return Report(str(folder), options.dtype, tuple(rows))


def _of_engines(start: str, text: bool) -> list[Report]:
    asked, reports = engines_named(start), []
    with progress() as report_progress:
        for done, engine in enumerate(asked):
            report_progress(engine.name, done / len(asked))
            report = check(engine.open, engine.name, engine.arithmetic, family=engine.family, first=engine.offset)
            if text and engine.writes:
                report = replace(report, rows=(*report.rows, *whole(engine.open)))
            reports.append(report)
    return reports
