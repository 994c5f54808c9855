"""Small networks, and what is known of each."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from emulon.networks import Expression, NetworkProgram

ACTIVATIONS = {
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "relu": nn.ReLU(),
    "silu": nn.SiLU(),
    "leaky": nn.LeakyReLU(0.1),
    "sine": Expression("sin(2*t)"),
}


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
