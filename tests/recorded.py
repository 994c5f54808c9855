"""Numbers on record: the terms of bounds, in a JSON file beside their test.

Whether a bound holds is tested against exact answers. Rounding's worst case is met by no data, though, so that a term
that went missing would not be noticed there: what each term is on a few cases is therefore recorded. Who means to
change a bound runs the test's file, which writes the record anew, and says in the changelog how bounds move.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Numbers = Mapping[str, float]


def require_as_recorded(path: Path, name: str, numbers: Numbers, rel: float) -> None:
    """Compare every number of a case, in whatever order."""
    assert dict(numbers) == pytest.approx(json.loads(path.read_text())[name], rel=rel, abs=0.0)


def write(path: Path, cases: Mapping[str, Callable[[], Numbers]]) -> None:
    """Record the numbers of all cases, a line each."""
    lines = [f"{json.dumps(name)}: {json.dumps(dict(make()), ensure_ascii=False)}" for name, make in cases.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
