"""Columns of a table: read as text, recognised as numbers, dates or categories, and turned into columns of a matrix.

Everything that reads a cell is a `Column` of plain values, so that a fitted model can be kept as JSON.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from emulon.core.errors import EmulonError, nearest, unknown

# pandas is imported where it is used, for dates and frames: loading it takes a third of a second.
if TYPE_CHECKING:
    import pandas

DATASETS = ("diabetes", "breast_cancer", "wine", "ames")
FRAMES = (".parquet", ".feather")
# Cells that stand for a missing value, without regard to case; and others that do so among numbers and dates.
MISSING = frozenset(["", "na", "n/a", "n.a.", "#n/a", "nan", "null", "<na>", "?"])
MARKS = MISSING | frozenset(["nil", "none", "missing", "unknown", "-", "--", "–", "—"])
MARKS |= frozenset([".", "..", "...", "*", "#value!", "#div/0!"])
# A column is of numbers, or of dates, where this share of its cells that are not missing can be read so.
ENOUGH = 0.9
MOST_LEVELS = 20
GAP = "missing"
IDENTIFIERS = re.compile(r"(.*[^a-z])?(id|ids|uuid|guid|index|idx|row|nr|no|number|key|unnamed: 0)", re.IGNORECASE)

ColumnKind = Literal["number", "date", "category"]
Treatment = Literal["number", "date", "category", "drop"]
Decimal = Literal[".", ","]
TREATMENTS = ("number", "category", "date", "drop")

ISO = "ISO8601"
MONTH_FIRST, DAY_FIRST = "%m/%d/%Y", "%d/%m/%Y"
DAYS: tuple[str, ...] = (ISO, "%d.%m.%Y", MONTH_FIRST, DAY_FIRST, "%Y/%m/%d", "%d-%m-%Y", "%d.%m.%y", "%d %b %Y")
DAYS += ("%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y")
FORMATS = (*DAYS, *(f"{day} {time}" for day in DAYS[1:] for time in ("%H:%M", "%H:%M:%S")))
ISO_CELL = r"\d{4}-\d\d?-\d\d?(?:[T ].*)?"
# A minus sign, and spaces that do not break, as they are typed.
PLAIN_SIGNS = str.maketrans("\u2212\u00a0\u202f", "-  ")
_CURRENCY = r"(?:[$€£¥₹%]|USD|EUR|GBP|CHF)"
_AROUND = re.compile(rf"[<>≤≥~≈=±]*\s*([-+]?)\s*{_CURRENCY}?\s*(.*?)\s*{_CURRENCY}?")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|[-+]?inf(?:inity)?", re.IGNORECASE)
_GROUPED = {
    ".": re.compile(r"[-+]?[1-9]\d{0,2}(?:[,'’ ]\d{3})+(?:\.\d*)?"),
    ",": re.compile(r"[-+]?[1-9]\d{0,2}(?:[.'’ ]\d{3})+(?:,\d*)?"),
}


class BadData(EmulonError):
    """A table that cannot be learned from, with the reason and what to do.

    Cure: mend the column or row that the message names, or choose another `--target`.
    """


@dataclass(frozen=True)
class Table:
    """Columns of text, the name of the target, and the names of other targets, which are no features of this one."""

    name: str
    columns: dict[str, list[str]]
    target: str
    beside: tuple[str, ...] = ()


def read_columns(path: Path) -> dict[str, list[str]]:
    """Every column of a table with a header, as text.

    Args:
        path: A CSV file of commas, semicolons or tabs, a Parquet or a Feather file.

    Returns:
        Cells by column name, stripped of surrounding spaces.

    Raises:
        BadData: The file is missing, is no table, or has no rows; the message names the line.
    """
    if not path.exists():
        raise BadData(f"{unknown('data', str(path), DATASETS)} (a file is given by its path)")
    if path.suffix.lower() in FRAMES:
        return _of_frame(path)
    lines = _lines(path)
    if not lines:
        raise BadData(f"{path} is empty")
    header = [name or f"column {i}" for i, name in enumerate(lines[0][1], start=1)]
    if len(header) < 2:
        raise BadData(f"{path} is not a table: its first line has one field only; give comma-separated columns")
    if doubled := {name for name in header if header.count(name) > 1}:
        raise BadData(f"{path} has two columns called {min(doubled)!r}; rename one")
    if len(lines) == 1:
        raise BadData(f"{path} has a header and no rows")
    for number, row in lines:
        if len(row) != len(header):
            raise BadData(f"{path} is not a table: line {number} has {len(row)} field(s), not {len(header)}")
    return dict(zip(header, map(list, zip(*(row for _, row in lines[1:]), strict=True)), strict=True))


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The fields of every line that is not blank, separated by commas, semicolons or tabs, and the line's number."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BadData(f"{path} is not text in UTF-8; save it as CSV in UTF-8") from None
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from None
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        return [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(map(str.strip, row))]
    except csv.Error as error:
        raise BadData(f"{path} is not a table: line {reader.line_num}: {error}") from None


def _of_frame(path: Path) -> dict[str, list[str]]:
    import pandas

    try:
        frame = (pandas.read_parquet if path.suffix.lower() == ".parquet" else pandas.read_feather)(path)
    except ImportError:
        raise BadData(f"{path} needs pyarrow; install it with: pip install 'emulon[data]'") from None
    except (OSError, ValueError) as error:  # pyarrow's refusals are among these
        raise BadData(f"{path} cannot be read: {next(iter(str(error).splitlines()), type(error).__name__)}") from None
    if frame.empty:
        raise BadData(f"{path} has no rows")
    return columns_of(frame)


def columns_of(frame: pandas.DataFrame) -> dict[str, list[str]]:
    """A DataFrame's columns as text; a missing value is empty, and a number reads back as itself."""
    gaps = frame.isna()
    return {
        str(name): ["" if gap else str(v) for v, gap in zip(frame[name], gaps[name], strict=True)] for name in frame
    }


