"""`emulon run`: algorithms on real data through one frozen interpreter, and a report."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from emulon.commands.data import DescentOptions, save_weights, weights_of
from emulon.commands.options import shown

if TYPE_CHECKING:
    from rich.table import Table

    from emulon.experiments.run import Experiment, Result

EXAMPLES = """examples:
  emulon run                                   every regression algorithm on diabetes
  emulon run --data breast_cancer              every classifier
  emulon run ridge huber --data ames --features 20
  emulon run --data houses.csv --target price --report houses-report
  emulon run ridge --steps 5000                nearer to scikit-learn's own solution"""


@dataclass(frozen=True, kw_only=True)
class Options(DescentOptions):
    """Run algorithms on data through one frozen interpreter, and compare."""

    algorithms: Positional[Annotated[tuple[str, ...], shown("[ALGORITHM ...]")]] = ()
    """default: all that suit the data"""
    report: Annotated[Path, shown("DIR")] = Path("report")
    """HTML report (default ./report)"""
    path: Literal["fast", "faithful"] = "fast"
    """faithful: every token, head and score"""


def main(options: Options) -> int:
    options.check(*options.algorithms)
    from emulon.experiments.run import algorithm_named, common_kind, run_experiment, tolerance_missed
    from emulon.files import make_folder
    from emulon.progress import progress_bar
    from emulon.report.page import write
    from emulon.report.terminal import console

    algorithms = [algorithm_named(name) for name in dict.fromkeys(options.algorithms)]
    data = options.load(common_kind(algorithms))
    make_folder(options.report)  # now, not after a minute's work
    weights_file = options.report / "weights.csv"
    with progress_bar() as report_progress:
        experiment = run_experiment(
            algorithms,
            data,
            steps=options.steps,
            tolerance=options.tolerance,
            path=options.path,
            report_progress=report_progress,
        )
        report_progress("drawing the report", 1.0)
        page = write(experiment, options.report)
        save_weights([line for result in experiment.results for line in weights_of(result.run, data)], weights_file)
    console().print(results_table(experiment))
    for line in experiment.left_out:
        print(f"left out {line}")
    for result in experiment.results:
        if missed := tolerance_missed(result.run.program, options.tolerance):
            print(f"note: {missed}", file=sys.stderr)
    before, after = experiment.sha256
    print(f"interpreter sha256 before {before}")
    print(f"                   after  {after} ({'the same' if before == after else 'CHANGED'})")
    print(f"report {page}, weights {weights_file}")
    return 0


def results_table(experiment: Experiment) -> Table:
    from emulon.report.terminal import table

    data = experiment.data
    measure = "R²" if data.kind == "regression" else "accuracy"
    rows, features = data.x_train.shape
    left_out = [(line.partition(":")[0], *["–"] * 9) for line in experiment.left_out]
    return table(
        ("algorithm", "steps", "error", "run ≤", "domain ≤", "to sklearn", measure, "sklearn's", "in band", "seconds"),
        [*map(_cells, experiment.results), *left_out],
        title=f"{data.name}: {rows} training rows, {len(data.x_test)} held out, {features} features, no intercept",
        caption="error: of the final weights, sup-norm, against the exact algorithm in float64. run ≤, domain ≤: its "
        "bound for this run only, and for every input of the domain; a dash: it is above the largest weight. "
        "to sklearn: distance to scikit-learn's solution of the same objective",
        words=("algorithm",),
        wrap=False,
    )


def _cells(result: Result) -> tuple[str, ...]:
    distance = "–" if result.their_distance is None else f"{result.their_distance:.1e}"
    their_score = "–" if result.their_score is None else f"{result.their_score:.4f}"
    band = "–" if not result.run.certificate.bands else "yes" if result.run.entered_band else "no"
    promises = result.run.promises
    errors = (f"{result.error:.1e}", promises.shown("run"), promises.shown("domain"), distance)
    steps, seconds = str(result.run.program.steps), f"{result.seconds:.1f}"
    return (result.name, steps, *errors, f"{result.score:.4f}", their_score, band, seconds)
