"""`emulon identify`: which algorithm an in-context learner runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.table import Table
from tyro.conf import Positional, arg

from emulon.cli.options import BadUsage, Command, CommandOptions, Count, Seed, shown
from emulon.core.predictor import EstimatorPredictor, as_predictor
from emulon.identification import Analysis, Identification, analyse, over_training
from emulon.identification.adapters import TextPredictor
from emulon.identification.loading import Subject, load_subject
from emulon.identification.sampling import DATASETS
from emulon.interpreter import Program
from emulon.models import Learner
from emulon.report.learners import phases_table, write, write_page_of_run
from emulon.report.terminal import note, progress, say, table

# A program is hundreds of steps of attention on every dataset, and exact: fewer datasets tell as much. An estimator is
# fitted anew for every question, and a language model reads a page for each.
PROGRAM_DATASETS, ESTIMATOR_DATASETS, TEXT_DATASETS, TEXT_POINTS = 32, 64, 16, 11
EXAMPLES = """examples:
  emulon identify runs/standard                a trained learner, on its own task
  emulon identify sklearn.linear_model:Ridge   an estimator
  emulon identify runs/standard --checkpoints   which algorithm it ran at each checkpoint of its training
  emulon identify mine.py:predict --task linear:features=8,noise=0.1 --report page"""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Which algorithm does TARGET run? Ranks the references by what they leave of it unexplained, and tells how far the
    nearest, least squares, ridge and gradient descent are from it after each number of examples."""

    target: Positional[Annotated[str, arg(metavar="TARGET")]]
    """a run folder, the folder of a Hugging Face causal model with its tokenizer (asked in words), module:name, or
    file.py:name. A name is a function of (xs, ys, x_query), of one dataset (n, d), (n,), (d,) or of a batch with a
    leading axis; an object with predict(xs, ys, x_query); or an estimator with scikit-learn's fit and predict"""
    task: Annotated[str | None, shown("TASK")] = None
    """where datasets come from, as linear:features=8,noise=0.1,prior=1; by default a run's own task, a machine's
    number of features, or linear:features=8"""
    datasets: Annotated[Count | None, shown("COUNT")] = None
    """256 by default, 64 for an estimator, 32 for a program, 16 for a language model"""
    points: Annotated[Count | None, shown("COUNT")] = None
    """the in-context examples and the query; as many as TARGET reads, or 40 (a language model: 11)"""
    fewest: Annotated[Count, shown("COUNT")] = 1
    """the fewest examples to ask after, for what cannot be fitted to one"""
    seed: Seed = 0
    """of the datasets"""
    loops: Annotated[Count | None, shown("COUNT")] = None
    """how many loops, for an AlgoFormer"""
    checkpoints: bool = False
    """for a run: the nearest algorithm at every checkpoint it has kept (train with --keep-checkpoints 0 to keep all)"""
    report: Annotated[Path | None, shown("DIR")] = None
    """also write a page with figures into this folder"""


def main(options: Options) -> int:
    subject = load_subject(options.target, options.task)
    options.require_writable(options.report)
    return show_phases(subject, options) if options.checkpoints else show_one(subject, options)


def show_one(subject: Subject, options: Options) -> int:
    """The predictor as it is."""
    predictor, usual, points = as_predictor(subject.thing, loops=options.loops), DATASETS, None
    for text in getattr(subject.thing, "notes", ()):
        note(text)
    if isinstance(predictor, TextPredictor):
        usual, points = TEXT_DATASETS, TEXT_POINTS
    elif isinstance(predictor, EstimatorPredictor):
        usual = ESTIMATOR_DATASETS
    elif isinstance(subject.thing, Program):
        usual = PROGRAM_DATASETS
    with progress() as report_progress:
        analysis = analyse(
            predictor,
            subject.task,
            target=options.target,
            report_progress=report_progress,
            seed=options.seed,
            datasets=options.datasets or usual,
            points=options.points or points,
            fewest=options.fewest,
        )
    say_analysis(analysis)
    if options.report is not None:
        say(f"report {write(analysis, options.report)}")
    return options.finish(analysis.as_numbers())


def show_phases(subject: Subject, options: Options) -> int:
    """A run at each of its checkpoints."""
    if not isinstance(subject.thing, Learner) or options.loops is not None:
        raise BadUsage("--checkpoints is for the folder of a training run, as it was trained (without --loops)")
    with progress() as report_progress:
        phases = over_training(
            Path(options.target),
            subject.task,
            report_progress=report_progress,
            seed=options.seed,
            datasets=options.datasets or DATASETS,
            points=options.points,
            fewest=options.fewest,
        )
    say(phases_table(options.target, phases), f"datasets of {subject.task}")
    if options.report is not None:
        say(f"report {write_page_of_run(Path(options.target), phases, options.report)}")
    return options.finish([phase.as_numbers() for phase in phases])


def say_analysis(analysis: Analysis) -> None:
    """Print the ranking, the distances by number of examples and the best ridge parameter."""
    found = analysis.identification
    say(ranking_table(analysis.target, found), found)
    if found.near and found.interval is not None:
        [name] = [name for name, value in found.parameters.items() if value == found.interval.value]
        say(f"{name}: {found.interval.value:.4g}, 95 % interval {found.interval.low:.4g} … {found.interval.high:.4g}")
    fit = analysis.ridge
    best = f"best ridge λ on a grid of half octaves: {fit.best:.3g}, difference {fit.difference}"
    if analysis.bayes is not None:
        near = "within the grid's step" if analysis.agrees else "farther than the grid's step"
        best += f"; σ²/τ² = {analysis.bayes:.3g} is {near}"
    say(*distance_tables(analysis), f"datasets of {analysis.task}", best)


def ranking_table(target: str, identification: Identification) -> Table:
    """A row for each reference, the nearest first."""
    rows = []
    for match in identification.ranking:
        share = match.unexplained
        named = match is identification.nearest and identification.near
        mark = "tie" if match.name in identification.ties else "named" if named else ""
        weight = f"{match.weight:.1%}" if match.weight >= 0.0005 else "<0.1%"
        rows.append((str(match), f"{share.value:.3g}", f"{share.low:.3g} … {share.high:.3g}", weight, mark))
    columns = ("reference", "unexplained", "95% interval", "weight", "")
    return table(
        columns,
        rows,
        title=f"{target}: {identification.algorithm}",
        caption="weight: posterior among these references, fitted parameters penalised (BIC)",
        words=columns,
    )


def distance_tables(analysis: Analysis) -> Iterator[Table]:
    """Rows for numbers of examples, a column for each reference: a table of predictions and one of weights."""
    comparison = analysis.comparison
    counts = comparison.linearity.counts
    for what, curves, more in (
        ("predictions, E(ŷ − ŷ′)²/d", comparison.predictions, {}),
        ("implicit linear weights, E‖w − w′‖²/d", comparison.weights, {"R² of w·x in ŷ": comparison.linearity}),
    ):
        every = {name.partition("(")[0]: curve for name, curve in curves.items()} | more
        rows = [(str(n), *(f"{curve[n].value:.2g}" for curve in every.values())) for n in counts]
        yield table(("examples", *every), rows, title=f"distance by number of examples: {what}")


COMMANDS = {"identify": Command(Options, main, EXAMPLES)}