def is_missing(cell: str) -> bool:
    """Whether a cell is empty or holds a mark of a missing value that is no category."""
    return cell.strip().lower() in MISSING


def is_marked(cell: str) -> bool:
    """Whether a cell among numbers or dates is missing."""
    return cell.strip().lower() in MARKS


def number_of(cell: str, decimal: Decimal = ".") -> float | None:
    """The number in a cell, such as "$1,234.50", "12 %", "<0.5" or "(3)"; None where there is none.

    Signs of comparison, currency and per cent are left out, as are the separators of thousands.
    """
    text = cell.strip().translate(PLAIN_SIGNS)
    if text.startswith("(") and text.endswith(")"):
        inner = number_of(text[1:-1], decimal)
        return None if inner is None else -inner
    if match := _AROUND.fullmatch(text):
        text = match[1] + match[2]
    if _GROUPED[decimal].fullmatch(text):
        text = re.sub("[.'’ ]" if decimal == "," else "[,'’ ]", "", text)
    if decimal == ",":
        text = "" if "." in text else text.replace(",", ".")
    return float(text) if _PLAIN.fullmatch(text) else None


def numbers_of(cells: Sequence[str], decimal: Decimal = ".") -> np.ndarray:
    """A column as numbers, NaN where a cell is missing or holds none; the other decimal sign is read where it must."""
    read: dict[str, float] = {}
    for cell in dict.fromkeys(cells):
        tried = () if is_marked(cell) else (number_of(cell, decimal), number_of(cell, "," if decimal == "." else "."))
        read[cell] = next((number for number in tried if number is not None), math.nan)
    return np.array([read[cell] for cell in cells], dtype=np.float64)


def decimal_of(cells: Sequence[str]) -> Decimal:
    """The decimal sign that reads more of these cells; the point where both read as many."""
    found = {sign: sum(number_of(cell, sign) is not None for cell in cells) for sign in (".", ",")}
    return "," if found[","] > found["."] else "."


def dates_of(cells: Sequence[str], formats: Sequence[str]) -> np.ndarray:
    """A column as days since 1970-01-01 (UTC), by the first format that reads a cell; NaN where none does."""
    import pandas

    text = pandas.Series(list(cells), dtype=object)
    days = np.full(len(text), np.nan)
    for layout in formats:
        left = np.isnan(days) & (text.str.fullmatch(ISO_CELL).to_numpy(dtype=bool) if layout == ISO else True)
        if left.any():
            read = pandas.to_datetime(text[left], format=layout, errors="coerce", utc=True)
            days[left] = ((read - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1)).to_numpy(dtype=np.float64)
    return days


def formats_of(cells: Sequence[str]) -> tuple[str, ...]:
    """The formats of dates in these cells, that of most cells first; day/month and month/day never both."""
    cells = list(dict.fromkeys(cells))
    likely = [layout for layout in FORMATS if cells and not np.isnan(dates_of(cells[:50], [layout])).all()]
    read = {layout: ~np.isnan(dates_of(cells, [layout])) for layout in likely}
    found: list[str] = []
    known = np.zeros(len(cells), dtype=bool)
    for layout in sorted(likely, key=lambda each: -int(read[each].sum())):
        exchanged = {MONTH_FIRST[:5], DAY_FIRST[:5]} <= {layout[:5], *(each[:5] for each in found)}
        if not exchanged and (read[layout] & ~known).any():
            found.append(layout)
            known |= read[layout]
    return tuple(found)


