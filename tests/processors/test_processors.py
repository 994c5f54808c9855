"""Proofs, hashes, and files of other machines are the same on every processor, with any number of threads.

EMULON_PROCESSORS=all python -m pytest tests/processors   all of them, as `make portable` does; by default one
"""

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import figures
import pytest

OLD = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL"}
# By what they stand for: OpenBLAS (numpy), numpy's own loops, torch's own loops, and MKL (torch).
PROCESSORS = {
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2"},
    "Prescott": OLD | {"OPENBLAS_CORETYPE": "Prescott", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"},
    "Zen": {"OPENBLAS_CORETYPE": "Zen", "OMP_NUM_THREADS": "2", "MKL_CBWR": "AVX2"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX", "ATEN_CPU_CAPABILITY": "default"},
    "no numpy loops": OLD | {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2"},
    "no torch loops": {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2"},
}
CHOSEN = list(PROCESSORS)[: None if os.environ.get("EMULON_PROCESSORS") == "all" else 1]
FLAGS = Path("/proc/cpuinfo")
FROZEN = "da66b7cfcf0383af5ddb82eca060e8de8886686b6220f9ed504e9c5d8381b6d1"
SETTINGS = {name for processor in PROCESSORS.values() for name in processor}


def started(own: Path, other: Path, processor: dict[str, str]) -> dict[str, object]:
    """What `figures.py` prints on such a processor; nothing found before is reused."""
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    one_thread = {"OMP_NUM_THREADS": "1", "EMULON_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, figures.__file__, str(own), str(other)],
        env=plain | one_thread | processor,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processors")


@pytest.fixture(scope="module")
def here(folder: Path) -> dict[str, object]:
    """Of a process on this processor as it is, which leaves its files in `folder`."""
    return started(folder / "here", folder / "here", {})


@pytest.fixture(scope="module")
def there(folder: Path, here: dict[str, object]) -> dict[str, Future[dict[str, object]]]:
    """Of a process on each processor, two at a time."""
    able = not FLAGS.exists() or "avx512f" in FLAGS.read_text()
    names = [name for name in CHOSEN if name != "SkylakeX" or able]
    with ThreadPoolExecutor(2) as two:
        return {name: two.submit(started, folder / name, folder / "here", PROCESSORS[name]) for name in names}


def test_what_is_shipped_holds_here(here: dict[str, object]) -> None:
    assert here["interpreter"] == FROZEN
    assert here["shipped and false"] == [] and set(here["playground"].values()) == {"the same"}


@pytest.mark.parametrize("name", CHOSEN)
def test_figures_and_verdicts_are_those_of_this_processor(
    name: str, here: dict[str, object], there: dict[str, Future[dict[str, object]]]
) -> None:
    if name not in there:
        pytest.skip("this processor cannot run what is made for SkylakeX")
    assert there[name].result() == here


@pytest.mark.parametrize("name", CHOSEN)
def test_files_written_there_are_read_here(
    name: str, folder: Path, here: dict[str, object], there: dict[str, Future[dict[str, object]]]
) -> None:
    if name not in there:
        pytest.skip("this processor cannot run what is made for SkylakeX")
    there[name].result()
    verdicts = figures.read(folder / name, folder / "again")
    assert verdicts.keys() == here["read"].keys()
    for file, verdict in verdicts.items():
        assert verdict == "the same" or verdict.startswith("every weight is within"), file
