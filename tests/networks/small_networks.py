"""Small networks, and what is known of each."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jaxtyping
import torch
from torch import Tensor, nn

from emulon import compile, compile_network
from emulon.algorithms import Lasso, LogisticRegression, Ridge
from emulon.interpreter import Program
from emulon.models import Standard
from emulon.networks import NetworkProgram

ACTIVATIONS = {"tanh": nn.Tanh(), "gelu": nn.GELU(), "relu": nn.ReLU(), "silu": nn.SiLU(), "leaky": nn.LeakyReLU(0.1)}


@dataclass(frozen=True)
class Case:
    network: nn.Module
    x: Tensor
    program: NetworkProgram

    @property
    def wanted(self) -> Tensor:
        with torch.no_grad():
            return self.network(self.x)


def perceptron(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    # One activation, used twice: whoever walks over different modules only would pass over the second.
    return nn.Sequential(nn.Linear(5, 7), activation, nn.Linear(7, 6), activation, nn.Linear(6, 2)).double()


def random(*shape: int) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(*shape, dtype=torch.float64)


def small_encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, norm_first=True).eval().double()


def learner() -> tuple[Standard, Tensor]:
    torch.manual_seed(0)
    made = Standard(3, 1, 7, width=4, heads=2, layers=1, init=0.5)
    return made, made._prompt(random(6, 4, 2), random(6, 4)[:, :3]).double()


def two_norms() -> tuple[nn.Module, Tensor]:
    """And rows whose variances range widely."""
    torch.manual_seed(0)
    x = random(12, 4) * torch.logspace(-0.5, 0.5, 12, dtype=torch.float64).unsqueeze(-1)
    return nn.Sequential(nn.RMSNorm(4), nn.LayerNorm(4)), x


def one_norm() -> tuple[nn.Module, Tensor]:
    return nn.LayerNorm(6).double(), random(40, 6)


def trained_norm() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    module = nn.BatchNorm1d(3)
    module.running_mean.normal_()
    module.running_var.uniform_(0.1, 3.0)
    return module.double().eval(), random(8, 3)


def compiled() -> dict[str, Case]:
    """One of each activation."""
    networks, x = {name: perceptron(activation) for name, activation in ACTIVATIONS.items()}, random(24, 5)
    return {name: Case(each, x, compile_network(each, data=x)) for name, each in networks.items()}


def algorithms(x: Tensor, y: Tensor) -> list[Program]:
    made = (Ridge(penalty=0.1, steps=3), Lasso(penalty=0.05, steps=3), LogisticRegression(steps=3))
    return [compile(algorithm, data=(x, y), tolerance=2e-6) for algorithm in made]


def regression() -> tuple[Tensor, Tensor]:
    x = random(12, 3)
    return x, (x @ x.new_tensor([1.0, -0.5, 0.2])).sign()


@contextmanager
def unchecked() -> Iterator[None]:
    """Without type checks, which make the search for grids several times slower."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
