"""Whatever default device a program has set, emulon computes on the CPU unless it is asked for another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import emulon

PLACES = os.pathsep.join((str(Path(emulon.__file__).parents[1]), str(Path(__file__).parents[1])))
CODE = """
import torch
torch.set_default_device("meta")  # before emulon is imported
from main_paths import told
print(told())
torch.set_default_device("cpu")
print(told())
"""


def test_every_main_path_gives_the_same_numbers_under_a_default_device_that_holds_none():
    environment = os.environ | {"PYTHONPATH": PLACES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, expected = map(json.loads, done.stdout.splitlines())
    assert not {name: trace for name, trace in expected.items() if isinstance(trace, str)}
    assert {name: numbers for name, numbers in found.items() if numbers != expected[name]} == {}
