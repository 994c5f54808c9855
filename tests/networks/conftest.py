"""Small networks, compiled once, and one frozen interpreter for all of them and for three algorithms."""

import pytest
import torch
from small_networks import ACTIVATIONS, Case, perceptron
from torch import Tensor

from emulon import Interpreter, compile, compile_network
from emulon.algorithms import Lasso, LogisticRegression, Ridge
from emulon.interpreter import Program


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    torch.manual_seed(1)
    x = torch.randn(24, 5, dtype=torch.float64)
    networks = {name: perceptron(activation) for name, activation in ACTIVATIONS.items()}
    return {name: Case(each, x, compile_network(each, data=x)) for name, each in networks.items()}


@pytest.fixture(scope="session")
def regression() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    x = torch.randn(12, 3, dtype=torch.float64)
    return x, (x @ x.new_tensor([1.0, -0.5, 0.2])).sign()


@pytest.fixture(scope="session")
def algorithms(regression: tuple[Tensor, Tensor]) -> list[Program]:
    made = (Ridge(penalty=0.1, steps=3), Lasso(penalty=0.05, steps=3), LogisticRegression(steps=3))
    return [compile(algorithm, data=regression, tolerance=1e-6) for algorithm in made]


@pytest.fixture(scope="session")
def interpreter(cases: dict[str, Case], algorithms: list[Program]) -> Interpreter:
    return Interpreter.fitting(*algorithms, *(case.program for case in cases.values()))
