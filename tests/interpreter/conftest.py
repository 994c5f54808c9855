"""The library, compiled once by another process (type checks would make the search for grids several times slower)."""

import subprocess
import sys
from pathlib import Path

import pytest

from emulon.interpreter import Interpreter, Program, load_program


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """A program for every algorithm and for a loss of one's own, on the data of its case."""
    folder = tmp_path_factory.mktemp("programs")
    subprocess.run([sys.executable, str(Path(__file__).with_name("library.py")), str(folder)], check=True)
    return {path.stem: load_program(path) for path in sorted(folder.iterdir())}


@pytest.fixture(scope="session")
def interpreter(programs: dict[str, Program]) -> Interpreter:
    return Interpreter.fitting(*programs.values())
