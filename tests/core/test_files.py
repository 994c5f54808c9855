"""Files: locks that processes wait for, and that die with whoever holds them; cells of CSV."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emulon.core import files

HOLD = """
import sys, time
from emulon.core.files import locked
with locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@contextmanager
def held_elsewhere(path: Path, seconds: float) -> Iterator[subprocess.Popen]:
    """Another process that has the lock, for so many seconds or until it is killed."""
    command = [sys.executable, "-c", HOLD, str(path), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_lock_is_refused_while_another_process_has_it_and_let_go_of_when_that_is_killed(tmp_path: Path):
    path = tmp_path / ".lock"
    with held_elsewhere(path, 600) as process:
        with files.locked(path, wait=False) as mine:
            assert not mine
        assert int((tmp_path / ".lock.pid").read_text()) == process.pid
        process.kill()
        process.wait()
        with files.locked(path, wait=False) as mine:
            assert mine
            assert int((tmp_path / ".lock.pid").read_text()) == os.getpid()


def test_a_lock_is_waited_for(tmp_path: Path):
    with held_elsewhere(tmp_path / ".lock", 0.5) as process, files.locked(tmp_path / ".lock") as mine:
        assert mine and process.wait() == 0


def test_floats_stay_as_they_are_in_csv_and_text_that_a_spreadsheet_would_run_gets_an_apostrophe():
    row = ("age", 0.1, -1e-300, "-1.5", "+1e3", "=1", " @a", "-a", "\ta")
    assert files.csv_text([row]) == "age,0.1,-1e-300,-1.5,+1e3,'=1,' @a,'-a,'\ta\n"


def test_no_module_needs_what_one_system_alone_has():
    alone = re.compile(r"^\s*(import|from) (fcntl|grp|msvcrt|pwd|termios|winreg)\b", re.MULTILINE)
    paths = Path(files.__file__).parents[1].rglob("*.py")
    assert [path.name for path in paths if alone.search(path.read_text())] == []
