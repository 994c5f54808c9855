"""Whatever default device a program has set, emulon computes on the CPU unless it is asked for another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import emulon

PLACES = os.pathsep.join((str(Path(emulon.__file__).parents[1]), str(Path(__file__).parents[1])))
CODE = "import torch; torch.set_default_device('meta'); from main_paths import told; print(told())"


def test_every_main_path_runs_under_a_default_device_that_holds_no_numbers():
    """Nothing can be read from a tensor that was made there: what depends on one ends in a traceback."""
    environment = os.environ | {"PYTHONPATH": PLACES, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert not {name: trace for name, trace in found.items() if isinstance(trace, str)}
    assert len(found) > 10 and all(found.values())