def level_of(cell: str) -> str:
    """The category in a cell: without regard to case and to the number of spaces."""
    return GAP if is_missing(cell) else " ".join(cell.split()).casefold()


@dataclass(frozen=True)
class Column:
    """How a column of a table is read, and which columns of the matrix it becomes.

    A number, or a date in days since 1970, is one column, `fill` where it is missing; `low` and `high` are the least
    and largest value of the training rows. A category is one column of zeros and ones for each of its `levels`; with
    `others` the last level stands for all that are not listed before it. `kept` are the columns that are features.
    """

    name: str
    kind: ColumnKind
    decimal: Decimal = "."
    formats: tuple[str, ...] = ()
    levels: tuple[str, ...] = ()
    others: bool = False
    fill: float = 0.0
    low: float = 0.0
    high: float = 1.0
    kept: tuple[int, ...] = (0,)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of its columns of the matrix."""
        return tuple(f"{self.name}={self.levels[k]}" if self.kind == "category" else self.name for k in self.kept)

    @property
    def known(self) -> tuple[str, ...]:
        """The levels that are listed, as `level_of` writes them."""
        return tuple(map(level_of, self.levels[:-1] if self.others else self.levels))

    def numbers(self, cells: Sequence[str]) -> np.ndarray:
        """Numbers, or dates in days; NaN where a cell is missing or, as a few may, cannot be read.

        Raises:
            BadData: Too many cells cannot be read, or one is infinite.
        """
        numbers = dates_of(cells, self.formats) if self.kind == "date" else numbers_of(cells, self.decimal)
        known = np.array([not is_marked(cell) for cell in cells])
        bad = np.isnan(numbers) & known
        if bad.sum() > (1 - ENOUGH) * known.sum():
            raise BadData(
                f"column {self.name!r} holds text where the model was fitted to {self.kind}s "
                f"({cells[int(bad.argmax())]!r:.40} in row {bad.argmax() + 1}); mend those cells"
            )
        return require_finite(numbers, self.name)

    def values(self, cells: Sequence[str]) -> np.ndarray:
        """The values of all rows, (rows, features)."""
        if self.kind != "category":
            numbers = self.numbers(cells)
            return np.where(np.isnan(numbers), self.fill, numbers)[:, None]
        levels, known = np.array([level_of(cell) for cell in cells]), self.known
        columns = [levels == level for level in known] + [~np.isin(levels, known)] * self.others
        return np.column_stack([columns[k] for k in self.kept]).astype(np.float64)


def require_finite(numbers: np.ndarray, name: str) -> np.ndarray:
    """The numbers; BadData names the row of one that is infinite."""
    if np.isinf(numbers).any():
        row = np.isinf(numbers).argmax() + 1
        raise BadData(f"column {name!r} holds an infinite number in row {row}; correct or remove that row")
    return numbers


def take(
    name: str, cells: Sequence[str], train: np.ndarray, asked: Treatment | None = None
) -> tuple[Column | None, str]:
    """Recognise a column, as `asked` or as all of its cells look, and fit it to the rows numbered in `train`.

    Returns:
        The column, None where it is left out; and what it was taken for, or why it is left out.
    """
    if asked == "drop":
        return None, "left out, as asked"
    different = len({level_of(cell) for cell in cells})
    if different == 1:
        return None, f"left out: it is constant ({cells[0]!r:.40})"
    column = _recognised(name, [cell for cell in cells if not is_marked(cell)], asked)
    if column.kind == "category":
        if asked is None and (different == len(cells) or different > max(MOST_LEVELS, len(cells) / 2)):
            return None, f"left out: identifier or free text, {different} different values in {len(cells)} rows"
        return _category(name, cells, train)
    dates = column.kind == "date"
    numbers = require_finite(dates_of(cells, column.formats) if dates else numbers_of(cells, column.decimal), name)
    # The numbers of the rows, in a column with the name of such.
    row_numbers = IDENTIFIERS.fullmatch(name) and bool((np.diff(np.sort(numbers)) == 1).all())  # NaN is no difference
    if asked is None and not dates and row_numbers:
        return None, f"left out: identifier, the whole numbers {numbers.min():g} to {numbers.max():g} once each"
    trained = numbers[train][~np.isnan(numbers[train])]
    fill, low, high = (trained.mean(), trained.min(), trained.max()) if trained.size else (0.0, 0.0, 0.0)
    column = replace(column, fill=float(fill), low=float(low), high=float(high))
    return column, _number_line(column, cells, numbers)


def _recognised(name: str, known: Sequence[str], asked: Treatment | None) -> Column:
    """How the cells of a column that are not missing are read: as what was asked for, or as what most of them are."""

    def enough(numbers: np.ndarray) -> bool:
        read = (~np.isnan(numbers)).mean() if len(numbers) else 0.0
        return bool(read >= ENOUGH or (asked and read > 0))

    if asked in (None, "number"):
        decimal = decimal_of(known)
        if enough(numbers_of(known, decimal)):
            return Column(name, "number", decimal=decimal)
    if asked in (None, "date"):
        formats = formats_of(known)
        if enough(dates_of(known, formats)):
            return Column(name, "date", formats=formats)
    if asked in ("number", "date"):
        example = f" ({known[0]!r:.40})" if known else ""
        raise BadData(f"--as {name}={asked}: no cell of it can be read as a {asked}{example}")
    return Column(name, "category")


def _category(name: str, cells: Sequence[str], train: np.ndarray) -> tuple[Column, str]:
    """A category by its usual spellings; of more than MOST_LEVELS the most frequent, and one level for all others."""
    every = [level_of(cell) for cell in cells]
    spelled = Counter(" ".join(cell.split()) for cell in cells if not is_missing(cell))
    usual = {text.casefold(): text for text, _ in reversed(spelled.most_common())} | {GAP: GAP}
    ordered = [level for level, _ in Counter(sorted(every[row] for row in train)).most_common()]
    kept = sorted(ordered if len(ordered) <= MOST_LEVELS else ordered[: MOST_LEVELS - 1])
    others = len(kept) < len(ordered)
    levels = (*(usual[level] for level in kept), *["other"] * others)
    column = Column(name, "category", levels=levels, others=others, kept=tuple(range(len(levels))))
    said = f"category, {len(ordered)} levels one-hot"
    if others:
        said = f"category, the {len(kept)} most frequent of {len(ordered)} levels one-hot, all others together"
    if merged := len(spelled) + 1 - len(usual):
        said += f"; {merged} other spelling{'s' if merged > 1 else ''} (case, spaces) counted as the same"
    if gaps := every.count(GAP):
        said += f"; {gaps} missing, a level of their own"
    return column, said


def _number_line(column: Column, cells: Sequence[str], numbers: np.ndarray) -> str:
    said = "number"
    if column.kind == "date":
        formats = ", ".join("year-month-day" if layout == ISO else layout for layout in column.formats)
        said = f"date ({formats}), in days"
        firsts = {MONTH_FIRST[:5]: ", the month first", DAY_FIRST[:5]: ", the day first"}
        said += next((firsts[layout[:5]] for layout in column.formats if layout[:5] in firsts), "")
    elif column.decimal == ",":
        said += ", decimal comma"
    gaps = Counter(cell for cell, number in zip(cells, numbers, strict=True) if math.isnan(number))
    strange = next((i for i, cell in enumerate(cells) if cell not in gaps and not _PLAIN.fullmatch(cell)), None)
    if column.kind == "number" and strange is not None:
        said += f", as {cells[strange]!r:.30} is {numbers[strange]:.10g}"
    if gaps:
        marks = [repr(cell)[:30] for cell, _ in gaps.most_common() if cell]
        filled = "mean" if column.kind == "number" else "mean day"
        said += f"; {gaps.total()} missing{f' ({listed(marks, 4)})' if marks else ''}, filled with the {filled}"
    return said


def matrix(columns: Sequence[Column], cells: Mapping[str, Sequence[str]]) -> np.ndarray:
    """The rows of a table, its columns by name, as rows of numbers."""
    return np.hstack([column.values(cells[column.name]) for column in columns])


def read_treatments(words: Sequence[str], names: Sequence[str]) -> dict[str, Treatment]:
    """`COLUMN=number` and the like, by column."""
    asked: dict[str, Treatment] = {}
    for word in words:
        name, _, what = word.rpartition("=")
        if what not in TREATMENTS or not name:
            raise BadData(f"--as {word}: write COLUMN={'|'.join(TREATMENTS)}{nearest(what, TREATMENTS)}")
        if name not in names:
            raise BadData(f"--as {word}: there is no column {name!r}{nearest(name, names)}")
        if asked.setdefault(name, what) != what:  # type: ignore[arg-type]  # one of TREATMENTS
            raise BadData(f"--as {word}: {name!r} is {asked[name]} already")
    return asked


def listed(words: Sequence[str], most: int = 12) -> str:
    """The first of these words, and how many there are where that is not all."""
    return ", ".join(words[:most]) + (f", … ({len(words)} in all)" if len(words) > most else "")
