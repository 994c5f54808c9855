"""`emulon canary`: known answers for inference engines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from tyro.conf import Positional, arg

from emulon.canary.check import Report, canary, check, compare, names_for
from emulon.canary.engines import ENGINES, engine_named
from emulon.cli.options import BadUsage, CommandOptions, shown
from emulon.core.files import make_folder
from emulon.report.terminal import progress, say

EXAMPLES = """examples:
  emulon canary write canaries                 four checkpoints, each a Hugging Face folder with its prompts
  emulon canary write canaries --gguf          and as GGUF, for llama.cpp
  emulon canary check --engine transformers    every configuration whose name begins so
  emulon canary check --logits answers         answers/digital.npy, … from an engine of your own: (prompts, vocabulary)
Exit code 0: every probe keeps the proved bits. 1: one does not, and the first wrong operation is named."""
Format = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True)
class WriteOptions(CommandOptions):
    """Write the checkpoints, their prompts and a tokenizer."""

    out: Positional[Annotated[Path, arg(metavar="DIR")]]
    """folder for the folders"""
    arithmetic: Format = "float32"
    """the number format that they are for; float16 has smaller numbers"""
    gguf: bool = False
    """also as GGUF files (needs the package gguf)"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions(CommandOptions):
    """Compare an engine's logits with the exact answers, operation by operation."""

    engine: Annotated[str | None, shown("NAME")] = None
    """engines whose name begins so: transformers, onnxruntime, openvino, ctranslate2, llama.cpp, …"""
    logits: Annotated[Path | None, shown("DIR")] = None
    """folder of NAME.npy for every canary: the logits after the last token of each line of its prompts.txt"""
    arithmetic: Format = "float32"
    """with --logits: the number format to hold them to"""


SUBCOMMANDS = {"write": WriteOptions, "check": CheckOptions}


def main(options: WriteOptions | CheckOptions) -> int:
    return _write(options) if isinstance(options, WriteOptions) else _check(options)


def _write(options: WriteOptions) -> int:
    folders = []
    for name in names_for(options.arithmetic):
        folder = make_folder(options.out / name)
        canary(name).write(folder)
        if options.gguf:
            from emulon.machine.targets.gguf import write_gguf

            write_gguf(folder, folder / f"{name}.gguf")
        folders.append(str(folder))
    say(*(f"{folder}: config.json, model.safetensors, tokenizer, prompts.txt" for folder in folders))
    return options.finish({"folders": folders})


def _check(options: CheckOptions) -> int:
    if (options.engine is None) == (options.logits is None):
        raise BadUsage("say which: --engine NAME or --logits DIR")
    reports = [_of_files(options)] if options.logits else list(_of_engines(options.engine or ""))
    say(*reports)
    options.finish([report.to_json() for report in reports])
    return int(any(report.wrong for report in reports))


def _of_files(options: CheckOptions) -> Report:
    folder, rows = options.logits, []
    assert folder is not None
    for name in names_for(options.arithmetic):
        try:
            logits = np.load(folder / f"{name}.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BadUsage(f"{folder / name}.npy: {error}") from None
        rows += compare(name, logits, options.arithmetic)
    return Report(str(folder), options.arithmetic, tuple(rows))


def _of_engines(start: str) -> list[Report]:
    names = [name for name in ENGINES if name.startswith(start)] or [start]
    asked = [engine_named(name) for name in names]
    reports = []
    with progress() as report_progress:
        for done, engine in enumerate(asked):
            report_progress(engine.name, done / len(asked))
            reports.append(check(engine.open, engine.name, engine.arithmetic, first=engine.offset))
    return reports
