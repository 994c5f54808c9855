"""Whatever default device a program has set, emulon computes on the CPU unless it is asked for another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import emulon

PLACES = os.pathsep.join((str(Path(emulon.__file__).parents[1]), str(Path(__file__).parents[1])))
CODE = "import torch; torch.set_default_device({!r}); from main_paths import told; print(told())"


def found_under(device: str) -> dict[str, object]:
    """What every main path gives where this device was the default before emulon was imported."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(device)],
        env=os.environ | {"PYTHONPATH": PLACES, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_main_path_gives_the_same_numbers_under_a_default_device_that_holds_none():
    found, expected = found_under("meta"), found_under("cpu")
    assert not {name: trace for name, trace in expected.items() if isinstance(trace, str)}
    assert {name: numbers for name, numbers in found.items() if numbers != expected[name]} == {}
