"""`emulon llama` and `emulon canary`: stock models that run from text, and known answers for inference engines."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import numpy as np
from torch import Tensor
from tyro.conf import Positional, arg

from emulon import language
from emulon.algorithms import NamedAlgorithm
from emulon.canary.check import Report, canary, check, compare, names_for
from emulon.canary.engines import engines_named
from emulon.canary.whole import whole
from emulon.cli.options import BadUsage, Command, CommandOptions, Count, NotNegative, Positive, shown
from emulon.cli.run import DataOptions
from emulon.core.files import make_folder, write_atomically
from emulon.language.methods import Method, as_method, method_named
from emulon.language.vocabulary import SMALL
from emulon.report.terminal import note, progress, quiet, say, table
from emulon.run import solved_directly
from emulon.tables.data import Data

LLAMA_EXAMPLES = """examples:
  emulon llama write llama                     a Hugging Face folder, which pipeline("text-generation") opens
  emulon llama prompt ridge --rows 3 --features 2   the text to paste
  emulon llama run ridge lasso huber           diabetes: three algorithms by prompt, one sha256
  emulon llama run ridge --data f.csv --target price --out transcripts && emulon check transcripts/ridge.txt
Methods: linear, ridge, heavy_ball, lasso, elastic_net, huber, log_cosh, quantile, logistic, squared_hinge, perceptron,
  hinge, epsilon_insensitive, smooth_quantile, talwar, hampel, logistic_lasso, nonnegative_least_squares,
  nonnegative_lasso, box_least_squares, box_logistic, hard_threshold, firm_threshold"""


@dataclass(frozen=True, kw_only=True)
class LlamaWriteOptions(CommandOptions):
    """Write the frozen model as a folder that Hugging Face opens."""

    out: Positional[Annotated[Path, arg(metavar="DIR")]]
    """folder: config.json, model.safetensors, tokenizer, model card"""
    capacity: Literal["small", "large"] = "small"
    """small: 60 rows, 8 features; large: 500 rows, 32 features"""
    gguf: bool = False
    """also as GGUF (needs the package gguf)"""


@dataclass(frozen=True, kw_only=True)
class PromptOptions(DataOptions):
    """Write a method and its data as a prompt."""

    methods: Positional[Annotated[tuple[str, ...], arg(metavar="METHOD ...")]]
    """one or more, as ridge"""
    rows: Annotated[Count | None, shown("COUNT")] = None
    """how many training rows; by default as many as the model holds"""
    steps: Count = 50
    """how many iterates to write"""
    penalty: Annotated[NotNegative | None, shown("NUMBER")] = None
    """of those that have one"""
    step_size: Annotated[Positive | None, shown("NUMBER")] = None
    """by default the one that suits the data"""

    def asked(self, name: str) -> NamedAlgorithm | Method:
        """The method of this name with the parameters that were given."""
        settings = {"penalty": self.penalty, "step_size": self.step_size}
        given = {key: value for key, value in settings.items() if value is not None}
        try:
            return method_named(name)(steps=self.steps, **given)  # type: ignore[return-value]  # all of these are
        except TypeError:
            raise BadUsage(
                f"{name} does not take {' or '.join(f'--{key}'.replace('_', '-') for key in given)}"
            ) from None

    def problem(self, data: Data, method: NamedAlgorithm | Method) -> tuple[Tensor, Tensor]:
        """The rows and targets that the prompt holds."""
        x, y = data.problem(as_method(method).descent.loss)
        if y.ndim != 1:
            raise BadUsage(f"{data.name} has {len(data.classes)} classes; a prompt holds two")
        most = self.rows or SMALL.samples
        if self.rows is None and len(x) > most:
            note(f"the first {most} of {len(x)} training rows, which is what the small model holds")
        return x[:most], y[:most]

    def loaded(self) -> list[tuple[str, NamedAlgorithm | Method, Data]]:
        """Each method with the data that it learns."""
        found: list[tuple[str, NamedAlgorithm | Method, Data]] = []
        kinds: dict[str, Data] = {}
        for name in self.methods:
            method = self.asked(name)
            kind = as_method(method).descent.loss.link.kind
            if kind not in kinds:
                kinds[kind] = self.load(kind)
            found.append((name, method, kinds[kind]))
        return found


@dataclass(frozen=True, kw_only=True)
class RunOptions(PromptOptions):
    """Run methods in the model, by its `generate()`, and check what it writes."""

    model: Annotated[Path | None, shown("DIR")] = None
    """folder of emulon llama write; by default one is written for this run"""
    out: Annotated[Path | None, shown("DIR")] = None
    """folder for the transcripts, METHOD.txt"""
    mode: Literal["plain", "drafted"] = "plain"
    """plain: generate(), word by word; drafted: words that the prompt decides are fed in blocks, and checked"""


def llama_main(options: LlamaWriteOptions | PromptOptions | RunOptions) -> int:
    if isinstance(options, LlamaWriteOptions):
        return _write_llama(options)
    return _run(options) if isinstance(options, RunOptions) else _prompt(options)


def _write_llama(options: LlamaWriteOptions) -> int:
    digest = language.write(options.out, options.capacity)
    if options.gguf:
        from emulon.machine.targets.gguf import write_gguf

        write_gguf(options.out, options.out / "model.gguf")
    say(f"{options.out}: a LlamaForCausalLM, sha256 {digest}")
    return options.finish({"folder": str(options.out), "sha256": digest})


def _prompt(options: PromptOptions) -> int:
    texts = {}
    with quiet(True):  # what is printed is the prompt alone
        work = options.loaded()
    for name, method, data in work:
        texts[name] = language.text_of(language.prompt(method, *options.problem(data, method)))
        if options.json != "-":
            print(texts[name], end="")
    return options.finish(texts)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with TemporaryDirectory() as folder:
        language.write(folder)
        yield Path(folder)


def _run(options: RunOptions) -> int:
    work = options.loaded()
    options.require_writable(options.out)
    records: list[dict[str, Any]] = []
    with _folder(options.model) as folder, progress() as report_progress:
        model = language.load(folder)
        before = model.sha256
        for done, (name, method, data) in enumerate(work):
            report_progress(name, done / len(work))
            x, y = options.problem(data, method)
            begin = time.perf_counter()
            run = model.run(method, x, y, mode=options.mode)
            seconds = time.perf_counter() - begin
            if options.out is not None:
                write_atomically(make_folder(options.out) / f"{name}.txt", run.transcript)
            theirs = solved_directly(method, x, y) if isinstance(method, NamedAlgorithm) else None
            names = data.names(as_method(method).descent.loss)
            records.append(
                {
                    "method": name,
                    "rows": len(x),
                    "steps": len(run.iterates) - 1,
                    "overflow": run.overflow,
                    "bound before the run": run.certificate.bound,
                    "bound of this run": run.audit.bound,
                    "distance to the solver": None if theirs is None else float((run.last - theirs).abs().max()),
                    "words a second": round(len(run.transcript.split()) / seconds),
                    "weights": dict(zip(names, run.last.tolist(), strict=True)),
                }
            )
        after = model.sha256
    columns = ("method", "rows", "steps", "before ≤", "error ≤", "to theirs", "words/s")
    caption = (
        "before ≤: proved from the prompt alone, of any written weight against the exact iterate. error ≤: the same, "
        "from the transcript. solver: the same objective on these rows, solved by linear algebra (squares) or "
        "scikit-learn"
    )
    rows = []
    for each in records:
        steps = f"{each['steps']}{' overflow' if each['overflow'] else ''}"
        bounds = [f"{each[name]:.1e}" for name in ("bound before the run", "bound of this run")]
        distance = "–" if each["distance to the solver"] is None else f"{each['distance to the solver']:.1e}"
        rows.append((each["method"], str(each["rows"]), steps, *bounds, distance, str(each["words a second"])))
    say(
        table(columns, rows, caption=caption, words=("method",)),
        f"model sha256 {before}",
        f"after        {after} ({'the same' if before == after else 'CHANGED'})",
    )
    return options.finish({"sha256": [before, after], "runs": records})


CANARY_EXAMPLES = """examples:
  emulon canary write canaries                 four checkpoints, each a Hugging Face folder with its prompts
  emulon canary write canaries --gguf          and as GGUF, for llama.cpp
  emulon canary write canaries --arch qwen3 --dtype bfloat16
  emulon canary check --engine transformers    its eager and its fused attention in four number formats
  emulon canary check --engine "llama.cpp F32"   every configuration whose name begins so
  emulon canary check --logits answers         answers/digital.npy, … from an engine of your own: (prompts, vocabulary)
