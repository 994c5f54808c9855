"""What run, compile and exec share: where the data come from, how the descent is compiled, and the weights."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from emulon.commands.names import registered
from emulon.commands.options import BadUsage, CommandOptions, Count, Positive, Seed, Size, shown
from emulon.errors import unknown
from emulon.experiments import DATASETS
from emulon.files import write_atomically

if TYPE_CHECKING:
    from emulon.algorithms.link import Kind
    from emulon.experiments.data import Data
    from emulon.interpreter import Run

# (program, feature, weight)
Weight = tuple[str, str, float]


@dataclass(frozen=True, kw_only=True)
class DataOptions(CommandOptions):
    data: Annotated[str, shown("DATA")] = "diabetes"
    """diabetes (default), breast_cancer, wine, ames or FILE.csv"""
    target: Annotated[str | None, shown("COLUMN")] = None
    """the column of FILE.csv to predict"""
    features: Annotated[Size | None, shown("K")] = None
    """keep the K most correlated with the target (ames: 20; 0: all)"""
    seed: Seed = 0
    """of the split into training and held-out rows"""

    def check(self, *algorithms: str) -> None:
        """Refuse names that do not exist, before anything heavy is imported."""
        known = registered("algorithms")
        for name in algorithms:
            plain = name.lower().replace("-", "_")
            if not {plain, f"{plain}_regression"} & known:
                raise BadUsage(unknown("algorithm", name, known))
        if self.data not in DATASETS and not Path(self.data).exists():
            raise BadUsage(f"{unknown('data', self.data, DATASETS)} (a CSV file is given by its path)")

    def load(self, kind: Kind | None) -> Data:
        from emulon.experiments.data import load

        data = load(self.data, self.target, kind=kind, features=self.features, seed=self.seed)
        for note in data.notes:
            print(f"note: {note}", file=sys.stderr)
        return data


@dataclass(frozen=True, kw_only=True)
class DescentOptions(DataOptions):
    steps: Count = 200
    """steps of gradient descent"""
    tolerance: Positive = 1e-8
    """on the final weights"""


def weights_of(run: Run, data: Data) -> list[Weight]:
    """Class by class where there are several."""
    rows = run.weights.reshape(-1, run.weights.shape[-1]).tolist()
    classes = [f" [{name}]" for name in data.classes] if len(rows) > 1 else [""]
    return [
        (run.program.name, f"{feature}{name}", weight)
        for row, name in zip(rows, classes, strict=True)
        for feature, weight in zip(data.features, row, strict=True)
    ]


def save_weights(weights: list[Weight], path: Path) -> None:
    """To the last bit: repr of a float reads back as the same float."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("program", "feature", "weight"), *((p, f, repr(w)) for p, f, w in weights)])
    write_atomically(path, text.getvalue())
