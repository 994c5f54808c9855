"""`emulon run`: algorithms on real data through one frozen interpreter, and a report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.table import Table
from tyro.conf import Positional

from emulon.algorithms import name_of
from emulon.cli.data import DescentOptions, Weight, save_weights, weights_of
from emulon.cli.options import shown
from emulon.core.files import remember_own_files, remove_own_files
from emulon.report.page import write
from emulon.report.terminal import note, progress, say, table
from emulon.run import Experiment, Result, algorithms_asked, common_kind, require_taken, run_experiments, runnable
from emulon.tables.data import Data
from emulon.tables.model import FittedModel, save_models

EXAMPLES = """examples:
  emulon run                                   every regression algorithm on diabetes
  emulon run --data breast_cancer              every classifier
  emulon run ridge huber --data ames --features 20
  emulon run --data houses.csv --target price --report houses-report
  emulon run ridge lasso --data houses.csv --target price,rent   a table and a page each
  emulon run ridge --penalty 0.01 --steps 5000   nearer to the solution itself
then emulon predict report/ridge.json new.csv"""


@dataclass(frozen=True, kw_only=True)
class Options(DescentOptions):
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


def main(options: Options) -> int:
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
        earlier = remove_own_files(options.report)
        written = [_write(experiment, folder) for experiment, folder in zip(experiments, folders, strict=True)]
        models = _save(experiments, options.report, {name_of(named): word for word, named in asked.items()})
        remember_own_files(options.report, [*(path for paths in written for path in paths), *models])
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
    if gone := [name for name in earlier if not (options.report / name).exists()]:
        note(f"removed from {options.report} what an earlier run left: {', '.join(gone)}")
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
