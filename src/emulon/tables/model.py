"""A fitted model as a small file: how a table's columns are read, the weights, and the way back to the target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from emulon.algorithms.losses import Kind
from emulon.core.errors import nearest
from emulon.core.files import checked, read_json, write_json
from emulon.interpreter import Run
from emulon.tables.columns import GAP, BadData, Column, Table, is_missing, level_of, listed, matrix
from emulon.tables.data import Data, score, targets_of

FORMAT = 5
# A number this part of the training rows' range beyond its end is only a little outside.
MARGIN = 0.1
# The algorithm whose scores are log-odds.
PROBABILITIES = "logistic_regression"
Response = Literal["number", "rate", "class"]
# A table's cells as text, by the column's name, as `read_columns` returns them.
Columns = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class FittedModel:
    """Weights of one algorithm for one target; scores are in the target's units.

    Attributes:
        algorithm: The algorithm's name.
        target: The target's name.
        kind: Regression or classification.
        response: What a score becomes: the number itself, its exponential, or a class.
        classes: The classes' names; empty for regression.
        columns: How features are read from a table.
        weights: (classes, features), of columns in their own units; one row for two classes.
        intercepts: One for each row of weights.
        baseline: The answer without any feature: the training rows' mean or most frequent class.
        bound: The proved bound on the error of this run's weights.
    """

    algorithm: str
    target: str
    kind: Kind
    response: Response
    classes: tuple[str, ...]
    columns: tuple[Column, ...]
    weights: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]
    baseline: str
    bound: float

    @classmethod
    def of(cls, name: str, run: Run, data: Data) -> FittedModel:
        loss = run.program.loss
        weights, intercepts = data.original(np.atleast_2d(run.weights.double().numpy()), loss)
        classes = tuple(map(str, data.classes)) if data.kind == "classification" else ()
        return cls(
            algorithm=name,
            target=data.target,
            kind=data.kind,
            response="class" if classes else "rate" if loss.link.name == "rate" else "number",
            classes=classes,
            columns=data.columns,
            weights=tuple(map(tuple, weights.tolist())),
            intercepts=tuple(intercepts.tolist()),
            baseline=repr(data.baseline) if data.kind == "regression" else str(data.baseline),
            bound=run.bounds.bound,
        )

    def predict(self, cells: Columns) -> np.ndarray:
        """For every row of a table, its columns by name: numbers, or the names of classes.

        Raises:
            BadData: A prediction is too large for float64.
        """
        scores = self._scores(cells)
        if self.response != "class":
            return scores[:, 0]
        chosen = scores.argmax(axis=1) if len(self.classes) > 2 else (scores[:, 0] > 0).astype(int)
        classes: np.ndarray = np.array(self.classes)[chosen]
        return classes

    def probabilities(self, cells: Columns) -> np.ndarray:
        """(rows, classes) of logistic regression; one-vs-rest probabilities are scaled to sum to one.

        Raises:
            BadData: The model is of another algorithm, whose scores are no log-odds.
        """
        if self.algorithm != PROBABILITIES:
            raise BadData(f"{self.algorithm} gives no probabilities; {PROBABILITIES} does")
        scores = self._scores(cells)
        shares = torch.from_numpy(scores if len(self.classes) > 2 else np.hstack([-scores, scores])).sigmoid().numpy()
        found: np.ndarray = shares / shares.sum(axis=1, keepdims=True)
        return found

    def _scores(self, cells: Columns) -> np.ndarray:
        with np.errstate(all="ignore"):
            scores: np.ndarray = matrix(self.columns, cells) @ np.array(self.weights).T + np.array(self.intercepts)
            scores = np.exp(scores) if self.response == "rate" else scores
        bad = ~np.isfinite(scores).all(axis=1)
        if bad.any():
            raise BadData(
                f"the prediction for row {bad.argmax() + 1} is not finite; are its numbers in the right units?"
            )
        return scores

    def require(self, cells: Columns, name: str) -> None:
        """Refuse a table that lacks a column."""
        for column in self.columns:
            if column.name not in cells:
                there = f"{nearest(column.name, cells)}; its columns are {listed(list(cells))}"
                raise BadData(f"{name} has no column {column.name!r}, which the model needs{there}")

    def notes(self, cells: Columns) -> list[str]:
        """What a reader of the predictions should know: gaps filled, levels never seen, numbers far outside."""
        said = []
        for column in self.columns:
            own = cells[column.name]
            if column.kind == "category":
                new = sorted({level_of(cell) for cell in own} - {*column.known, GAP})
                if new and not column.others:
                    there = f"{column.name!r} has values that training rows did not: {listed(new, 3)}"
                    said.append(f"{there}; they count as none")
                continue
            values = column.numbers(own)
            if text := [cell for cell, value in zip(own, values, strict=True) if math.isnan(value)]:
                marks = listed([repr(cell)[:20] for cell in dict.fromkeys(text) if cell], 3)
                where = f"{column.name!r} ({marks})" if marks else repr(column.name)
                said.append(f"{len(text)} missing in {where}, filled with the training rows' mean {column.fill:g}")
            slack = MARGIN * (column.high - column.low)
            far = values[(values < column.low - slack) | (values > column.high + slack)]
            if far.size:
                worst = far[np.abs(far - column.fill).argmax()]
                said.append(
                    f"{far.size} of {len(values)} rows lie outside the training rows in {column.name!r} (one has "
                    f"{worst:g}, those had {column.low:g} to {column.high:g}): the model extrapolates there"
                )
        return said

    def scored(self, cells: Sequence[str], answers: np.ndarray) -> str:
        """How good answers are on the rows whose target is known, beside the baseline; classes may be new ones."""
        known = [row for row, cell in enumerate(cells) if not is_missing(cell)]
        least, measure = (2, "R²") if self.kind == "regression" else (1, "accuracy")
        if len(known) < least:
            return f"{measure} cannot be told: {len(known)} of {len(cells)} rows have a target"
        targets = np.array([cells[row] for row in known])
        baseline: str | float = self.baseline
        if self.kind == "regression":
            _, targets = targets_of(Table("the table", {self.target: targets.tolist()}, self.target), self.kind)
            baseline = float(baseline)
        usual = score(self.kind, targets, np.full(len(known), baseline))
        what = "the training rows' mean" if self.kind == "regression" else f"always {self.baseline!r}"
        return f"{measure} {score(self.kind, targets, answers[known]):.4f} on {len(known)} rows ({what}: {usual:.4f})"


@dataclass(frozen=True)
class ModelFile:
    """One algorithm's models, one for each target."""

    format: int
    emulon: str
    models: tuple[FittedModel, ...]


