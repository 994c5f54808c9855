"""Small networks, compiled once, and one frozen interpreter for all of them and for three algorithms."""

import pytest
import small_networks
from small_networks import Case, unchecked
from torch import Tensor

from emulon import Interpreter, compile_network
from emulon.interpreter import Program


@pytest.fixture(scope="session")
def warm() -> None:
    """What is searched for, and takes long, is in the cache."""
    with unchecked():
        small_networks.compiled()
        for make in (small_networks.two_norms, small_networks.one_norm, small_networks.learner):
            network, x = make()
            compile_network(network, data=x)


@pytest.fixture(scope="session")
def cases(warm: None) -> dict[str, Case]:
    return small_networks.compiled()


@pytest.fixture(scope="session")
def regression() -> tuple[Tensor, Tensor]:
    return small_networks.regression()


@pytest.fixture(scope="session")
def algorithms(regression: tuple[Tensor, Tensor]) -> list[Program]:
    with unchecked():
        return small_networks.algorithms(*regression)


@pytest.fixture(scope="session")
def interpreter(cases: dict[str, Case], algorithms: list[Program]) -> Interpreter:
    return Interpreter.fitting(*algorithms, *(case.program for case in cases.values()))