Exit code 0: every probe keeps the proved bits. 1: one does not, and the first wrong operation is named; or an engine
cannot run a checkpoint, and says why."""
Format = Literal["float32", "bfloat16", "float16"]
Family = Literal["llama", "mistral", "qwen3", "gemma", "gpt2", "gpt_neox"]


@dataclass(frozen=True, kw_only=True)
class CanaryWriteOptions(CommandOptions):
    """Write the checkpoints, their prompts and a tokenizer."""

    out: Positional[Annotated[Path, arg(metavar="DIR")]]
    """folder for the folders"""
    arch: Family = "llama"
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
    arch: Family = "llama"
    """with --logits: the stock class"""
    dtype: Annotated[Format, arg(aliases=("--arithmetic",))] = "float32"
    """with --logits: the number format to hold them to"""
    whole: bool = False
    """with --engine: engines of float32 also write gradient descent as text, which is judged word by word"""


GGUF = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


def canary_main(options: CanaryWriteOptions | CheckOptions) -> int:
    return _write_canaries(options) if isinstance(options, CanaryWriteOptions) else _check_engine(options)


def _write_canaries(options: CanaryWriteOptions) -> int:
    folders = []
    if options.gguf and options.arch not in ("llama", "gpt2", "gpt_neox"):
        raise BadUsage(f"GGUF files are written of llama, gpt2 and gpt_neox, not of {options.arch}")
    for name in names_for(options.dtype, options.arch):
        folder = make_folder(options.out / name)
        canary(name).write(folder, options.dtype)
        if options.gguf:
            from emulon.machine.targets.gguf import write_gguf

            write_gguf(folder, folder / f"{name}.gguf", GGUF[options.dtype])
        folders.append(str(folder))
    say(*(f"{folder}: config.json, model.safetensors, tokenizer, prompts.txt" for folder in folders))
    return options.finish({"folders": folders})


def _check_engine(options: CheckOptions) -> int:
    if (options.engine is None) == (options.logits is None):
        raise BadUsage("say which: --engine NAME or --logits DIR")
    reports, failed = ([_of_files(options)], {}) if options.logits else _of_engines(options.engine or "", options.whole)
    say(*reports)
    for name, reason in failed.items():
        note(f"{name} did not run: {reason}")
    options.finish(
        [report.to_json() for report in reports] + [{"engine": name, "failed": failed[name]} for name in failed]
    )
    return int(bool(failed) or any(report.wrong for report in reports))


def _of_files(options: CheckOptions) -> Report:
    folder, rows = options.logits, []
    assert folder is not None
    for name in names_for(options.dtype, options.arch):
        try:
            logits = np.load(folder / f"{name}.npy", allow_pickle=False)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadUsage(f"{folder / name}.npy, the logits for {name}/prompts.txt: {reason}") from None
        rows += compare(name, logits, options.dtype)
    return Report(str(folder), options.dtype, tuple(rows))


def _of_engines(start: str, text: bool) -> tuple[list[Report], dict[str, str]]:
    """A report for every engine, and of those that could not run a checkpoint the reason."""
    asked, reports, failed = engines_named(start), [], {}
    with progress() as report_progress:
        for done, engine in enumerate(asked):
            report_progress(engine.name, done / len(asked))
            try:
                report = check(engine.open, engine.name, engine.arithmetic, family=engine.family, first=engine.offset)
                if text and engine.writes:
                    report = replace(report, rows=(*report.rows, *whole(engine.open)))
            except Exception as error:  # whatever an engine ends in; the others are checked all the same
                reason = f"{type(error).__name__}: {error}".splitlines()[0]
                missing = " (pip install 'emulon[engines]')" if isinstance(error, ModuleNotFoundError) else ""
                failed[engine.name] = reason + missing
            else:
                reports.append(report)
    return reports, failed


COMMANDS = {
    "llama": Command(
        {"write": LlamaWriteOptions, "prompt": PromptOptions, "run": RunOptions}, llama_main, LLAMA_EXAMPLES
    ),
    "canary": Command({"write": CanaryWriteOptions, "check": CheckOptions}, canary_main, CANARY_EXAMPLES),
}
