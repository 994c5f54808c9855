"""What was found once is found again, and nothing else in its place."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emulon import cache
from emulon.algorithms import Ridge
from emulon.interpreter import compile, compiler


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EMULON_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def counting() -> tuple[list[int], Callable[[], list[float]]]:
    calls: list[int] = []

    def make() -> list[float]:
        calls.append(1)
        return [0.1, 1e-300, float(len(calls))]

    return calls, make


def test_a_request_is_answered_once(folder: Path):
    calls, make = counting()
    first = cache.remembered("thing", [1, 0.1], make)
    assert cache.remembered("thing", [1, 0.1], make) == first and len(calls) == 1
    assert cache.remembered("thing", [1, 0.1000001], make) != first and len(calls) == 2
    assert cache.remembered("other", [1, 0.1], make) != first and len(calls) == 3


def test_other_code_asks_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    calls, make = counting()
    cache.remembered("thing", [1], make)
    monkeypatch.setattr(cache, "code", lambda: "another")
    cache.remembered("thing", [1], make)
    assert len(calls) == 2


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"sha256": "0", "entry": [1.0]}', None])
def test_what_is_not_whole_is_made_again(folder: Path, damage: bytes | None):
    calls, make = counting()
    cache.remembered("thing", [1], make)
    [path] = folder.iterdir()
    content = json.loads(path.read_text())
    content["entry"][0] = 0.2
    path.write_bytes(json.dumps(content).encode() if damage is None else damage)
    assert cache.remembered("thing", [1], make)[0] == 0.1 and len(calls) == 2
    cache.remembered("thing", [1], make)
    assert len(calls) == 2


def test_it_can_be_off_and_does_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls, make = counting()
    (tmp_path / "file").write_text("")
    for place in ("off", str(tmp_path / "file")):
        monkeypatch.setenv("EMULON_CACHE", place)
        cache.remembered("thing", [1], make)
        cache.remembered("thing", [1], make)
    assert len(calls) == 4 and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_old_entries_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MOST", 2)
    for number in range(4):
        cache.remembered("thing", [number], lambda: [])
    assert len(list(folder.iterdir())) == 2


def test_a_program_compiled_before_is_not_searched_for_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(8, 2, generator=generator).double(), torch.randn(8, generator=generator).double()
    first = compile(Ridge(0.1, 5), data=data, tolerance=1e-4)
    compiler._phase.cache_clear()
    monkeypatch.setattr(compiler, "approximate", None)
    again = compile(Ridge(0.1, 5), data=data, tolerance=1e-4)
    for part in ("slopes", "intercepts", "values"):
        assert torch.equal(getattr(again.gradient.grid, part), getattr(first.gradient.grid, part))
    assert again.gradient_bounds == first.gradient_bounds and again.certificate == first.certificate
