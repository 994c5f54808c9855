"""Elementwise modules as expressions in t; ReLU, SiLU and their kin are gates on their own argument."""

from __future__ import annotations

from typing import Any

from torch import nn

from emulon.errors import BadNetwork
from emulon.expression import parse
from emulon.networks.layers import Gated
from emulon.networks.lowering import Builder, lowers

PLAIN: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh(t)",
    nn.Sigmoid: "1/(1 + exp(-t))",
    nn.LogSigmoid: "-log(1 + exp(-t))",
    nn.Softsign: "t/(1 + Abs(t))",
    nn.Hardtanh: "Max(Min(t, 1), -1)",
    nn.ReLU6: "Max(Min(t, 6), 0)",
    nn.Mish: "t*tanh(log(1 + exp(t)))",
}
GELU = {
    "none": "t*(1 + erf(t/sqrt(2)))/2",
    "tanh": "t*(1 + tanh(sqrt(2/pi)*(t + 0.044715*t**3)))/2",
}
RELU, SILU = ("Max(t, 0)", Gated(0.0, kinked=True)), ("t/(1 + exp(-t))", Gated(0.0, kinked=False))


class Expression(nn.Module):
    """Any function of one number, written in t, as a module: `Expression("sin(3*t)")`."""

    def __init__(self, f: str) -> None:
        super().__init__()
        self.f = f
        self.function = parse(f)

    def forward(self, x: Any) -> Any:
        return self.function(x)


@lowers(*PLAIN)
def plain(builder: Builder, module: nn.Module, place: str) -> None:
    if type(module) is nn.Hardtanh and (module.min_val, module.max_val) != (-1, 1):
        raise BadNetwork(f"{place or 'a Hardtanh'} is compiled between −1 and 1 only; write it as an Expression")
    f = next(PLAIN[kind] for kind in type(module).__mro__ if kind in PLAIN)
    builder.elementwise(place, type(module).__name__.lower(), f)


@lowers(Expression)
def expression(builder: Builder, module: Expression, place: str) -> None:
    builder.elementwise(place, module.f, module.f)


@lowers(nn.GELU)
def gelu(builder: Builder, module: nn.GELU, place: str) -> None:
    builder.elementwise(place, "gelu", GELU[module.approximate])


@lowers(nn.ReLU)
def relu(builder: Builder, module: nn.ReLU, place: str) -> None:
    builder.elementwise(place, "relu", *RELU)


@lowers(nn.SiLU)
def silu(builder: Builder, module: nn.SiLU, place: str) -> None:
    builder.elementwise(place, "silu", *SILU)


@lowers(nn.LeakyReLU)
def leaky_relu(builder: Builder, module: nn.LeakyReLU, place: str) -> None:
    low = float(module.negative_slope)
    if not low < 1:
        raise BadNetwork(f"{place or 'a LeakyReLU'} has slope {low} below zero; slopes below 1 are compiled")
    builder.elementwise(place, "leaky relu", f"Max(t, {low!r}*t)", Gated(low, kinked=True))


@lowers(nn.Softplus)
def softplus(builder: Builder, module: nn.Softplus, place: str) -> None:
    if module.beta != 1 or module.threshold < 20:
        raise BadNetwork(f"{place or 'a Softplus'} is compiled for beta=1 and threshold=20; write it as an Expression")
    builder.elementwise(place, "softplus", "log(1 + exp(t))")


@lowers(nn.ELU)
def elu(builder: Builder, module: nn.ELU, place: str) -> None:
    alpha = float(module.alpha)
    builder.elementwise(place, "elu", f"Max(t, 0) + {alpha!r}*(exp(Min(t, 0)) - 1)")
