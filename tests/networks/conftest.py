"""Small networks, compiled once, and one frozen interpreter for all of them and for three algorithms."""

import subprocess
import sys
from pathlib import Path

import pytest
import small_networks
from small_networks import Case
from torch import Tensor

from emulon import Interpreter
from emulon.interpreter import Program


@pytest.fixture(scope="session")
def warm() -> None:
    """What is searched for is in the cache, left there by another process."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("small_networks.py"))], check=True)


@pytest.fixture(scope="session")
def cases(warm: None) -> dict[str, Case]:
    return small_networks.compiled()


@pytest.fixture(scope="session")
def regression() -> tuple[Tensor, Tensor]:
    return small_networks.regression()


@pytest.fixture(scope="session")
def algorithms(warm: None, regression: tuple[Tensor, Tensor]) -> list[Program]:
    return small_networks.algorithms(*regression)


@pytest.fixture(scope="session")
def interpreter(cases: dict[str, Case], algorithms: list[Program]) -> Interpreter:
    return Interpreter.fitting(*algorithms, *(case.program for case in cases.values()))
