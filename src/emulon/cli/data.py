"""What run, compile, exec and export share: where the data come from, how the descent is compiled, and the weights."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from tyro.conf import UseAppendAction, arg

from emulon.algorithms.losses import Kind
from emulon.cli.options import BadUsage, CommandOptions, Count, Factor, NotNegative, Positive, Seed, Size, shown
from emulon.core.files import text_cell, write_atomically
from emulon.interpreter import Program, Run
from emulon.interpreter.compiler import tolerance_missed
from emulon.report.terminal import note, say
from emulon.tables.columns import DATASETS
from emulon.tables.data import INTERCEPT, Choices, Data, load, load_each

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
        """The data of one target; prints how its columns are treated."""
        data = load(self.data or DATASETS[0], self.target, **self._choices(kind))
        self._print_treatment((data,))
        return data

    def load_each(self, kind: Kind | None) -> tuple[Data, ...]:
        """The data once for each target; prints how columns are treated."""
        every = load_each(self.data or DATASETS[0], self.target, **self._choices(kind))
        self._print_treatment(every)
        return every

    def _choices(self, kind: Kind | None) -> Choices:
        if kind is not None and self.kind is not None and kind != self.kind:
            raise BadUsage(f"--kind is {self.kind}, and the algorithms named are for {kind}")
        return {
            "kind": kind or self.kind,
            "features": self.features,
            "seed": self.seed,
            "standardize": self.standardize,
            "intercept": self.intercept,
            "treat": self.as_,
        }

    def _print_treatment(self, every: tuple[Data, ...]) -> None:
        use_threads(every[0].x_train.numel())
        say(*(f"data: {treatment}" for treatment in dict.fromkeys(data.treatment for data in every)))
        taken = {name: reason for data in every for name, reason in data.taken}
        if self.data in (None, *DATASETS):  # the kinds of their columns are known
            taken = {name: reason for name, reason in taken.items() if reason != "number"}
        width = min(32, max(map(len, taken), default=0))
        say(*(f"column {name:<{width}}  {reason}" for name, reason in taken.items()))
        for text in dict.fromkeys(text for data in every for text in data.notes):
            note(text)


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
    """To the last bit: repr of a float reads back as the same float. A name such as "=a" is written as "'=a"."""
    text = io.StringIO(newline="")
    lines = [(text_cell(name), text_cell(feature), repr(weight), repr(own)) for name, feature, weight, own in weights]
    csv.writer(text).writerows([("program", "feature", "weight", "original units"), *lines])
    write_atomically(path, text.getvalue())
