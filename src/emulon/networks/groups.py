"""Layers that together are a map which is known better than they are: products, 1/√v in two, and normalisations.

Nothing is remembered of how a network was written: groups are found in its layers, number by number, so that a file
cannot claim one that is not there. `first` is the first register that a group writes; from there to its last, its
layers read each other and the registers that it starts from, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from emulon.expressions import parse
from emulon.interpreter.curvature import Slopes
from emulon.networks.layers import Box, Elementwise, Known, Layer, Linear, Root
from emulon.networks.lowering import SQUARE

f64 = torch.float64
# Pieces of a range of v, each longer than the one before.
PIECES = 4096


@dataclass(frozen=True)
class Product:
    """W·(x∘y) + b of the registers x and y; one feature of y may multiply all. `first` is their sum and difference."""

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
    """(ax + y/a)² and (ax − y/a)², one less the other, where a is a power of two."""
    last = _writer(layers, register)
    squares = _writer(layers, last.reads[0]) if isinstance(last, Linear) and len(last.reads) == 1 else None
    if not isinstance(last, Linear) or not _is_square(squares):
        return None
    assert squares is not None
    both = _writer(layers, squares.reads[0])
    if not isinstance(both, Linear) or len(both.reads) != 2 or both.bias.any():
        return None
    size = both.weight.shape[0] // 2
    scale = both.weight[0, 0].item()
    if math.frexp(scale)[0] != 0.5:
        return None
    asked = sum_and_difference(size, 1 if both.weight.shape[1] == size + 1 else size, scale)
    if not torch.equal(both.weight, asked):
        return None
    left, right = last.weight.split(size, dim=-1)
    first = squares.reads[0]
    return Product(first, *both.reads, 4 * left, last.bias) if torch.equal(left, -right) else None


def sum_and_difference(size: int, other: int, scale: float = 1.0) -> Tensor:
    """(ax + y/a, ax − y/a) for x of so many features and y of as many, or one, where a is a power of two."""
    one = torch.eye(size, dtype=f64, device="cpu")
    two = (one if other == size else torch.ones(size, 1, dtype=f64, device="cpu")) / scale
    return torch.cat([torch.cat([scale * one, two], dim=-1), torch.cat([scale * one, -two], dim=-1)])


def balance(x: float, y: float) -> float:
    """The power of two a for which numbers of size x, times a, are about as large as those of size y, divided by it."""
    return 2.0 ** round((math.log2(y) - math.log2(x)) / 2) if x > 0 and y > 0 else 1.0


def balanced(layers: Sequence[Layer], known: Sequence[Known]) -> list[Layer]:
    """The same layers, factors of a product brought to about one size: what squares round is a part of the larger.

    Ranges are those of the layers as given; where both factors are about as large nothing is changed.
    """
    found = list(layers)
    for register in range(1, len(layers) + 1):
        group = _product(layers, register)
        both = None if group is None else layers[group.first - 1]
        if group is None or not isinstance(both, Linear):
            continue
        size, other = both.weight.shape[0] // 2, both.weight.shape[1] - both.weight.shape[0] // 2
        where = known[group.first - 1].inputs
        x, y = Box(where.lo[:size], where.hi[:size]).size, Box(where.lo[size:], where.hi[size:]).size
        scale = balance(x, y)
        if not 1 / 4 <= scale <= 4:
            found[group.first - 1] = replace(both, weight=sum_and_difference(size, other, scale))
    return found


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
    if even and mean.unrounded is not None:
        exact = mean.unrounded
        even = bool((exact.numerators == 1).all()) and exact.squares.flatten().tolist() == [size**2, 0.0]
        even = even and not exact.shift.any() and torch.equal(exact.bias, mean.bias)
    return Norm(mean.reads[0], group.x, v, group.weight, group.bias) if even and square.reads == (group.x,) else None
