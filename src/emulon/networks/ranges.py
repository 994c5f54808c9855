"""Where the numbers of a network may be: by interval arithmetic from a box, or as data show it, with a margin."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from emulon.core.errors import OutOfDomain
from emulon.networks.groups import ReciprocalRoot, groups_of, root_ranges
from emulon.networks.layers import Box, Inner, Known, Layer, Root

# Computed numbers may lie this part outside of where exact ones are; where data show ranges, this.
ROOM, SPARE = 1e-3, 2e-2


def reading(layer: Layer, registers: Sequence[Tensor]) -> Tensor:
    """What a layer sees: its registers side by side; one that reads nothing sees the input's shape."""
    if len(layer.reads) == 1:
        return registers[layer.reads[0]]
    return torch.cat([registers[i] for i in layer.reads], dim=-1) if layer.reads else registers[0][..., :0]


def states(layers: Sequence[Layer], x: Float64[Tensor, "rows positions features"]) -> Iterator[Tensor]:
    """The registers that the layers of the exact network write, in plain float64, one after the other."""
    return computed(layers, x, lambda number, inputs: layers[number].exact(inputs))


def computed(layers: Sequence[Layer], x: Tensor, compute: Callable[[int, Tensor], Tensor]) -> Iterator[Tensor]:
    """What each layer writes, by `compute(its number, what it reads)`; what nobody reads any more is let go."""
    last = {read: number for number, layer in enumerate(layers) for read in layer.reads}
    registers: list[Tensor] = [x]
    for number, layer in enumerate(layers):
        registers.append(compute(number, reading(layer, registers)))
        yield registers[-1]
        for read in layer.reads:
            if last[read] == number and read:
                registers[read] = registers[read].new_empty(0)


def from_box(layers: Sequence[Layer], box: Box, room: float = ROOM) -> list[Known]:
    """For every input of the box, by interval arithmetic: sure, and wider with every layer, by `room` at least."""
    boxes, found = [box], []
    for layer in layers:
        inputs = _beside(layer, boxes)
        exact = layer.interval(inputs)
        if not (torch.isfinite(exact.lo).all() and torch.isfinite(exact.hi).all()):
            raise OutOfDomain(f"{layer.name}: intervals have grown without bound on the way; give data=… for ranges")
        boxes.append(exact.widened(room))
        found.append(Known(inputs, boxes[-1], layer.inside_of(inputs)))
    return found


def from_data(layers: Sequence[Layer], x: Float64[Tensor, "rows positions features"], margin: float) -> list[Known]:
    """As these inputs show it, all features of a register in one interval, widened by the margin.

    What a root is taken of is widened in proportion, and twice as much: it must stay above zero.
    """
    within = {layer.reads[0]: layer.within for layer in layers if isinstance(layer, Root)}
    roots = {last: group for last, group in groups_of(layers).items() if isinstance(group, ReciprocalRoot)}
    within |= {group.v: None for group in roots.values()}
    boxes, inners = [_seen(x).widened(margin)], list[Inner | None]()

    def exact(number: int, inputs: Tensor) -> Tensor:
        inners.append(layers[number].inside(inputs))
        return layers[number].exact(inputs)

    for number, register in enumerate(computed(layers, x, exact), start=1):
        seen = _seen(register)
        boxes.append(_under_a_root(within[number], seen, margin) if number in within else seen.widened(margin))
    for last, group in roots.items():
        ranges = root_ranges(layers, group, last, boxes[group.v])
        if ranges is not None:
            boxes[group.first : last + 1] = [box.widened(SPARE) for box in ranges.values()]
    found = []
    for layer, output, inner in zip(layers, boxes[1:], inners, strict=True):
        if inner is not None:
            part = 1 + margin
            inner = Inner(inner.q * part, inner.k * part, inner.v * part, inner.score * part**2)
        found.append(Known(_beside(layer, boxes), output, inner))
    return found


def input_box(x: Float64[Tensor, "rows positions features"], margin: float) -> Box:
    return _seen(x).widened(margin)


def _beside(layer: Layer, boxes: Sequence[Box]) -> Box:
    return Box.beside(
        [boxes[i] for i in layer.reads]
        or [Box(torch.zeros(0, device="cpu").double(), torch.zeros(0, device="cpu").double())]
    )


def _under_a_root(within: tuple[float, float] | None, seen: Box, margin: float) -> Box:
    if within is not None:
        return Box(*(torch.full_like(seen.lo, end) for end in within))
    return seen.stretched((1 + margin) ** 2 - 1) if seen.ends[0] > 0 else seen


def _seen(register: Tensor) -> Box:
    if not torch.isfinite(register).all():
        raise OutOfDomain("the network's own numbers on this data are not finite; check its weights and the data")
    lo, hi = (end.expand(register.shape[-1]).clone() for end in (register.min(), register.max()))
    return Box(lo, hi)
