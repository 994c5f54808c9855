"""`emulon predict`: a fitted model on a new table."""

from __future__ import annotations

import csv
import io
import itertools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, shown

if TYPE_CHECKING:
    pass

EXAMPLES = """example:
  emulon run ridge --data houses.csv --target price
  emulon predict report/ridge.json new.csv --out predictions.csv
Columns are imputed, encoded and scaled as the training rows were. Where the table has the target, the score is told."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Predict the target, or targets, of every row of a table with a model that emulon run fitted."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """a file of emulon run, as report/ridge.json"""
    data: Positional[Annotated[Path, arg(metavar="TABLE")]]
    """FILE.csv (.parquet, .feather) with the model's columns"""
    out: Annotated[Path | None, shown("FILE.csv")] = None
    """write them there instead of to the terminal"""


def main(options: Options) -> int:
    from emulon.core.files import text_cell, write_atomically
    from emulon.tables.columns import Cells, read_columns
    from emulon.tables.model import load_models

    models = load_models(options.model)
    columns = read_columns(options.data)
    for model in models:
        model.require(columns, str(options.data))
    cells = Cells(columns)
    answers = [model.predict(cells) for model in models]
    for note in dict.fromkeys(note for model in models for note in model.notes(cells)):
        print(f"note: {note}", file=sys.stderr)
    names, text = [model.target for model in models], io.StringIO(newline="")
    lines = zip(itertools.count(1), *(column.tolist() for column in answers), strict=False)
    rows = [[text_cell(each) if isinstance(each, str) else each for each in row] for row in [("row", *names), *lines]]
    csv.writer(text, lineterminator="\n").writerows(rows)
    if options.out is None:
        print(text.getvalue(), end="")
    else:
        write_atomically(options.out, text.getvalue())
        told = f"{len(answers[0])} predictions of {', '.join(names)} by {models[0].algorithm}"
        print(f"{told} in {options.out}")
    for model, column in zip(models, answers, strict=True):
        if model.target not in columns:
            continue
        of = f"{model.target}: " if len(models) > 1 else ""
        print(of + model.scored(columns[model.target], column), file=sys.stderr)
    return 0
