"""`emulon identify` and `emulon probe`: the numbers as tables. Bad input is one line and exit code 2."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emulon.algorithms import LeastSquares, OnlineSGD
from emulon.errors import EmulonError
from emulon.interrogate.hidden_states import hidden_states
from emulon.interrogate.identification import Identification
from emulon.interrogate.identify import identify
from emulon.interrogate.linear_probe import ProbeScores, linear_probe
from emulon.interrogate.probe_target import moments, prefix_weights
from emulon.interrogate.task import LinearTask
from emulon.predictor import load_object, load_predictor


def read_task(text: str) -> LinearTask:
    """`linear`, or `linear:features=8,noise=0.1,prior=1`."""
    name, _, rest = text.partition(":")
    if name != "linear":
        raise EmulonError(f"unknown task {name!r}; write linear:features=8,noise=0.1,prior=1")
    kinds = {field.name: int if field.name == "features" else float for field in dataclasses.fields(LinearTask)}
    settings: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        try:
            settings[key] = kinds[key](value)
        except (KeyError, ValueError):
            raise EmulonError(f"cannot read {part!r} in --task; write {', '.join(kinds)} = a number") from None
    return LinearTask(**settings)


@dataclass
class Identify:
    """Which algorithm does TARGET run? Ranks the references by what they leave of it unexplained."""

    target: str
    """A run folder, a program file, module:function, or file.py:function."""
    task: str = "linear:features=8"
    """Where datasets come from, as linear:features=8,noise=0.1,prior=1."""
    datasets: int = 256
    points: int = 40
    """The in-context examples and the query."""
    seed: int = 0
    loops: int | None = None
    """How many loops, for an AlgoFormer."""
    json: Path | None = None
    """Also write the numbers there."""

    def run(self) -> None:
        predictor = load_predictor(self.target, loops=self.loops)
        found = identify(predictor, read_task(self.task), seed=self.seed, datasets=self.datasets, points=self.points)
        print_ranking(self.target, found)
        if self.json:
            self.json.write_text(json.dumps(as_numbers(found, self.target, self.task, self.seed), indent=1))


@dataclass
class Probe:
    """At which layer and position can a quantity be read linearly off TARGET's hidden states?"""

    target: str
    """A run folder, or module:name of a compiled machine, or of a function that makes one."""
    task: str = "linear:features=4"
    """Where datasets come from, as linear:features=4,noise=0.1,prior=1."""
    quantity: Literal["w", "moment"] = "w"
    """w, the least-squares weights (or --step-size's), or the moment vector Xᵀy."""
    step_size: float | None = None
    """Look for the w of online SGD with this step size."""
    examples: int = 3
    """The quantity after so many examples."""
    points: int = 8
    datasets: int = 512
    seed: int = 0

    def run(self) -> None:
        if not 0 < self.examples < self.points:
            raise EmulonError(f"examples must lie in 1 … {self.points - 1}, got {self.examples}")
        xs, ys = read_task(self.task).sample(self.seed, self.datasets, self.points)
        algorithm = LeastSquares() if self.step_size is None else OnlineSGD(self.step_size)
        held = moments(xs, ys) if self.quantity == "moment" else prefix_weights(algorithm, xs, ys)
        states = hidden_states(load_object(self.target), xs, ys)
        scores = linear_probe(states, held[:, self.examples], seed=self.seed)
        print_scores(f"{self.quantity} after {self.examples} examples in {self.target}", scores)


def identify_main(args: Sequence[str]) -> int:
    """`emulon identify TARGET --task …`"""
    return _run("identify", Identify, args)


def probe_main(args: Sequence[str]) -> int:
    """`emulon probe TARGET --task …`"""
    return _run("probe", Probe, args)


def print_ranking(target: str, found: Identification) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{target}: {found.algorithm}")
    for column in ("reference", "unexplained", "95% interval", ""):
        table.add_column(column)
    for match in found.ranking:
        share = match.unexplained
        mark = "tie" if match.name in found.ties else "named" if match is found.nearest and found.found else ""
        table.add_row(str(match), f"{share.value:.3g}", f"{share.low:.3g} … {share.high:.3g}", mark)
    console = Console()
    console.print(table)
    console.print(str(found), markup=False, highlight=False)


def print_scores(title: str, scores: ProbeScores) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"R² (control) of {title}")
    table.add_column("layer", justify="right")
    for token in scores.tokens:
        table.add_column(token, justify="right")
    for layer, (row, control) in enumerate(zip(scores.score.tolist(), scores.control.tolist(), strict=True)):
        table.add_row(str(layer), *(f"{r:.2f} ({c:.2f})" for r, c in zip(row, control, strict=True)))
    Console(width=12 + 16 * len(scores.tokens)).print(table)


def as_numbers(found: Identification, target: str, task: str, seed: int) -> dict[str, Any]:
    """Everything the ranking says, for a report to draw."""
    return {
        "target": target,
        "task": task,
        "seed": seed,
        "counts": found.counts,
        "datasets": found.datasets,
        "algorithm": found.algorithm,
        "ties": found.ties,
        "limit": found.limit,
        "ranking": [dataclasses.asdict(match) for match in found.ranking],
    }


def _run(command: str, options: type[Identify] | type[Probe], args: Sequence[str]) -> int:
    """Read the options and run; what cannot be read or done is one line on stderr."""
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
        read.run()
    except (EmulonError, OSError) as error:
        return _refuse(command, str(error))
    return 0


def _refuse(command: str, reason: str) -> int:
    print(f"emulon {command}: {' '.join(reason.split())}", file=sys.stderr)
    return 2
