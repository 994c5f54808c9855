"""Random networks with norms, attention, convolutions and extreme scales, each with its own data."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import judge
import numpy as np
import torch
from torch import Tensor, nn

from emulon import compile_network
from emulon.networks import Heads, NetworkProgram

f64 = torch.float64
EPS = (1e-12, 1e-8, 1e-5, 1e-3, 0.1)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.GELU,
    lambda: nn.GELU("tanh"),
    lambda: nn.LeakyReLU(0.1),
    lambda: nn.ELU(0.7),
    nn.Softplus,
    nn.Mish,
    nn.ReLU,
    nn.Tanh,
    nn.Mish,
)


class Residual(nn.Module):
    """x + inner(x)/3 − 0.1."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x) / 3 - 0.1


class Times(nn.Module):
    """first(x)·second(x), feature by feature."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) * self.second(x)


@judge.rule(Residual)
def _residual(module: Residual, x: np.ndarray) -> np.ndarray:
    return x + judge.exact(module.inner, x) / judge.arb(3) - judge.arb(0.1)


@judge.rule(Times)
def _times(module: Times, x: np.ndarray) -> np.ndarray:
    return judge.exact(module.first, x) * judge.exact(module.second, x)


@judge.rule(Heads)
def _heads(module: Heads, x: np.ndarray) -> np.ndarray:
    out = []
    for head in range(len(module.w_q)):
        q, k, v = (
            judge.affine(getattr(module, f"w_{name}")[head], getattr(module, f"b_{name}")[head], x) for name in "qkv"
        )
        out.append(judge.attention(q, k, v, judge.arb(module.scale).sqrt(), module.causal))
    return np.concatenate(out, axis=-1)


@dataclass(frozen=True)
class Drawn:
    kind: str
    module: nn.Module
    x: Tensor
    by_domain: bool


def drawn(seed: int) -> Drawn:
    """The network of this number."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    kind, make = dice.choice(tuple(KINDS.items()))
    module, shape = make(dice)
    module = module.double().eval()
    extreme = dice.random() < 0.5
    with torch.no_grad():
        for name, part in module.named_parameters():
            if "norm" not in name and part.ndim > 1 and extreme:
                part.mul_(10.0 ** dice.uniform(-3, 2))
            elif part.ndim == 1:
                part.copy_(torch.randn_like(part) * (10.0 ** dice.uniform(-3, 3) if extreme else 1.0))
    scale = 10.0 ** dice.uniform(-6, 6) if extreme else 1.0
    offset = dice.choice((0.0, 0.0, 1.0, 100.0)) * scale
    x = torch.randn(dice.choice((4, 8)), *shape, dtype=f64) * scale + offset
    return Drawn(kind, module, x, dice.random() < 0.2)


def activation(dice: random.Random) -> nn.Module:
    return dice.choice(ACTIVATIONS)()


def norm(dice: random.Random, width: int) -> nn.Module:
    if dice.random() < 0.6:
        return nn.LayerNorm(width, eps=dice.choice(EPS), elementwise_affine=dice.random() < 0.7)
    return nn.RMSNorm(width, eps=dice.choice((None, *EPS)))


def perceptron(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    widths = [dice.randint(1, 6) for _ in range(dice.randint(2, 4))]
    parts: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        parts += [nn.Linear(fan_in, fan_out, bias=dice.random() < 0.8), activation(dice)]
    return nn.Sequential(*parts[: len(parts) - dice.randint(0, 1)]), (widths[0],)


def normed(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = dice.choice((2, 3, 5, 6, 7, 10))
    parts = [norm(dice, width)]
    if dice.random() < 0.5:
        parts += [nn.Linear(width, width), activation(dice)]
    if dice.random() < 0.4:
        parts.append(norm(dice, width))
    return nn.Sequential(*parts), (width,)


def batch_normed(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = dice.randint(1, 6)
    made = nn.BatchNorm1d(width, eps=dice.choice(EPS), affine=dice.random() < 0.7)
    made.running_mean.normal_(0, 10.0 ** dice.uniform(-2, 2))
    made.running_var.uniform_(0.1, 10).mul_(10.0 ** dice.uniform(-6, 3))
    return nn.Sequential(made, nn.Linear(width, 3), activation(dice)), (width,)


def attending(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    count, width, features = dice.choice((1, 2)), dice.choice((1, 2, 3)), dice.choice((2, 3, 5))
    parts = [torch.randn(count, width, features, dtype=f64) for _ in range(3)]
    biases = [torch.randn(count, width, dtype=f64) for _ in range(3)] if dice.random() < 0.5 else []
    made = Heads(*parts, *biases, causal=dice.random() < 0.5, scale=dice.choice((1.0, float(width))))
    return made, (dice.choice((2, 3)), features)


def encoding(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    heads, width = dice.choice(((1, 3), (2, 4), (2, 6), (3, 6)))
    made = nn.TransformerEncoderLayer(
        width,
        heads,
        4,
        batch_first=True,
        norm_first=dice.random() < 0.5,
        activation=dice.choice(("relu", "gelu")),
        layer_norm_eps=dice.choice(EPS),
        bias=dice.random() < 0.8,
    )
    return made, (dice.choice((2, 3)), width)


def own(dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width = dice.choice((2, 3, 5))
    inner = nn.Sequential(norm(dice, width), nn.Linear(width, width), activation(dice))
    if dice.random() < 0.5:
        return Residual(inner), (width,)
    return Times(nn.Linear(width, width), inner), (width,)


KINDS = {
    "perceptron": perceptron,
    "norms": normed,
    "batch norm": batch_normed,
    "attention": attending,
    "encoder layer": encoding,
    "own forward": own,
}


def compiled(case: Drawn) -> NetworkProgram:
    if case.by_domain:
        return compile_network(case.module, case.x.abs().max().item(), shape=tuple(case.x.shape[1:]))
    return compile_network(case.module, data=case.x)
