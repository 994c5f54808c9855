"""How columns of a table become columns of a matrix: fitted on the training rows, in plain numbers for a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from emulon.tables.tables import BadData, Table, is_missing, listed, numbers_of

MOST_LEVELS = 20
GAP = "missing"
# Variance below this, relative to the numbers' squares, is a constant and rounding.
CONSTANT = 1e-12


class Cells:
    """A table's columns, each read once, as numbers or as levels."""

    def __init__(self, columns: Mapping[str, Sequence[str]]) -> None:
        self.columns = columns
        self._numbers: dict[str, np.ndarray] = {}
        self._levels: dict[str, np.ndarray] = {}

    def numbers(self, name: str) -> np.ndarray:
        """NaN where a cell is missing."""
        if name not in self._numbers:
            cells = self.columns[name]
            empty = np.full(len(cells), np.nan)
            numbers = empty if all(map(is_missing, cells)) else numbers_of(cells)
            if numbers is None:
                raise BadData(f"column {name!r} holds text where the model was fitted to numbers; mend those cells")
            if np.isinf(numbers).any():
                row = np.isinf(numbers).argmax() + 1
                raise BadData(f"column {name!r} holds an infinite number in row {row}; correct or remove that row")
            self._numbers[name] = numbers
        return self._numbers[name]

    def levels(self, name: str) -> np.ndarray:
        if name not in self._levels:
            self._levels[name] = np.array([GAP if is_missing(cell) else cell for cell in self.columns[name]])
        return self._levels[name]


@dataclass(frozen=True)
class Column:
    """(value − center)/size. A number's value is the cell, or `fill` where it is missing; a level's is 1 where the cell
    is one of `levels` (or, for `others`, none of them) and 0 elsewhere. `low` and `high` are the training rows'."""

    name: str
    source: str
    center: float = 0.0
    size: float = 1.0
    fill: float = 0.0
    low: float = 0.0
    high: float = 1.0
    levels: tuple[str, ...] | None = None
    others: bool = False

    def values(self, cells: Cells) -> np.ndarray:
        """In the table's own units."""
        if self.levels is not None:
            found: np.ndarray = np.isin(cells.levels(self.source), self.levels, invert=self.others).astype(np.float64)
            return found
        numbers = cells.numbers(self.source)
        return np.where(np.isnan(numbers), self.fill, numbers)


@dataclass(frozen=True)
class Preparation:
    """The columns, what was left out and why, and the sentence that says what was done to the rest."""

    columns: tuple[Column, ...]
    notes: tuple[str, ...]
    done: tuple[str, ...]


def matrix(columns: Sequence[Column], cells: Cells) -> np.ndarray:
    return np.column_stack([(column.values(cells) - column.center) / column.size for column in columns])


def prepared(table: Table, cells: Cells, train: np.ndarray, *, standardize: bool, intercept: bool) -> Preparation:
    """Numbers imputed by their mean, and scaled; text one-hot, rare levels together; constant columns dropped.

    With an intercept all columns are centred; standardised numbers are, with or without one.
    """
    notes: list[str] = []
    found: list[Column] = []
    gaps, words = [], []
    for name, text in table.columns.items():
        if name == table.target or name in table.beside:
            continue
        numbers = numbers_of(text)
        if numbers is not None and np.isinf(numbers).any():
            raise BadData(f"column {name!r} of {table.name} holds an infinite number; correct or remove that row")
        if len(set(text)) == 1:
            notes.append(f"left out column {name!r}: it is constant")
        elif numbers is None and len(set(text)) == len(text):
            notes.append(f"left out column {name!r}: its text differs in every row")
        elif numbers is not None:
            found.append(_number(name, numbers[train]))
            gaps += [name] if np.isnan(numbers).any() else []
        else:
            words.append(name)
            found += _levels(name, cells.levels(name)[train])
    if not found:
        raise BadData(f"{table.name} has no feature to learn from{': ' + '; '.join(notes) if notes else ''}")
    kept = tuple(_scaled(found, matrix(found, cells)[train], standardize, intercept))
    if not kept:
        raise BadData(f"every feature of {table.name} is constant on the training rows")
    return Preparation(kept, tuple(notes), tuple(_done(kept, gaps, words, standardize, intercept)))


def _number(name: str, numbers: np.ndarray) -> Column:
    known = numbers[~np.isnan(numbers)]
    if not known.size:
        return Column(name, name, high=0.0)
    return Column(name, name, fill=float(known.mean()), low=float(known.min()), high=float(known.max()))


def _levels(name: str, cells: np.ndarray) -> list[Column]:
    """One column a level; of more than MOST_LEVELS the most frequent, and one for all others."""
    levels, counts = np.unique(cells, return_counts=True)
    if len(levels) <= MOST_LEVELS:
        return [Column(f"{name}={level}", name, levels=(str(level),)) for level in levels]
    frequent = tuple(sorted(str(level) for level in levels[np.argsort(-counts, kind="stable")[: MOST_LEVELS - 1]]))
    others = Column(f"{name}=other", name, levels=frequent, others=True)
    return [*(Column(f"{name}={level}", name, levels=(level,)) for level in frequent), others]


def _scaled(columns: Sequence[Column], rows: np.ndarray, standardize: bool, intercept: bool) -> Iterator[Column]:
    """Those that are not constant, with center and size; scikit-learn's sums are more careful than a plain mean."""
    from sklearn.preprocessing import StandardScaler

    fitted, largest = StandardScaler().fit(rows), np.abs(rows).max(axis=0)
    for column, mean, size, varied in zip(
        columns, fitted.mean_, fitted.scale_, fitted.var_ > CONSTANT * largest**2, strict=True
    ):
        number = column.levels is None
        center = float(mean) if intercept or (number and standardize) else 0.0
        if varied:
            yield replace(column, center=center, size=float(size) if number and standardize else 1.0)


def _done(
    columns: Sequence[Column], gaps: Sequence[str], words: Sequence[str], standardize: bool, intercept: bool
) -> list[str]:
    numbers = [column.source for column in columns if column.levels is None]
    how = "standardised" if standardize else "centred" if intercept else "left as they are"
    levels = len(columns) - len(numbers)
    said = [f"{len(numbers)} {'numbers' if len(numbers) > 1 else 'number'} {how}"] if numbers else []
    said += [f"gaps in {listed(gaps, 3)} filled with the mean"] if gaps else []
    said += [f"{listed(words, 3)} one-hot ({levels} levels)"] if words else []
    return said
