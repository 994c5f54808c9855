"""Elementwise modules as expressions in t; ReLU, SiLU and their kin are gates on their own argument."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from torch import nn

from emulon.core.errors import BadNetwork
from emulon.expressions import parse
from emulon.networks.layers import Gated
from emulon.networks.lowering import Builder, lowers

PLAIN: dict[type[nn.Module], str] = {
    nn.Tanh: "tanh(t)",
    nn.Sigmoid: "(1 + tanh(t/2))/2",
    nn.LogSigmoid: "Min(t, 0) - log(1 + exp(-Abs(t)))",
    nn.Softsign: "t/(1 + Abs(t))",
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
        parse(f)
        self.f = f

    def forward(self, x: Any) -> Any:
        return parse(self.f)(x)


@lowers(*PLAIN)
def plain(builder: Builder, module: nn.Module, place: str) -> None:
    builder.elementwise(place, type(module).__name__.lower(), PLAIN[type(module)])


@lowers(nn.Hardtanh, nn.ReLU6)
def hardtanh(builder: Builder, module: nn.Hardtanh, place: str) -> None:
    low, high = (written(end, place) for end in (module.min_val, module.max_val))
    if not module.min_val < module.max_val:
        raise BadNetwork(f"{place or 'a Hardtanh'} cuts at {module.min_val} and {module.max_val}, which is no interval")
    builder.elementwise(place, type(module).__name__.lower(), f"Max(Min(t, {high}), {low})")


@lowers(Expression)
def expression(builder: Builder, module: Expression, place: str) -> None:
    builder.elementwise(place, module.f, module.f)


@lowers(nn.GELU)
def gelu(builder: Builder, module: nn.GELU, place: str) -> None:
    if module.approximate not in GELU:
        raise BadNetwork(f"{place or 'a GELU'} approximates by {module.approximate!r}; {', '.join(GELU)} are known")
    builder.elementwise(place, "gelu", GELU[module.approximate])


@lowers(nn.ReLU)
def relu(builder: Builder, module: nn.ReLU, place: str) -> None:
    builder.elementwise(place, "relu", *RELU)


@lowers(nn.SiLU)
def silu(builder: Builder, module: nn.SiLU, place: str) -> None:
    builder.elementwise(place, "silu", *SILU)


@lowers(nn.LeakyReLU)
def leaky_relu(builder: Builder, module: nn.LeakyReLU, place: str) -> None:
    low, slope = float(module.negative_slope), written(module.negative_slope, place)
    if not low < 1:
        raise BadNetwork(f"{place or 'a LeakyReLU'} has slope {low} below zero; slopes below 1 are compiled")
    builder.elementwise(place, "leaky relu", f"Max(t, {slope}*t)", Gated(low, kinked=True))


@lowers(nn.Softplus)
def softplus(builder: Builder, module: nn.Softplus, place: str) -> None:
    """PyTorch's is t itself above the threshold, a jump of e^(−threshold): numbers there are refused."""
    if module.beta != 1:
        raise BadNetwork(f"{place or 'a Softplus'} is compiled for beta=1; write it as an Expression")
    builder.elementwise(place, "softplus", "Max(t, 0) + log(1 + exp(-Abs(t)))", most=float(module.threshold))


@lowers(nn.ELU)
def elu(builder: Builder, module: nn.ELU, place: str) -> None:
    alpha = written(module.alpha, place)
    builder.elementwise(place, "elu", f"Max(t, 0) + {alpha}*(exp(Min(t, 0)) - 1)")


def written(number: float, place: str) -> str:
    """The float64 number itself, not the decimal that is short for it."""
    if not math.isfinite(number):
        raise BadNetwork(f"{place or 'the network'} has {number} for a parameter; give a finite number")
    return f"({Fraction(float(number))})"
