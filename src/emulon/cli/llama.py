"""`emulon llama`: one stock Llama that runs learning algorithms from a prompt of readable text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

from torch import Tensor
from tyro.conf import Positional, arg

from emulon import language
from emulon.algorithms import NamedAlgorithm
from emulon.cli.data import DataOptions
from emulon.cli.options import BadUsage, CommandOptions, Count, NotNegative, Positive, shown
from emulon.core.files import make_folder, write_atomically
from emulon.language.methods import Method, as_method, method_named
from emulon.language.vocabulary import SMALL
from emulon.report.terminal import note, progress, quiet, say, table
from emulon.run import solved_directly
from emulon.tables.data import Data

EXAMPLES = """examples:
  emulon llama write llama                     a Hugging Face folder, which pipeline("text-generation") opens
  emulon llama prompt ridge --rows 3 --features 2   the text to paste
  emulon llama run ridge lasso huber           diabetes: three algorithms by prompt, one sha256
  emulon llama run ridge --data f.csv --target price --out transcripts && emulon check transcripts/ridge.txt
Methods: linear, ridge, heavy_ball, lasso, elastic_net, huber, log_cosh, quantile, logistic, squared_hinge, perceptron,
  hinge, epsilon_insensitive, smooth_quantile, talwar, hampel, logistic_lasso, nonnegative_least_squares,
  nonnegative_lasso, box_least_squares, box_logistic, hard_threshold, firm_threshold"""


@dataclass(frozen=True, kw_only=True)
class WriteOptions(CommandOptions):
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


SUBCOMMANDS = {"write": WriteOptions, "prompt": PromptOptions, "run": RunOptions}


def main(options: WriteOptions | PromptOptions | RunOptions) -> int:
    if isinstance(options, WriteOptions):
        return _write(options)
    return _run(options) if isinstance(options, RunOptions) else _prompt(options)


def _write(options: WriteOptions) -> int:
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
    say(
        table(
            columns,
            [
                (
                    each["method"],
                    str(each["rows"]),
                    f"{each['steps']}{' overflow' if each['overflow'] else ''}",
                    f"{each['bound before the run']:.1e}",
                    f"{each['bound of this run']:.1e}",
                    "–" if each["distance to the solver"] is None else f"{each['distance to the solver']:.1e}",
                    str(each["words a second"]),
                )
                for each in records
            ],
            caption="before ≤: proved from the prompt alone, of any written weight against the exact iterate. "
            "error ≤: the same, from the transcript. "
            "solver: the same objective on these rows, solved by linear algebra (squares) or scikit-learn",
            words=("method",),
        ),
        f"model sha256 {before}",
        f"after        {after} ({'the same' if before == after else 'CHANGED'})",
    )
    return options.finish({"sha256": [before, after], "runs": records})
