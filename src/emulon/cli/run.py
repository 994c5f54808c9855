"""`emulon run` and `emulon predict`: algorithms on a table through one frozen interpreter, and models on new rows."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from rich.table import Table
from tyro.conf import Positional, arg

from emulon.algorithms import name_of
from emulon.cli.data import DescentOptions, Weight, save_weights, weights_of
from emulon.cli.options import Command, CommandOptions, shown
from emulon.core.files import text_cell, write_atomically
from emulon.report.page import write
from emulon.report.terminal import note, progress, say, table
from emulon.run import Experiment, Result, algorithms_asked, common_kind, require_taken, run_experiments, runnable
from emulon.tables.columns import Cells, read_columns
from emulon.tables.data import Data
from emulon.tables.model import FittedModel, load_models, save_models

RUN_EXAMPLES = """examples:
  emulon run                                   every regression algorithm on diabetes
  emulon run --data breast_cancer              every classifier
  emulon run ridge huber --data ames --features 20
  emulon run --data houses.csv --target price --report houses-report
  emulon run ridge lasso --data houses.csv --target price,rent   a table and a page each
  emulon run ridge --penalty 0.01 --steps 5000   nearer to the solution itself
then emulon predict report/ridge.json new.csv"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(DescentOptions):
    """Run algorithms on data through one frozen interpreter, and compare."""

    algorithms: Positional[Annotated[tuple[str, ...], shown("[ALGORITHM ...]")]] = ()
    """default: all that suit the data"""
    report: Annotated[Path, shown("DIR")] = Path("report")
    """HTML report (default ./report)"""
    mode: Literal["fast", "reference"] = "fast"
    """reference: every token, head and score"""

    def folders(self, every: Sequence[Data]) -> list[Path]:
        """Where the pages go: one for each target where there are several."""
        if len(every) == 1:
            return [self.report]
        names = [re.sub(r"\W+", "-", data.target).strip("-") or "target" for data in every]
        clash = len(set(names)) < len(names)  # as "a b" and "a-b" do
        return [self.report / (f"{name}-{i}" if clash else name) for i, name in enumerate(names, start=1)]


def run_main(options: RunOptions) -> int:
    asked = algorithms_asked(options.algorithms)
    algorithms = list(asked.values())
    require_taken(algorithms or list(runnable().values()), options.settings)
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
        models = _save(experiments, options.report, {name_of(named): word for word, named in asked.items()})
    for experiment in experiments:
        _say(experiment)
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


def _say(experiment: Experiment) -> None:
    say(results_table(experiment))
    if len(experiment.results) == 1:
        say(weights_table(weights_of(experiment.results[0].run, experiment.data)))
    say(*(f"left out {line}" for line in experiment.left_out))


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
        *((_short(line.partition(":")[0]), *["–"] * 8) for line in experiment.left_out),
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


def _short(name: str) -> str:
    return name.removesuffix("_regression")


def _cells(result: Result) -> tuple[str, ...]:
    distance = "–" if result.their_distance is None else f"{result.their_distance:.1e}"
    their_score = "–" if result.their_score is None else f"{result.their_score:.4f}"
    band = "–" if not result.run.certificate.bands else "yes" if result.run.entered_band else "no"
    bounds = result.run.bounds
    errors = (f"{result.error:.1e}", bounds.shown("run"), bounds.shown("domain"), distance)
    return (_short(result.name), *errors, f"{result.score:.4f}", their_score, band, f"{result.seconds:.1f}")


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
    cells = Cells(columns)
    answers = {model.target: model.predict(cells) for model in models}
    shown = dict(answers)
    for model in models if options.proba else ():
        shares = model.probabilities(cells).T
        shown |= {f"{model.target}={name}": share for name, share in zip(model.classes, shares, strict=True)}
    for text in dict.fromkeys(text for model in models for text in model.notes(cells)):
        note(text)
    text, count = _as_csv(shown), len(answers[models[0].target])
    if options.out is not None:
        write_atomically(options.out, text)
        say(f"{count} predictions of {', '.join(answers)} by {models[0].algorithm} in {options.out}")
    elif options.json != "-":
        print(text, end="")
    scores = {model.target: _score(model, columns, answers[model.target], len(models) > 1) for model in models}
    return options.finish({"predictions": {name: column.tolist() for name, column in shown.items()}, "scores": scores})


def _as_csv(shown: dict[str, np.ndarray]) -> str:
    text = io.StringIO(newline="")
    lines = zip(itertools.count(1), *(column.tolist() for column in shown.values()), strict=False)
    rows = [[text_cell(each) if isinstance(each, str) else each for each in row] for row in [("row", *shown), *lines]]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _score(model: FittedModel, columns: dict[str, list[str]], answers: np.ndarray, several: bool) -> str | None:
    """Print the score on standard error where the table has the target."""
    if model.target not in columns:
        return None
    score = model.scored(columns[model.target], answers)
    say(f"{model.target}: {score}" if several else score, err=True)
    return score


COMMANDS = {
    "run": Command(RunOptions, run_main, RUN_EXAMPLES),
    "predict": Command(PredictOptions, predict_main, PREDICT_EXAMPLES),
}
