"""From a module to layers: `lower` asks the registry how each part is written, and names it by its place.

A part is added with `@lowers(nn.Something)`: a function of the builder, the module and the name of its place.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from emulon.certify.domain import require_finite
from emulon.errors import BadNetwork, nearest
from emulon.networks.layers import Attention, Constant, Elementwise, Gated, Layer, Linear, Root

f64 = torch.float64
Lowering = Callable[["Builder", Any, str], None]
REGISTRY: dict[type, Lowering] = {}
SQUARE, ROOT = "t**2", "1/sqrt(t)"
# What a head is made of.
HEAD = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")


def lowers(*kinds: type) -> Callable[[Lowering], Lowering]:
    """Registers how modules of these classes are written in layers."""

    def register(lowering: Lowering) -> Lowering:
        REGISTRY.update(dict.fromkeys(kinds, lowering))
        return lowering

    return register


class Builder:
    """Layers so far; `at` is the register that the next part reads, and `shape` how its numbers are to be read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.layers: list[Layer] = []
        self.given = self.shape = shape
        self.at = 0
        self.is_sequence = len(shape) == 2
        self.sizes = [shape[-1] if self.is_sequence else math.prod(shape)]

    @property
    def features(self) -> int:
        return self.sizes[self.at]

    def add(self, layer: Layer, features: int) -> int:
        """The register that it writes, which is the next part's to read."""
        self.layers.append(layer)
        self.sizes.append(features)
        self.at = len(self.layers)
        return self.at

    @staticmethod
    def name(place: str, what: str) -> str:
        return f"{place} {what}" if place else what

    @property
    def numbered(self) -> list[Layer]:
        """With names of their own: a place may have several layers of one kind."""
        return [replace(layer, name=f"{number} {layer.name}") for number, layer in enumerate(self.layers)]

    def linear(self, place: str, what: str, weight: Tensor, bias: Tensor | None = None, *reads: int) -> int:
        """Θ·(registers side by side) + b; without `reads`, of the register at hand."""
        weight = weight.detach().to(f64)
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(f64)
        require_finite(**{f"the weight of {place or what}": weight, f"the bias of {place or what}": bias})
        reads = reads or (self.at,)
        if weight.shape[1] != sum(self.sizes[i] for i in reads):
            raise BadNetwork(
                f"{place or what} takes {weight.shape[1]} features and is given {sum(self.sizes[i] for i in reads)}"
            )
        layer = Linear(name=self.name(place, what), reads=reads, weight=weight.contiguous(), bias=bias.contiguous())
        return self.add(layer, len(weight))

    def elementwise(self, place: str, what: str, f: str, gated: Gated | None = None) -> int:
        return self.add(Elementwise(name=self.name(place, what), reads=(self.at,), f=f, gated=gated), self.features)

    def root(self, place: str, within: tuple[float, float] | None = None) -> int:
        name = self.name(place, "reciprocal root")
        return self.add(Root(name=name, reads=(self.at,), f=ROOT, within=within), self.features)

    def constant(self, place: str, values: Tensor) -> int:
        values = values.detach().to(f64)
        require_finite(**{place: values})
        layer = Constant(name=self.name(place, "constant"), reads=(), values=values.contiguous())
        return self.add(layer, values.shape[1])

    def attention(self, place: str, parts: dict[str, Tensor], causal: bool) -> int:
        parts = {name: part.detach().to(f64).contiguous() for name, part in parts.items()}
        require_finite(**{f"{name} of {place}": part for name, part in parts.items()})
        name = self.name(place, "attention")
        return self.add(Attention(name=name, reads=(self.at,), causal=causal, **parts), parts["b_v"].numel())

    def self_attention(self, place: str, weight: Tensor, bias: Tensor | None, heads: int, *, causal: bool) -> int:
        """Of the rows for q, then k, then v, each of all heads, as torch and GPT-2 stack them; with their 1/√width."""
        weight = weight.detach().to(f64)
        width = len(weight) // 3 // heads
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(f64)
        (w_q, w_k, w_v), (b_q, b_k, b_v) = (part.unflatten(0, (3, heads, width)) for part in (weight, bias))
        scale = 1 / math.sqrt(width)
        parts = (w_q * scale, w_k, w_v, b_q * scale, b_k, b_v)
        return self.attention(place, dict(zip(HEAD, parts, strict=True)), causal)

    def part(self, module: nn.Module, place: str) -> int:
        """Whatever the module is made of."""
        lower_part(self, module, place)
        return self.at

    def plus(self, first: int, second: int, place: str, sign: float = 1.0) -> int:
        """The sum, or the difference, of two registers."""
        one = torch.eye(self.sizes[first], dtype=f64, device="cpu")
        return self.linear(place, "sum", torch.cat([one, sign * one], dim=-1), None, first, second)

    def add_to(self, before: int, place: str, weight: Tensor, bias: Tensor | None = None) -> int:
        """before + Θ·(the register at hand) + b, the residual sum being part of the linear map."""
        weight = weight.detach().to(f64)
        both = torch.cat([torch.eye(len(weight), dtype=f64, device="cpu"), weight], dim=-1)
        return self.linear(place, "linear, plus what was before", both, bias, before, self.at)


