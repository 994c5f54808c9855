"""`emulon run` and `emulon predict`: algorithms on a table through one frozen interpreter, and models on new rows.

And what compile and exec share with them: where the data come from, how the descent is compiled, and the weights.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from rich.table import Table
from tyro.conf import Positional, UseAppendAction, arg

from emulon.algorithms import name_of
from emulon.algorithms.losses import Kind
from emulon.cli.options import (
    BadUsage,
    Command,
    CommandOptions,
    Count,
    Factor,
    NotNegative,
    Positive,
    Seed,
    Size,
    shown,
)
from emulon.core.files import csv_text, write_atomically
from emulon.interpreter import Program, Run
from emulon.interpreter.compiler import tolerance_missed
from emulon.report.page import write
from emulon.report.terminal import note, progress, say, table
from emulon.run import Experiment, Result, algorithms_asked, common_kind, run_experiments
from emulon.tables.columns import DATASETS, read_columns
from emulon.tables.data import INTERCEPT, Data, load_each
from emulon.tables.model import FittedModel, load_models, save_models

SETTINGS = ("step_size", "penalty", "l1_ratio", "tau", "delta", "momentum")
# Numbers in a table that one thread works through as fast as several.
SMALL_TABLE = 100_000
# (program, feature, weight, the same in the columns' own units)
Weight = tuple[str, str, float, float]


@dataclass(frozen=True, kw_only=True)
class DataOptions(CommandOptions):
    data: Annotated[str | None, shown("DATA")] = None
    """diabetes (default), breast_cancer, wine, ames or FILE.csv (.parquet, .feather)"""
    target: Annotated[str | None, shown("COLUMN")] = None
    """the column of the file to predict (run takes several: a,b)"""
    kind: Annotated[Literal["regression", "classification"] | None, shown("KIND")] = None
    """whether the target is numbers (regression) or classes, where no algorithm says it"""
    features: Annotated[Size | None, shown("K")] = None
    """keep the K most correlated with the target (ames: 20; 0: all)"""
    seed: Seed = 0
    """of the split into training and held-out rows"""
    standardize: bool = True
    """divide numbers and the target by their deviations; penalties are in those units"""
    intercept: bool = True
    """fit one: by centring for squared losses, by a column of ones, which the penalty covers, for others"""
    as_: UseAppendAction[Annotated[tuple[str, ...], arg(name="as", metavar="COLUMN=KIND", help_behavior_hint="")]] = ()
    """take a column of a file for a number, category or date, or drop it; once for each"""

    def load(self, kind: Kind | None) -> Data:
        """The data of one target; prints how columns are treated."""
        first, *more = self.load_each(kind)
        if more:
            raise BadUsage(f"--target names {1 + len(more)} columns where one is taken; emulon run takes several")
        return first

    def load_each(self, kind: Kind | None) -> tuple[Data, ...]:
        """The data once for each target; prints how columns are treated."""
        if kind is not None and self.kind not in (None, kind):
            raise BadUsage(f"--kind is {self.kind}, and the algorithms named are for {kind}")
        every = load_each(
            self.data or DATASETS[0],
            self.target,
            kind=kind or self.kind,
            features=self.features,
            seed=self.seed,
            standardize=self.standardize,
            intercept=self.intercept,
            treat=self.as_,
        )
        use_threads(every[0].x_train.numel())
        say(*(f"data: {treatment}" for treatment in dict.fromkeys(data.treatment for data in every)))
        taken = {name: reason for data in every for name, reason in data.taken}
        if self.data in (None, *DATASETS):  # the kinds of their columns are known
            taken = {name: reason for name, reason in taken.items() if reason != "number"}
        width = min(32, max(map(len, taken), default=0))
        say(*(f"column {name:<{width}}  {reason}" for name, reason in taken.items()))
        for text in dict.fromkeys(text for data in every for text in data.notes):
            note(text)
        return every


def use_threads(numbers: int) -> None:
    """One thread for a small table, unless the environment says how many: what is shared out is less than the waiting.

    On a busy machine of two cores 200 steps on 32 rows took 27 s with two threads and 2 s with one.
    """
    if numbers <= SMALL_TABLE and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


@dataclass(frozen=True, kw_only=True)
class DescentOptions(DataOptions):
    steps: Count = 200
    """steps of gradient descent"""
    tolerance: Annotated[Positive | None, shown("NUMBER")] = None
    """on the final weights; by default they come as near to 1e-8 as they can (a network's outputs: 1e-9)"""
    step_size: Annotated[Positive | None, shown("NUMBER")] = None
    """of every algorithm; by default each takes the one that suits the data"""
    penalty: Annotated[NotNegative | None, shown("NUMBER")] = None
    """of those that have one (ridge, lasso, elastic_net, logistic, …; 0.1 by default)"""
    l1_ratio: Annotated[NotNegative | None, shown("SHARE")] = None
    """of elastic_net: the penalty's share on ‖w‖₁ (0.5)"""
    tau: Annotated[Positive | None, shown("SHARE")] = None
    """of quantile: which quantile (0.5)"""
    delta: Annotated[Positive | None, shown("NUMBER")] = None
    """Huber threshold (1.35)"""
    momentum: Annotated[NotNegative | None, shown("SHARE")] = None
    """of heavy_ball (0.9)"""
    margin: Annotated[Factor | None, shown("FACTOR")] = None
    """widen the certified range of inputs by this factor, so that other data fit (1; for networks 1.25)"""

    @property
    def settings(self) -> dict[str, float]:
        """The parameters that were given."""
        return {name: value for name in SETTINGS if (value := getattr(self, name)) is not None}

    def note_tolerance(self, program: Program) -> None:
        """Note where the program cannot keep the tolerance that was asked for, in the words of the refusals."""
        if self.tolerance is not None and (missed := tolerance_missed(program, self.tolerance)):
            note(missed)


def weights_of(run: Run, data: Data) -> list[Weight]:
    """Class by class where there are several; the intercept last."""
    loss = run.program.loss
    rows = np.atleast_2d(run.weights.double().numpy())
    classes = [f" [{name}]" for name in data.classes] if len(rows) > 1 else [""]
    found: list[Weight] = []
    for row, name in zip(rows, classes, strict=True):
        coefficients, intercept = data.original(row, loss)
        inside = row[-1].item() if data.with_ones(loss) else 0.0
        lines = zip(data.features, row.tolist(), coefficients.tolist(), strict=False)  # ones have no coefficient
        found += [(run.program.name, f"{feature}{name}", weight, own) for feature, weight, own in lines]
        found.append((run.program.name, f"{INTERCEPT}{name}", inside, float(intercept)))
    return found


def save_weights(weights: list[Weight], path: Path) -> None:
    """To the last bit; a name such as "=a" is written as "'=a"."""
    write_atomically(path, csv_text([("program", "feature", "weight", "original units"), *weights]))


RUN_EXAMPLES = """examples:
  emulon run                                   every regression algorithm on diabetes
  emulon run --data breast_cancer              every classifier
  emulon run ridge huber --data ames --features 20
  emulon run --data houses.csv --target price --out houses-report
  emulon run ridge lasso --data houses.csv --target price,rent   a table and a page each
  emulon run ridge --penalty 0.01 --steps 5000   nearer to the solution itself
then emulon predict report/ridge.json new.csv"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(DescentOptions):
    """Run algorithms on data through one frozen interpreter, and compare."""

    aliases: ClassVar[Mapping[str, str]] = {"--report": "--out"}

    algorithms: Positional[Annotated[tuple[str, ...], shown("[ALGORITHM ...]")]] = ()
    """default: all that suit the data"""
    out: Annotated[Path, shown("DIR")] = Path("report")
    """folder for the report, the weights and a model of each algorithm (default ./report)"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""

    def folders(self, every: Sequence[Data]) -> list[Path]:
        """Where the pages go: one for each target where there are several."""
        if len(every) == 1:
            return [self.out]
        names = [re.sub(r"\W+", "-", data.target).strip("-") or "target" for data in every]
        clash = len(set(names)) < len(names)  # as "a b" and "a-b" do
        return [self.out / (f"{name}-{i}" if clash else name) for i, name in enumerate(names, start=1)]


def run_main(options: RunOptions) -> int:
    asked = algorithms_asked(options.algorithms)
    algorithms = list(asked.values())
    every = options.load_each(common_kind(algorithms))
    folders = options.folders(every)
    options.require_writable(*folders)
    with progress() as report_progress:
        experiments = run_experiments(
            algorithms,
            every,
            steps=options.steps,
            tolerance=options.tolerance,
            settings=options.settings,
            margin=options.margin or 1.0,
            mode=options.mode,
            report_progress=report_progress,
        )
        report_progress("drawing the report", 1.0)
        written = [_write(experiment, folder) for experiment, folder in zip(experiments, folders, strict=True)]
        models = _save(experiments, options.out, {name_of(named): word for word, named in asked.items()})
    for experiment in experiments:
        say(results_table(experiment))
        if len(experiment.results) == 1:
            say(weights_table(weights_of(experiment.results[0].run, experiment.data)))
        say(*(f"left out {line}" for line in experiment.left_out))
        for result in experiment.results:
            options.note_tolerance(result.run.program)
    before, after = experiments[0].sha256
    say(
        f"interpreter sha256 {before}",
        f"after the runs     {after} ({'the same' if before == after else 'CHANGED'})",
        *(f"report {page}, weights {weights}" for weights, page, *_ in written),
        f"models {', '.join(map(str, models))}",
    )
    return options.finish([_record(experiment) for experiment in experiments])


def _write(experiment: Experiment, folder: Path) -> tuple[Path, ...]:
    """Write the weights of all algorithms and the page; the files written, in this order."""
    written, weights = write(experiment, folder), folder / "weights.csv"
    save_weights([line for result in experiment.results for line in weights_of(result.run, experiment.data)], weights)
    return (weights, *written)


def _save(experiments: Sequence[Experiment], folder: Path, words: Mapping[str, str]) -> list[Path]:
    """Write a model of each algorithm, which predicts every target that it was run on.

    Its file has the name that was asked for, `words` by the algorithm's own; without one the algorithm's own.
    """
    models: dict[str, list[FittedModel]] = {}
    for experiment in experiments:
        for result in experiment.results:
            models.setdefault(result.name, []).append(FittedModel.of(result.name, result.run, experiment.data))
    paths = [folder / f"{words.get(name, name)}.json" for name in models]
    for fitted, path in zip(models.values(), paths, strict=True):
        save_models(fitted, path)
    return paths


def _record(experiment: Experiment) -> dict[str, Any]:
    """What --json keeps."""
    data = experiment.data
    results = [
        {
            "algorithm": result.name,
            "error": result.error,
            "bound of this run": result.run.bounds.bound,
            "score": result.score,
            "score of the solver": result.their_score,
            "distance to the solver": result.their_distance,
            "seconds": result.seconds,
            "weights": {feature: weight for _, feature, weight, _ in weights_of(result.run, data)},
        }
        for result in experiment.results
    ]
    return {
        "data": data.name,
        "target": data.target,
        "kind": data.kind,
        "columns": dict(data.taken),
        "baseline": data.baseline_score,
        "results": results,
        "left out": list(experiment.left_out),
        "interpreter sha256": list(experiment.sha256),
    }


def results_table(experiment: Experiment) -> Table:
    """No wider than 80 columns."""
    data = experiment.data
    measure = "R²" if data.kind == "regression" else "accuracy"
    baseline = "the training rows' mean" if data.kind == "regression" else f"always {data.baseline!r}"
    rows, features = data.x_train.shape
    banded = any(result.run.certificate.bands for result in experiment.results)
    columns = ["algorithm", "error", "run ≤", "domain ≤", "to\nsolver", "score", "solver", "in\nband", "s"]
    lines = [
        *map(_cells, experiment.results),
        *((line.partition(":")[0].removesuffix("_regression"), *["–"] * 8) for line in experiment.left_out),
        ("baseline", *["–"] * 4, f"{data.baseline_score:.4f}", *["–"] * 3),
    ]
    if not banded:
        columns.remove("in\nband")
        lines = [(*line[:7], line[8]) for line in lines]
    steps = experiment.results[0].run.program.steps if experiment.results else 0
    return table(
        columns,
        lines,
        title=f"{data.name}: {rows} training rows, {len(data.x_test)} held out, {features} features, {steps} steps",
        caption="error: of the final weights, sup-norm, against the exact algorithm in float64. run ≤, domain ≤: its "
        "bound for this run only, and for every input of the domain; a dash: it is above the largest weight. "
        f"score: {measure} on the held-out rows. baseline: {baseline}. solver: the same objective solved by linear "
        "algebra (squares) or scikit-learn",
        words=("algorithm",),
        wrap=False,
        tight=True,
    )


def weights_table(weights: list[Weight]) -> Table:
    rows = [(feature, f"{weight:.6g}", f"{own:.6g}") for _, feature, weight, own in weights]
    columns = ("feature", "weight", "in original units")
    return table(columns, rows, title=f"weights of {weights[0][0]}", words=("feature",))


def _cells(result: Result) -> tuple[str, ...]:
    name, bounds = result.name.removesuffix("_regression"), result.run.bounds
    distance = "–" if result.their_distance is None else f"{result.their_distance:.1e}"
    their_score = "–" if result.their_score is None else f"{result.their_score:.4f}"
    band = "–" if not result.run.certificate.bands else "yes" if result.run.entered_band else "no"
    errors = (f"{result.error:.1e}", bounds.shown("run"), bounds.shown("domain"), distance)
    return (name, *errors, f"{result.score:.4f}", their_score, band, f"{result.seconds:.1f}")


PREDICT_EXAMPLES = """examples:
  emulon run ridge --data houses.csv --target price
  emulon predict report/ridge.json new.csv --out predictions.csv
  emulon run logistic --data wine && emulon predict report/logistic.json new.csv --proba
Columns are imputed, encoded and scaled as the training rows were. Where the table has the target, the score is
printed."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(CommandOptions):
    """Predict the target, or targets, of every row of a table with a model that emulon run fitted."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """a file of emulon run, as report/ridge.json"""
    data: Positional[Annotated[Path, arg(metavar="TABLE")]]
    """FILE.csv (.parquet, .feather) with the model's columns"""
    proba: bool = False
    """of logistic regression: a column with the probability of each class, too"""
    out: Annotated[Path | None, shown("FILE.csv")] = None
    """write them there instead of to the terminal"""


def predict_main(options: PredictOptions) -> int:
    models, columns = load_models(options.model), read_columns(options.data)
    for model in models:
        model.require(columns, str(options.data))
    answers = {model.target: model.predict(columns) for model in models}
    shown = dict(answers)
    for model in models if options.proba else ():
        shares = model.probabilities(columns).T
        shown |= {f"{model.target}={name}": share for name, share in zip(model.classes, shares, strict=True)}
    for text in dict.fromkeys(text for model in models for text in model.notes(columns)):
        note(text)
    numbers = {name: column.tolist() for name, column in shown.items()}
    text = csv_text([("row", *numbers), *zip(itertools.count(1), *numbers.values(), strict=False)])
    if options.out is not None:
        write_atomically(options.out, text)
        count = len(answers[models[0].target])
        say(f"{count} predictions of {', '.join(answers)} by {models[0].algorithm} in {options.out}")
    elif options.json != "-":
        print(text, end="")
    scores: dict[str, str | None] = dict.fromkeys(answers)
    for model in models:
        if model.target in columns:
            score = scores[model.target] = model.scored(columns[model.target], answers[model.target])
            say(f"{model.target}: {score}" if len(models) > 1 else score, err=True)
    return options.finish({"predictions": numbers, "scores": scores})


COMMANDS = {
    "run": Command(RunOptions, run_main, RUN_EXAMPLES),
    "predict": Command(PredictOptions, predict_main, PREDICT_EXAMPLES),
}
