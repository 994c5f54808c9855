"""Layers that together are a map which is known better than they are: products, 1/√v in two, and normalisations.

Nothing is remembered of how a network was written: groups are found in its layers, number by number, so that a file
cannot claim one that is not there. `first` is the first register that a group writes; from there to its last, its
layers read each other and the registers that it starts from, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.descent.curvature import Slopes
from emulon.expression import parse
from emulon.networks.layers import Box, Elementwise, Layer, Linear, Root
from emulon.networks.lowering import SQUARE

f64 = torch.float64
# Pieces of a range of v, each longer than the one before.
PIECES = 4096


@dataclass(frozen=True)
class Product:
    """W·(x∘y) + b of the registers x and y; one feature of y may multiply all."""

    first: int
    x: int
    y: int
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class ReciprocalRoot:
    """1/√v of the register v, a single feature, by s·(s²v)^{−1/2}."""

    first: int
    v: int


@dataclass(frozen=True)
class Norm:
    """W·c/√v + b of the register c, where v = mean c² + ε, ε > 0, is a register, too."""

    first: int
    c: int
    v: int
    weight: Tensor
    bias: Tensor


Group = Product | ReciprocalRoot | Norm


def root_ranges(layers: Sequence[Layer], group: ReciprocalRoot, register: int, v: Box) -> dict[int, Box] | None:
    """Where all registers of 1/√v in two are, for every v of the box: by intervals, s²v and the last by their formulas.

    Nothing where s is not proved to fall with v.
    """
    coarse = layers[group.first - 1]
    assert isinstance(coarse, Elementwise)
    if not v.ends[0] > 0 or Slopes(parse(coarse.f)).between(*v.ends)[1] > 0:
        return None
    boxes = {group.v: v}
    for inner in range(group.first, register):
        layer = layers[inner - 1]
        if isinstance(layers[inner], Root):  # what the root is taken of
            boxes[inner] = _squared_times(coarse, v)
        else:
            boxes[inner] = layer.interval(Box.beside([boxes[read] for read in layer.reads]))
    boxes[register] = Box((1 / v.hi.sqrt()) * (1 - 1e-12), (1 / v.lo.sqrt()) * (1 + 1e-12))
    return {inner: boxes[inner] for inner in range(group.first, register + 1)}


def _squared_times(coarse: Elementwise, v: Box) -> Box:
    """s²v where s falls with v: on every piece from a to b between s(b)²·a and s(a)²·b."""
    lo, hi = v.ends
    ends = torch.logspace(math.log2(lo), math.log2(hi), PIECES + 1, base=2.0, dtype=f64, device="cpu")
    ends[0], ends[-1] = lo, hi
    squares = coarse.exact(ends).square()
    least, most = (squares[1:] * ends[:-1]).min(), (squares[:-1] * ends[1:]).max()
    return Box(least.reshape(1) * (1 - 1e-12), most.reshape(1) * (1 + 1e-12))


def groups_of(layers: Sequence[Layer]) -> dict[int, Group]:
    """By the register that a group writes last."""
    found: dict[int, Group] = {}
    for register in range(1, len(layers) + 1):
        product = _product(layers, register)
        kinds = (_root(layers, product), _norm(layers, product, found), product) if product is not None else ()
        group = next((each for each in kinds if each is not None and _is_closed(layers, each, register)), None)
        if group is not None:
            found[register] = group
    return found


def starts(group: Group) -> tuple[int, ...]:
    """The registers that a group starts from."""
    if isinstance(group, Product):
        return group.x, group.y
    return (group.v,) if isinstance(group, ReciprocalRoot) else (group.c,)


def _is_closed(layers: Sequence[Layer], group: Group, register: int) -> bool:
    inside = layers[group.first - 1 : register]
    return all(read >= group.first or read in starts(group) for layer in inside for read in layer.reads)


def _writer(layers: Sequence[Layer], register: int) -> Layer | None:
    return layers[register - 1] if register else None


def _product(layers: Sequence[Layer], register: int) -> Product | None:
    """(x + y)² and (x − y)², one less the other."""
    last = _writer(layers, register)
    squares = _writer(layers, last.reads[0]) if isinstance(last, Linear) and len(last.reads) == 1 else None
    if not isinstance(last, Linear) or not _is_square(squares):
        return None
    assert squares is not None
    both = _writer(layers, squares.reads[0])
    if not isinstance(both, Linear) or len(both.reads) != 2 or both.bias.any():
        return None
    size = both.weight.shape[0] // 2
    one = torch.eye(size, dtype=f64, device="cpu")
    two = torch.ones(size, 1, dtype=f64, device="cpu") if both.weight.shape[1] == size + 1 else one
    asked = torch.cat([torch.cat([one, two], dim=-1), torch.cat([one, -two], dim=-1)])
    if both.weight.shape != asked.shape or not torch.equal(both.weight, asked):
        return None
    left, right = last.weight.split(size, dim=-1)
    first = squares.reads[0]
    return Product(first, *both.reads, 4 * left, last.bias) if torch.equal(left, -right) else None


def _is_square(layer: Layer | None) -> bool:
    return isinstance(layer, Elementwise) and layer.f == SQUARE


def _is_plain(group: Product | None) -> bool:
    """x·y of two single features, and no more."""
    return group is not None and group.weight.shape == (1, 1) and group.weight.item() == 1 and not group.bias.any()


def _root(layers: Sequence[Layer], group: Product) -> ReciprocalRoot | None:
    """coarse · 1/√(coarse²·v), where coarse is a function of v."""
    coarse, fine = _writer(layers, group.x), _writer(layers, group.y)
    if not _is_plain(group) or not isinstance(fine, Root) or not isinstance(coarse, Elementwise):
        return None
    inner = _product(layers, fine.reads[0])
    if inner is None or not _is_plain(inner) or not _is_square(squared := _writer(layers, inner.x)):
        return None
    assert squared is not None
    same = squared.reads == (group.x,) and coarse.reads == (inner.y,)
    return ReciprocalRoot(group.x, inner.y) if same else None


def _norm(layers: Sequence[Layer], group: Product, found: dict[int, Group]) -> Norm | None:
    """c times 1/√(mean c² + ε), taken at once or in two."""
    root = found.get(group.y)
    writer = _writer(layers, group.y)
    if isinstance(root, ReciprocalRoot):
        v = root.v
    elif isinstance(writer, Root):
        v = writer.reads[0]
    else:
        return None
    mean = _writer(layers, v)
    size = group.weight.shape[1]
    if not isinstance(mean, Linear) or len(mean.reads) != 1 or not _is_square(square := _writer(layers, mean.reads[0])):
        return None
    assert square is not None
    even = mean.weight.shape == (1, size) and bool((mean.weight == 1 / size).all()) and mean.bias.item() > 0
    return Norm(mean.reads[0], group.x, v, group.weight, group.bias) if even and square.reads == (group.x,) else None