def lower(module: nn.Module, shape: tuple[int, ...]) -> Builder:
    """The layers of a module on inputs of this shape: (features,), (positions, features) or (channels, …)."""
    builder = Builder(shape)
    lower_part(builder, module, "")
    if not builder.layers:
        raise BadNetwork("the network has no layer that computes anything")
    return builder


def lower_part(builder: Builder, module: Any, place: str) -> None:
    """By what the module says of itself (`lower_into`), by the registry, or by a trace of its forward."""
    if hasattr(module, "lower_into"):
        module.lower_into(builder, place)
        return
    for kind in type(module).__mro__:
        if kind in REGISTRY and (kind is not nn.Module or _has_parts(module)):
            REGISTRY[kind](builder, module, place)
            return
    known = sorted({kind.__name__ for kind in REGISTRY} - {"Module"})
    name, where = type(module).__name__, f" at {place}" if place else ""
    hint = nearest(name, known) or f"; compiled are {', '.join(known)}"
    raise BadNetwork(f"a {name}{where} is not compiled{hint}")


def knows(module: nn.Module) -> bool:
    """Whether a module is lowered as a whole, and not by following its forward."""
    kinds = type(module).__mro__
    return hasattr(module, "lower_into") or any(kind in REGISTRY and kind is not nn.Module for kind in kinds)


def _has_parts(module: nn.Module) -> bool:
    """A module of one's own: torch's own, where they are not registered, are refused by name."""
    return not type(module).__module__.startswith("torch.nn.")


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


@lowers(nn.Sequential)
def sequential(builder: Builder, module: nn.Sequential, place: str) -> None:
    # Not `named_children`, which passes over a part that is used twice.
    for name, part in module._modules.items():
        lower_part(builder, part, joined(place, name))


@lowers(nn.Linear)
def linear(builder: Builder, module: nn.Linear, place: str) -> None:
    if not builder.is_sequence and len(builder.shape) > 1:
        raise BadNetwork(f"{place or 'a Linear'} is given numbers of shape {builder.shape}; put a Flatten before it")
    builder.linear(place, "linear", module.weight, module.bias)
    builder.shape = (*builder.shape[:-1], module.out_features)


@lowers(nn.Flatten)
def flatten(builder: Builder, module: nn.Flatten, place: str) -> None:
    if builder.is_sequence or (module.start_dim, module.end_dim) not in ((1, -1), (1, len(builder.shape))):
        raise BadNetwork(f"{place or 'Flatten'}: only a Flatten of all dimensions of an image is compiled")
    builder.shape = (math.prod(builder.shape),)


@lowers(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Upsample)
def linear_on_images(builder: Builder, module: nn.Module, place: str) -> None:
    """Any map that is linear but for its bias, as the matrix that it is: what it makes of unit vectors."""
    plain: Any = copy.deepcopy(module).to(f64)
    bias: Tensor | None = getattr(plain, "bias", None)
    if bias is not None:
        plain.bias = None
    try:
        units = torch.eye(builder.features, dtype=f64, device="cpu").reshape(-1, *builder.shape)
        with torch.no_grad():
            images = plain(units)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:100]
        raise BadNetwork(
            f"{place or type(module).__name__} does not take numbers of shape {builder.shape} ({why})"
        ) from None
    each = images[0, 0].numel()
    whole = None if bias is None else bias.detach().repeat_interleave(each)
    builder.linear(place, type(module).__name__.lower(), images.flatten(1).T, whole)
    builder.shape = tuple(images.shape[1:])


@lowers(nn.BatchNorm1d, nn.BatchNorm2d)
def batch_norm(builder: Builder, module: Any, place: str) -> None:
    """Once trained it is a scale and a shift for every channel."""
    if module.training or module.running_mean is None:
        raise BadNetwork(f"{place or 'BatchNorm'} is in training mode, or keeps no statistics; call .eval() first")
    scale = 1 / torch.sqrt(module.running_var.double() + module.eps)
    if module.affine:
        scale = scale * module.weight.detach().double()
    shift = -module.running_mean.double() * scale
    if module.affine:
        shift = shift + module.bias.detach().double()
    each = builder.features // module.num_features
    scale, shift = (part.repeat_interleave(each) for part in (scale, shift))
    builder.linear(place, "batch norm", torch.diag(scale), shift)


@lowers(nn.Identity)
def identity(builder: Builder, module: nn.Module, place: str) -> None:
    """Nothing."""


@lowers(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
def dropout(builder: Builder, module: Any, place: str) -> None:
    if module.training and module.p > 0:
        raise BadNetwork(f"{place or 'a Dropout'} is in training mode and would draw at random; call .eval() first")
