"""What run, compile and exec share: where the data come from, how the descent is compiled, and the weights."""

from __future__ import annotations

import csv
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import UseAppendAction, arg

from emulon.cli.names import registered
from emulon.cli.options import BadUsage, CommandOptions, Count, Factor, NotNegative, Positive, Seed, Size, shown
from emulon.core.errors import unknown
from emulon.core.files import text_cell, write_atomically
from emulon.tables import DATASETS

if TYPE_CHECKING:
    from emulon.algorithms.link import Kind
    from emulon.interpreter import Program, Run
    from emulon.tables.data import Choices, Data

SETTINGS = ("step_size", "penalty", "l1_ratio", "tau", "delta", "momentum")
# Numbers in a table that one thread works through as fast as several.
SMALL_TABLE = 100_000
# (program, feature, weight, the same in the columns' own units)
Weight = tuple[str, str, float, float]


@dataclass(frozen=True, kw_only=True)
class DataOptions(CommandOptions):
    data: Annotated[str, shown("DATA")] = "diabetes"
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

    def check(self, *algorithms: str) -> None:
        """Refuse names that do not exist, before anything heavy is imported."""
        known = registered("algorithms")
        for name in algorithms:
            plain = name.lower().replace("-", "_")
            if not {plain, f"{plain}_regression"} & known:
                raise BadUsage(unknown("algorithm", name, known))
        if self.data not in DATASETS and not Path(self.data).exists():
            raise BadUsage(f"{unknown('data', self.data, DATASETS)} (a file is given by its path)")

    def load(self, kind: Kind | None) -> Data:
        """The data, where one target is all that is taken."""
        from emulon.tables.data import load

        return self._told((load(self.data, self.target, **self._choices(kind)),))[0]

    def load_each(self, kind: Kind | None) -> tuple[Data, ...]:
        """The data once for each target."""
        from emulon.tables.data import load_each

        return self._told(load_each(self.data, self.target, **self._choices(kind)))

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

    def _told(self, every: tuple[Data, ...]) -> tuple[Data, ...]:
        """What was done to the data, each thing said once."""
        use_threads(every[0].x_train.numel())
        for treatment in dict.fromkeys(data.treatment for data in every):
            print(f"data: {treatment}")
        taken = {name: reason for data in every for name, reason in data.taken}
        if self.data in DATASETS:  # whose columns are known, and only what is done to some of them is news
            taken = {name: reason for name, reason in taken.items() if reason != "number"}
        width = max(map(len, taken), default=0)
        for name, reason in taken.items():
            print(f"column {name:<{min(width, 32)}}  {reason}")
        for note in dict.fromkeys(note for data in every for note in data.notes):
            print(f"note: {note}", file=sys.stderr)
        return every


def use_threads(numbers: int) -> None:
    """One thread for a small table, unless the environment says how many: what is shared out is less than the waiting.

    On a busy machine of two cores 200 steps on 32 rows took 27 s with two threads and 2 s with one.
    """
    import torch

    if numbers <= SMALL_TABLE and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


@dataclass(frozen=True, kw_only=True)
class DescentOptions(DataOptions):
    steps: Count = 200
    """steps of gradient descent"""
    tolerance: Annotated[Positive | None, shown("NUMBER")] = None
    """on the final weights; by default they come as near to 1e-8 as they can"""
    step_size: Annotated[Positive | None, shown("NUMBER")] = None
    """of every algorithm; by default each takes the one that suits the data"""
    penalty: Annotated[NotNegative | None, shown("NUMBER")] = None
    """of those that have one (ridge, lasso, elastic_net, logistic, …; 0.1 by default)"""
    l1_ratio: Annotated[NotNegative | None, shown("SHARE")] = None
    """of elastic_net: the penalty's share on ‖w‖₁ (0.5)"""
    tau: Annotated[Positive | None, shown("SHARE")] = None
    """of quantile: which quantile (0.5)"""
    delta: Annotated[Positive | None, shown("NUMBER")] = None
    """of huber: where squares end (1.35)"""
    momentum: Annotated[NotNegative | None, shown("SHARE")] = None
    """of heavy_ball (0.9)"""
    margin: Annotated[Factor, shown("FACTOR")] = 1.0
    """compile for data so many times as large as the training rows, as 1.1, so that others may be run, too"""

    def tell(self, program: Program) -> None:
        """A note where the program cannot keep the tolerance that was asked for, in the words of the refusals."""
        from emulon.interpreter.compiler import tolerance_missed

        if self.tolerance is not None and (missed := tolerance_missed(program, self.tolerance)):
            print(f"note: {missed}", file=sys.stderr)

    @property
    def settings(self) -> dict[str, float]:
        """Those that were given."""
        every = {name: getattr(self, name) for name in SETTINGS}
        return {name: value for name, value in every.items() if value is not None}


def weights_of(run: Run, data: Data) -> list[Weight]:
    """Class by class where there are several; the intercept last."""
    import numpy as np

    from emulon.tables.data import INTERCEPT

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