def save_models(models: Sequence[FittedModel], path: Path) -> None:
    """Write models as JSON; every number reads back as the same number.

    Args:
        models: One algorithm's, one for each target.
        path: The file.
    """
    write_json(path, asdict(ModelFile(FORMAT, version("emulon"), tuple(models))))


def load_models(path: Path) -> tuple[FittedModel, ...]:
    """The models in a file that `save_models` wrote.

    Args:
        path: The file.

    Returns:
        One model for each target.

    Raises:
        BadData: The file cannot be read, is of another format, or holds no models that can predict.
    """
    try:
        table = read_json(path)
        if isinstance(table, dict) and table.get("format", FORMAT) != FORMAT:
            raise ValueError("it is of another format than this emulon reads; fit it again with emulon run")
        models: tuple[FittedModel, ...] = checked(ModelFile, table, "the file").models
        if not models:
            raise ValueError("it holds no model")
        for model in models:
            _require_sound(model)
    except ValueError as error:
        why = " ".join(str(error).split())
        raise BadData(f"{path} is not a model that emulon run wrote (such as report/ridge.json): {why}") from None
    return models


def _require_sound(model: FittedModel) -> None:
    """Refuse (ValueError) a model whose parts do not fit each other, or whose numbers make no sense."""
    classes, rows = len(model.classes), len(model.weights)
    several = model.response == "class"
    if several != (model.kind == "classification") or (classes >= 2) != several:
        raise ValueError(f"it is a {model.kind} with {classes} classes")
    if rows != (classes if classes > 2 else 1) or len(model.intercepts) != rows:
        raise ValueError(f"it has {rows} rows of weights and {len(model.intercepts)} intercepts for {classes} classes")
    for column in model.columns:
        most = len(column.levels) if column.kind == "category" else 1
        if column.low > column.high or (column.kind == "date" and not column.formats):
            raise ValueError(f"its column {column.name!r:.40} has no range or no formats")
        if not column.kept or not all(0 <= k < most for k in column.kept):
            raise ValueError(f"its column {column.name!r:.40} has not the levels {column.kept}")
    if any(len(row) != sum(len(column.kept) for column in model.columns) or not row for row in model.weights):
        raise ValueError("it has not as many weights as features")
    if several and model.baseline not in model.classes:
        raise ValueError(f"its baseline {model.baseline!r:.40} is none of its classes")
    numbers = [*model.intercepts, *itertools.chain(*model.weights), *([] if several else [float(model.baseline)])]
    numbers += [number for column in model.columns for number in (column.fill, column.low, column.high)]
    if not all(map(math.isfinite, numbers)) or not model.bound >= 0:
        raise ValueError("it has numbers that are not finite, or a negative bound")
