"""Normalisations: means and scalings are linear, 1/√v is a function of one number, and a product is two squares.

c·r = ((c + r)² − (c − r)²)/4, so that x ↦ (x − mean)·r(v) is three linear maps, three functions and no more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from emulon.core.errors import BadNetwork
from emulon.networks.groups import sum_and_difference
from emulon.networks.lowering import SQUARE, Builder, lowers

f64 = torch.float64


def product(
    builder: Builder,
    place: str,
    first: int,
    second: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float = 1.0,
) -> int:
    """Register times register, feature by feature; a second one of a single feature multiplies all.

    `weight` and `bias` are an affine map of the product that is taken at once, with the quarter; `scale` is a power of
    two, times which the first is about as large as the second, divided by it.
    """
    size, other = builder.sizes[first], builder.sizes[second]
    if other not in (size, 1):
        raise BadNetwork(f"{place or 'a product'} multiplies {size} features by {other}; give as many, or one")
    builder.linear(place, "sum and difference", sum_and_difference(size, other, scale), None, first, second)
    builder.elementwise(place, "square", SQUARE)
    weight = torch.eye(size, dtype=f64, device="cpu") if weight is None else weight
    return builder.linear(place, "product", torch.cat([weight, -weight], dim=-1) / 4, bias)


def normalised(builder: Builder, place: str, weight: Tensor | None, bias: Tensor | None, eps: float) -> int:
    """c/√(mean c² + ε) for the register at hand, times a weight, plus a bias."""
    size, centred = builder.features, builder.at
    builder.elementwise(place, "square", SQUARE)
    ones, offset = torch.ones(1, size, dtype=f64, device="cpu"), torch.tensor([eps], dtype=f64, device="cpu")
    builder.divided(place, "mean square", ones, float(size), bias=offset)
    root = builder.root(place)
    scale = torch.ones(size, dtype=f64, device="cpu") if weight is None else weight.detach().to(f64)
    return product(builder, place, centred, root, torch.diag(scale), bias)


@lowers(nn.LayerNorm)
def layer_norm(builder: Builder, module: nn.LayerNorm, place: str) -> None:
    size = _size(builder, module, place)
    builder.divided(place, "less its mean", size * torch.eye(size, dtype=f64, device="cpu") - 1, float(size))
    normalised(builder, place, module.weight, module.bias, module.eps)


@lowers(nn.RMSNorm)
def rms_norm(builder: Builder, module: nn.RMSNorm, place: str) -> None:
    _size(builder, module, place)
    eps = torch.finfo(f64).eps if module.eps is None else module.eps
    normalised(builder, place, module.weight, None, eps)


def _size(builder: Builder, module: nn.LayerNorm | nn.RMSNorm, place: str) -> int:
    if tuple(module.normalized_shape) != (builder.features,):
        name, shape = place or type(module).__name__, tuple(module.normalized_shape)
        raise BadNetwork(
            f"{name} normalises {shape} and is given {builder.features} features; only all of them at once"
        )
    return builder.features
