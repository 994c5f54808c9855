"""A failing case made small: fewer samples, features and steps, simpler numbers, shorter expressions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from emulon.fuzz.kind import Values

# What belongs to samples and what to features: these shrink together with the table `x`.
PER_SAMPLE, PER_FEATURE = ("y",), ("w", "query")
ATTEMPTS, SECONDS = 400, 60.0


def shrunk(values: Values, fails: Callable[[Values], bool]) -> Values:
    """The smallest that still fails in the same way, within reason."""
    end, left = time.monotonic() + SECONDS, ATTEMPTS
    progress = True
    while progress:
        progress = False
        for simpler in simpler_cases(values):
            if left <= 0 or time.monotonic() > end:
                return values
            left -= 1
            if fails(simpler):
                values, progress = simpler, True
                break
    return values


def simpler_cases(values: Values) -> Iterator[dict[str, Any]]:
    """The boldest first."""
    yield from _smaller_tables(values)
    for name, value in values.items():
        for one in _simpler(name, value):
            yield {**values, name: one}


def _smaller_tables(values: Values) -> Iterator[dict[str, Any]]:
    rows = values.get("x")
    if not isinstance(rows, list) or not rows or not isinstance(rows[0], list):
        return
    count, width = len(rows), len(rows[0])
    for drop in _ranges(count):
        kept = [k for k in range(count) if k not in drop]
        parts = {"x": [rows[k] for k in kept]}
        parts |= {name: [values[name][k] for k in kept] for name in PER_SAMPLE if _long(values.get(name), count)}
        yield {**values, **parts}
    for drop in _ranges(width):
        kept = [k for k in range(width) if k not in drop]
        parts = {"x": [[row[k] for k in kept] for row in rows]}
        parts |= {name: [values[name][k] for k in kept] for name in PER_FEATURE if _long(values.get(name), width)}
        yield {**values, **parts}


def _ranges(count: int) -> Iterator[range]:
    """Halves, then single places; never all."""
    if count > 2:
        yield range(count // 2, count)
        yield range(count // 2)
    if count > 1:
        yield from (range(k, k + 1) for k in range(count))


def _long(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count


def _simpler(name: str, value: Any) -> Iterator[Any]:
    if name == "tree":
        yield from simpler_trees(value)
    elif name == "guise":
        yield from () if value == "plain" else ("plain",)
    elif isinstance(value, bool | str) or value is None:
        return
    elif isinstance(value, int):
        yield from (smaller for smaller in dict.fromkeys((0, 1, value // 2, value - 1)) if 0 <= smaller < value)
    elif isinstance(value, float):
        yield from simpler_numbers(value)
    elif isinstance(value, list):
        yield from _simpler_lists(value)


def simpler_numbers(value: float) -> Iterator[float]:
    """0, 1, and fewer digits; only what is shorter to write."""
    for one in (0.0, 1.0, -1.0, *(float(f"{value:.{digits}g}") for digits in (1, 2, 4))):
        if len(repr(one)) < len(repr(value)):
            yield one


def _simpler_lists(value: list[Any]) -> Iterator[list[Any]]:
    """All numbers at once, then one by one."""
    for digits in (1, 3):
        rounded = _rounded(value, digits)
        if rounded != value:
            yield rounded
    for k, item in enumerate(value):
        options = _simpler_lists(item) if isinstance(item, list) else _simpler("", item)
        yield from ([*value[:k], one, *value[k + 1 :]] for one in options)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, list):
        return [_rounded(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def simpler_trees(tree: list[Any]) -> Iterator[list[Any]]:
    """Its own branches, then the same with a simpler branch; numbers become short ones."""
    branches = [part for part in tree[1:] if isinstance(part, list)]
    yield from branches
    if tree[0] == "number":
        yield from (["number", short] for short in ("0", "1", "2") if len(short) < len(tree[1]))
    for k, part in enumerate(tree):
        if isinstance(part, list):
            yield from ([*tree[:k], one, *tree[k + 1 :]] for one in simpler_trees(part))
