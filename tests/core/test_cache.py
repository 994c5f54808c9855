"""What was found once is found again, and nothing else in its place."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emulon.algorithms import Ridge
from emulon.core import files as cache
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


def test_a_request_is_answered_once_by_the_same_code(folder: Path, monkeypatch: pytest.MonkeyPatch):
    calls, make = counting()
    first = cache.disk_cached("thing", [1, 0.1], make)
    assert cache.disk_cached("thing", [1, 0.1], make) == first and len(calls) == 1
    assert cache.disk_cached("thing", [1, 0.1000001], make) != first and len(calls) == 2
    assert cache.disk_cached("other", [1, 0.1], make) != first and len(calls) == 3
    monkeypatch.setattr(cache, "code", lambda: "another")
    assert cache.disk_cached("thing", [1, 0.1], make) != first and len(calls) == 4


def test_the_key_follows_the_code_that_makes_softmaxes_and_no_other(tmp_path: Path):
    def copied(name: str, changed: str | None = None) -> Path:
        for source in cache.SOURCES:
            path = tmp_path / name / source
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((cache.ROOT / source).read_bytes() + (b"\n" if source == changed else b""))
        return tmp_path / name

    assert len(set(cache.SOURCES)) == len(cache.SOURCES)
    plain = copied("plain")
    (plain / "cli.py").write_text("another")
    assert cache.code(plain) == cache.code()
    keys = {cache.code(copied(str(number), source)) for number, source in enumerate(cache.SOURCES)}
    assert len(keys | {cache.code()}) == len(cache.SOURCES) + 1


# Files that run during a search and decide nothing of it: conversions, hashes of what was made, the wording of errors.
NEUTRAL = {"core/arrays.py", "certify/certificate.py", "core/names.py", "core/errors.py"}
SEARCHES = """
import sys
from pathlib import Path

import torch

from emulon.core import files as cache
from emulon.algorithms import Lasso, LogisticRegression, Ridge
from emulon.interpreter import compile, compiler
from emulon.networks import softmaxes

seen, searches = set(), []


def follow(frame, event, argument):
    seen.add(frame.f_code.co_filename)


def disk_cached(kind, request, make):
    searches.append(kind)
    sys.setprofile(follow)
    try:
        return make()
    finally:
        sys.setprofile(None)


compiler.disk_cached = softmaxes.disk_cached = disk_cached
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(8, 2, generator=generator).double(), torch.randn(8, generator=generator).double()
compile(Ridge(0.1, 3), data=(x, y))
compile(LogisticRegression(steps=3), data=(x, y.sign()))
for dtype in (torch.float32, torch.float64):
    compile(Lasso(0.1, 3), data=(x, y), tolerance=1e-3, dtype=dtype)
softmaxes.softmax_for("tanh(t)", -3.0, 3.0, 1e-6)
print(*searches)
print(*(Path(name).relative_to(cache.ROOT).as_posix() for name in seen if Path(name).is_relative_to(cache.ROOT)))
"""


def test_searches_run_no_code_that_the_key_does_not_follow():
    done = subprocess.run(
        [sys.executable, "-c", SEARCHES], capture_output=True, text=True, env=os.environ | {"EMULON_CACHE": "off"}
    )
    assert done.returncode == 0, done.stderr
    searches, seen = (set(line.split()) for line in done.stdout.splitlines())
    assert searches == {"softmax", "network"} and "certify/interpolation.py" in seen
    assert seen <= set(cache.SOURCES) | NEUTRAL


@pytest.mark.parametrize("damage", [b"", b"\xff", b"0\n[1.0]", None])
def test_what_is_not_whole_is_made_again(folder: Path, damage: bytes | None):
    calls, make = counting()
    cache.disk_cached("thing", [1], make)
    [path] = folder.iterdir()
    path.write_bytes(path.read_bytes().replace(b"[0.1,", b"[0.2,") if damage is None else damage)
    assert cache.disk_cached("thing", [1], make)[0] == 0.1 and len(calls) == 2
    cache.disk_cached("thing", [1], make)
    assert len(calls) == 2


def test_it_can_be_off_and_does_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls, make = counting()
    (tmp_path / "file").write_text("")
    for place in ("off", str(tmp_path / "file")):
        monkeypatch.setenv("EMULON_CACHE", place)
        cache.disk_cached("thing", [1], make)
        cache.disk_cached("thing", [1], make)
    assert len(calls) == 4 and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_old_entries_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "MOST_CACHED", 2)
    for number in range(4):
        cache.disk_cached("thing", [number], lambda: [])
    assert len(list(folder.iterdir())) == 2


def test_a_program_compiled_before_is_not_searched_for_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(8, 2, generator=generator).double(), torch.randn(8, generator=generator).double()
    first = compile(Ridge(0.1, 5), data=data, tolerance=1e-4)
    compiler._softmax.cache_clear()
    monkeypatch.setattr(compiler, "approximate", None)
    again = compile(Ridge(0.1, 5), data=data, tolerance=1e-4)
    for part in ("slopes", "intercepts", "values"):
        assert torch.equal(getattr(again.gradient.grid, part), getattr(first.gradient.grid, part))
    assert again.gradient.proved == first.gradient.proved and again.certificate == first.certificate
