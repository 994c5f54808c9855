"""`emulon predict`: a fitted model on a new table."""

from __future__ import annotations

import csv
import io
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, shown
from emulon.core.files import text_cell, write_atomically
from emulon.report.terminal import note, say
from emulon.tables.columns import Cells, read_columns
from emulon.tables.model import FittedModel, load_models

EXAMPLES = """examples:
  emulon run ridge --data houses.csv --target price
  emulon predict report/ridge.json new.csv --out predictions.csv
  emulon run logistic --data wine && emulon predict report/logistic.json new.csv --proba
Columns are imputed, encoded and scaled as the training rows were. Where the table has the target, the score is
printed."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Predict the target, or targets, of every row of a table with a model that emulon run fitted."""

    model: Positional[Annotated[Path, arg(metavar="MODEL")]]
    """a file of emulon run, as report/ridge.json"""
    data: Positional[Annotated[Path, arg(metavar="TABLE")]]
    """FILE.csv (.parquet, .feather) with the model's columns"""
    proba: bool = False
    """of logistic regression: a column with the probability of each class, too"""
    out: Annotated[Path | None, shown("FILE.csv")] = None
    """write them there instead of to the terminal"""


def main(options: Options) -> int:
    models, columns = load_models(options.model), read_columns(options.data)
    for model in models:
        model.require(columns, str(options.data))
    cells = Cells(columns)
    answers = {model.target: model.predict(cells) for model in models}
    shown = dict(answers)
    for model in models if options.proba else ():
        shares = model.probabilities(cells).T
        shown |= {f"{model.target}={name}": share for name, share in zip(model.classes, shares, strict=True)}
    for text in dict.fromkeys(text for model in models for text in model.notes(cells)):
        note(text)
    text, count = _as_csv(shown), len(answers[models[0].target])
    if options.out is not None:
        write_atomically(options.out, text)
        say(f"{count} predictions of {', '.join(answers)} by {models[0].algorithm} in {options.out}")
    elif options.json != "-":
        print(text, end="")
    scores = {model.target: _score(model, columns, answers[model.target], len(models) > 1) for model in models}
    return options.finish({"predictions": {name: column.tolist() for name, column in shown.items()}, "scores": scores})


def _as_csv(shown: dict[str, np.ndarray]) -> str:
    text = io.StringIO(newline="")
    lines = zip(itertools.count(1), *(column.tolist() for column in shown.values()), strict=False)
    rows = [[text_cell(each) if isinstance(each, str) else each for each in row] for row in [("row", *shown), *lines]]
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _score(model: FittedModel, columns: dict[str, list[str]], answers: np.ndarray, several: bool) -> str | None:
    """Print the score on standard error where the table has the target."""
    if model.target not in columns:
        return None
    score = model.scored(columns[model.target], answers)
    say(f"{model.target}: {score}" if several else score, err=True)
    return score
