"""`emulon predict`: a fitted model on a new table."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from emulon.commands.options import CommandOptions, shown

EXAMPLES = """example:
  emulon run ridge --data houses.csv --target price
  emulon predict report/ridge.json new.csv --out predictions.csv
Columns are imputed, encoded and scaled as the training rows were. Where the table has the target, the score is told."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Predict the target of every row of a table with a model that emulon run fitted."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """a file of emulon run, as report/ridge.json"""
    data: Positional[Annotated[Path, arg(metavar="TABLE")]]
    """FILE.csv (.parquet, .feather) with the model's columns"""
    out: Annotated[Path | None, shown("FILE.csv")] = None
    """write them there instead of to the terminal"""


def main(options: Options) -> int:
    from emulon.experiments.columns import Cells
    from emulon.experiments.data import score, targets_of
    from emulon.experiments.model import load_model
    from emulon.experiments.tables import Table, read_columns
    from emulon.files import write_atomically

    model = load_model(options.model)
    columns = read_columns(options.data)
    model.require(columns, str(options.data))
    cells = Cells(columns)
    answers = model.predict(cells)
    for note in model.notes(cells):
        print(f"note: {note}", file=sys.stderr)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([("row", model.target), *enumerate(answers.tolist(), start=1)])
    if options.out is None:
        print(text.getvalue(), end="")
    else:
        write_atomically(options.out, text.getvalue())
        print(f"{len(answers)} predictions of {model.target} by {model.algorithm} in {options.out}")
    if model.target in columns:
        _, measured = targets_of(Table(options.data.name, columns, model.target), model.kind)
        measure = "R²" if model.kind == "regression" else "accuracy"
        print(f"{measure} {score(model.kind, measured, answers):.4f} on {len(answers)} rows", file=sys.stderr)
    return 0
