"""`emulon identify` and `emulon probe`: the numbers as tables. Bad input is one line and exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emulon.algorithms import LeastSquares, OnlineSGD, RidgeRegression
from emulon.algorithms.algorithm import Algorithm
from emulon.errors import EmulonError
from emulon.files import write_atomically
from emulon.interpreter import Program
from emulon.interrogate import tables
from emulon.interrogate.attention_probe import Kind, attention_probe
from emulon.interrogate.hidden_states import hidden_states
from emulon.interrogate.interrogation import Interrogation, interrogate
from emulon.interrogate.linear_probe import linear_probe
from emulon.interrogate.probe_target import moments, prefix_weights
from emulon.interrogate.sampling import DATASETS
from emulon.interrogate.subject import load_subject
from emulon.interrogate.task import Task
from emulon.predictor import NotAPredictor, as_predictor
from emulon.progress import progress_bar

# Writes the page of an interrogation into a folder and says where it is.
WritePage = Callable[[Interrogation, Path], Path]
# A program is hundreds of steps of attention on every dataset, and exact: fewer datasets tell as much.
PROGRAM_DATASETS = 32


@dataclass
class Identify:
    """Which algorithm does TARGET run? Ranks the references by what they leave of it unexplained, and tells how far the
    nearest, least squares, ridge and gradient descent are from it after each number of examples."""

    target: str
    """A run folder, a program file, module:function, or file.py:function."""
    task: str | None = None
    """Where datasets come from, as linear:features=8,noise=0.1,prior=1; by default a run's own task, data in a
    program's domain, a machine's number of features, or linear:features=8."""
    datasets: int | None = None
    """256 unless told (32 for a program)."""
    points: int | None = None
    """The in-context examples and the query; as many as TARGET reads, or 40."""
    seed: int = 0
    loops: int | None = None
    """How many loops, for an AlgoFormer."""
    json: Path | None = None
    """Also write the numbers there."""
    report: Path | None = None
    """Also write a page with figures into this folder."""

    def run(self, write_page: WritePage) -> None:
        subject = load_subject(self.target, self.task)
        predictor = as_predictor(subject.thing, loops=self.loops)
        for folder in filter(None, (self.report, self.json and self.json.parent)):
            folder.mkdir(parents=True, exist_ok=True)  # now, not after the work
        datasets = self.datasets or (PROGRAM_DATASETS if isinstance(subject.thing, Program) else DATASETS)
        with progress_bar() as told:
            said = interrogate(
                predictor,
                subject.task,
                target=self.target,
                progress=told,
                seed=self.seed,
                datasets=datasets,
                points=self.points,
            )
        tables.print_interrogation(said)
        if self.json:
            write_atomically(self.json, json.dumps(said.as_numbers(), indent=1).encode())
        if self.report:
            print(f"report {write_page(said, self.report)}")


@dataclass
class Probe:
    """At which layer and position can a quantity be read off TARGET's hidden states? The control task's score, that of
    the same probe asked for another dataset's quantity, stands beside every score."""

    target: str
    """A run folder, or module:name of a compiled machine, or of a function that makes one."""
    task: str | None = None
    """Where datasets come from, as linear:features=4,noise=0.1,prior=1; by default TARGET's own."""
    quantity: Literal["w", "moment"] = "w"
    """The weights w, or the moment vector Xᵀy."""
    step_size: float | None = None
    """Look for the w of online SGD with this step size …"""
    ridge: float | None = None
    """… or of ridge regression with this parameter; by default of the Bayes predictor: ridge, or least squares."""
    examples: int = 3
    """The quantity after so many examples."""
    probe: Literal["linear", "attention", "mlp"] = "linear"
    """One linear probe for each position, or one for all that finds the position by attention: linear or an MLP."""
    points: int | None = None
    """As many as TARGET reads, or 8."""
    datasets: int = 2048
    seed: int = 0

    def run(self) -> None:
        subject = load_subject(self.target, self.task)
        points = self.points or points_of(subject.thing)
        if not 0 < self.examples < points:
            raise EmulonError(f"examples must lie in 1 … {points - 1}, got {self.examples}")
        xs, ys = subject.task.sample(self.seed, self.datasets, points)
        states = hidden_states(subject.thing, xs, ys)
        if self.quantity == "moment":
            name, held = "Xᵀy", moments(xs, ys)
        else:
            algorithm = self.algorithm(subject.task)
            name, held = f"the w of {algorithm}", prefix_weights(algorithm, xs, ys)
        title = f"{name} after {self.examples} examples in {self.target}"
        target = held[:, self.examples]
        if self.probe == "linear":
            tables.print_scores(title, linear_probe(states, target, seed=self.seed))
        else:
            kind: Kind = "mlp" if self.probe == "mlp" else "linear"
            tables.print_attention(title, attention_probe(states, target, kind=kind, seed=self.seed))

    def algorithm(self, task: Task) -> Algorithm:
        if self.step_size is not None:
            return OnlineSGD(self.step_size)
        ridge = getattr(task, "bayes_ridge", 0.0) if self.ridge is None else self.ridge
        return RidgeRegression(ridge) if ridge else LeastSquares()


def points_of(thing: object) -> int:
    """As many points as it reads, the query included; 8 where it does not say."""
    try:
        return max(getattr(as_predictor(thing), "examples", None) or [7]) + 1
    except NotAPredictor:  # something that shows its hidden states and predicts nothing
        return 8


def identify_main(args: Sequence[str], write_page: WritePage) -> int:
    """`emulon identify TARGET …`; what writes the page is given, as drawing is done elsewhere."""
    return _run("identify", Identify, args, lambda read: read.run(write_page))


def probe_main(args: Sequence[str]) -> int:
    """`emulon probe TARGET …`"""
    return _run("probe", Probe, args, lambda read: read.run())


def _run(command: str, options: type[Any], args: Sequence[str], act: Callable[[Any], None]) -> int:
    """Read the options and act; what cannot be read or done is one line on stderr."""
    import tyro

    wants_help = any(arg in ("-h", "--help") for arg in args)
    config = (tyro.conf.PositionalRequiredArgs,)
    try:
        read = tyro.cli(options, args=list(args), prog=f"emulon {command}", console_outputs=wants_help, config=config)
    except SystemExit as stop:
        if not stop.code:
            return 0
        return _refuse(command, f"cannot read the options {' '.join(args) or '(none)'}; see emulon {command} --help")
    try:
        act(read)
    except (EmulonError, OSError) as error:
        return _refuse(command, str(error))
    return 0


def _refuse(command: str, reason: str) -> int:
    print(f"emulon {command}: {' '.join(reason.split())}", file=sys.stderr)
    return 2
