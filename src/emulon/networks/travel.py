"""How errors travel through a network: number by number, and as the length of a position's error vector.

Each of the two has layers that it is good at: short rows the one, wide matrices the other. Where layers together are a
map G that is known (a product, 1/√v, a norm), its own Lipschitz constant is taken for what was off before, and its
layers only for what they add: Ĝ(x̂) − G(x) = (Ĝ(x̂) − G(x̂)) + (G(x̂) − G(x)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from emulon.networks.groups import Group, Norm, Product, ReciprocalRoot, groups_of, root_ranges, starts
from emulon.networks.layers import LIFT, Box, Linear, spectral_norm
from emulon.networks.phase import NetworkPhase

f64 = torch.float64
# A run makes sure that exact numbers are in range by keeping as far from the edges as its numbers may be off. Where
# that is more than this part of the range, nothing is made sure: it would refuse what is right. Ranges seen on data
# have a margin to spare, those computed for a domain a thousandth.
VOID = {"data": 5e-3, "domain": 1e-4}


@dataclass(frozen=True)
class Off:
    """Of one register, when the first 0, 1, …, all layers err: of every number, and of a position's, in the 2-norm."""

    each: Float64[Tensor, "erring features"]
    length: Float64[Tensor, " erring"]

    @classmethod
    def of(cls, each: Tensor, length: Tensor | None = None) -> Off:
        """Both as small as the other lets them be; NaN is no bound."""
        each = each.nan_to_num(nan=math.inf, posinf=math.inf)
        whole = each.norm(dim=-1) * LIFT
        length = whole if length is None else torch.minimum(length.nan_to_num(nan=math.inf, posinf=math.inf), whole)
        return cls(torch.minimum(each, length.unsqueeze(-1)), length)

    def where(self, told: Bool[Tensor, " erring"]) -> Off:
        """Unbounded where nothing is told."""
        return Off(torch.where(told.unsqueeze(-1), self.each, math.inf), torch.where(told, self.length, math.inf))

    def least(self, other: Off) -> Off:
        return Off.of(torch.minimum(self.each, other.each), torch.minimum(self.length, other.length))

    def plus(self, other: Off) -> Off:
        return Off.of((self.each + other.each) * LIFT, (self.length + other.length) * LIFT)


@dataclass(frozen=True)
class Travel:
    """`boxes` say where every register's numbers are, `own` what every phase adds; `void` is one of `VOID`.

    `follows` are registers of a 1/√v whose exact numbers are in range wherever v is, by the register of v.
    """

    phases: Sequence[NetworkPhase]
    boxes: Sequence[Box]
    own: Sequence[float]
    void: float
    groups: Mapping[int, Group] = field(init=False)
    follows: Mapping[int, int] = field(init=False)

    def __post_init__(self) -> None:
        layers = [phase.layer for phase in self.phases]
        object.__setattr__(self, "groups", groups_of(layers))
        follows = dict[int, int]()
        for last, group in self.groups.items():
            if isinstance(group, ReciprocalRoot):
                ranges = root_ranges(layers, group, last, self.boxes[group.v])
                if ranges is not None and all(box.is_inside(self.boxes[each]) for each, box in ranges.items()):
                    follows |= dict.fromkeys(ranges, group.v)
        object.__setattr__(self, "follows", follows)

    def all(self, before: float | Tensor) -> list[Off]:
        """Of all registers, the input being off by `before` already."""
        found = {0: Off.of(torch.zeros(len(self.phases) + 1, len(self.boxes[0].lo), dtype=f64, device="cpu") + before)}
        for register in range(1, len(self.phases) + 1):
            found[register] = self._written(register, found)
        return list(found.values())

    def room(self, register: int) -> float:
        """How far from the edges of its range a register can be asked to stay."""
        box = self.boxes[register]
        constant = register > 0 and self.phases[register - 1].kind == "constant"
        return math.inf if constant or not len(box.lo) else self.void * (box.hi - box.lo).min().item()

    def rooms(self) -> list[Float64[Tensor, " features"]]:
        """How far that is, as far as it helps: nothing where exact numbers are not sure to be in range all the same."""
        found, rooms = self.all(0.0), list[Tensor]()
        for register, off in enumerate(found):
            most = self.room(register) if self._is_known(register, dict(enumerate(found)))[-1] else 0.0
            rooms.append(off.each[-1].clamp(max=most))
        return rooms

    def _is_sure(self, register: int, off: Off) -> Bool[Tensor, " erring"]:
        """Whether the exact numbers of a register are in its range because the computed ones are, with room."""
        return (off.each <= self.room(register)).all(dim=-1)

    def _is_known(self, register: int, found: Mapping[int, Off]) -> Bool[Tensor, " erring"]:
        """The same, or because the one that they follow from is."""
        sure, v = self._is_sure(register, found[register]), self.follows.get(register)
        return sure if v is None or v not in found else sure | self._is_sure(v, found[v])

    def _written(self, register: int, found: Mapping[int, Off]) -> Off:
        plain, group = self._by_layer(register, found), self.groups.get(register)
        if group is None:
            return plain
        known = self._by_map(register, group, found)
        inside = [*starts(group), *range(group.first, register)]
        told = torch.stack([self._is_known(each, found) for each in inside]).all(dim=0)
        found_off = plain.least(known.where(told))
        return found_off.least(self._largest(register, group)) if isinstance(group, Norm) else found_off

    def _by_layer(self, register: int, found: Mapping[int, Off]) -> Off:
        phase, own = self.phases[register - 1], self.own[register - 1]
        layer, parts = phase.layer, [found[read] for read in phase.layer.reads]
        rows = len(self.phases) + 1
        each = (
            torch.cat([part.each for part in parts], dim=-1) if parts else torch.zeros(rows, 0, dtype=f64, device="cpu")
        )
        lengths = torch.stack([part.length for part in parts], dim=-1) if parts else each
        sizes = [len(self.boxes[read].lo) for read in layer.reads]
        moved = Off.of(*layer.travelled(each, lengths, sizes, phase.known))
        if not isinstance(layer, Linear) and parts:
            moved = moved.where(torch.stack([self._is_known(read, found) for read in layer.reads]).all(dim=0))
        errs = (torch.arange(rows, device="cpu") >= register).to(f64) * own
        return moved.plus(Off.of(errs.unsqueeze(-1).expand_as(moved.each)))

    def _by_map(self, register: int, group: Group, found: Mapping[int, Off]) -> Off:
        """What the map makes of the error before it, and what its layers add to none."""
        local = {each: Off.of(torch.zeros_like(found[each].each)) for each in starts(group)}
        for inner in range(group.first, register):
            local[inner] = self._written(inner, local)
        added = self._by_layer(register, local)
        if isinstance(group, Product):
            return added.plus(self._product(group, found))
        if isinstance(group, ReciprocalRoot):
            lowest = self.boxes[group.v].lo.item()
            slope = 1 / (2 * lowest**1.5) * LIFT if lowest > 0 else math.inf
            return added.plus(Off.of(found[group.v].each * slope))
        return added.plus(self._norm(group, found, local[group.v]))

    def _product(self, group: Product, found: Mapping[int, Off]) -> Off:
        """Claim: |x̂ŷ − xy| ≤ |x̂|·e_y + |y|·e_x, for numbers in range."""
        x, y = (torch.maximum(self.boxes[each].lo.abs(), self.boxes[each].hi.abs()) for each in (group.x, group.y))
        return Off.of((x * found[group.y].each + y * found[group.x].each) @ group.weight.abs().T * LIFT)

    def _norm(self, group: Norm, found: Mapping[int, Off], variance: Off) -> Off:
        """Claim: c/σ moves by at most (e + ‖e‖)/σ̂ in every number, and by ‖e‖/(σ̂ − ‖e‖/√n) in length.

        Proof. ĉ/σ̂ − c/σ = (ĉ − c)/σ̂ + (c/σ)·(σ − σ̂)/σ̂; σ is the length of (c, √(nε))/√n, so that it moves by at most
        ‖e‖/√n, and |c_i| ≤ √n·σ. The map's derivative, (I − ccᵀ/(nσ²))/σ, is shorter than 1/σ, and between c and ĉ σ is
        at least σ̂ − ‖e‖/√n. σ̂² is v as the exact layers give it for ĉ: within what these err of the number that a run
        has seen in range. QED
        """
        lowest = self.boxes[group.v].lo.item() - variance.each.squeeze(-1)
        sigma = lowest.clamp(min=0.0).sqrt() / LIFT
        off, size = found[group.c], group.weight.shape[1]
        each = (off.each + off.length.unsqueeze(-1)) / sigma.unsqueeze(-1) @ group.weight.abs().T * LIFT
        shortest = (sigma - off.length * LIFT / math.sqrt(size)).clamp(min=0.0)
        return Off.of(each, spectral_norm(group.weight) * off.length / shortest * LIFT)

    def _largest(self, register: int, group: Norm) -> Off:
        """Whatever the input, ‖c/σ‖ ≤ √n: exact answers are no larger, and the computed ones are in range."""
        exact = group.weight.norm(dim=-1) * math.sqrt(group.weight.shape[1]) * LIFT + group.bias.abs()
        box = self.boxes[register]
        most = exact + torch.maximum(box.lo.abs(), box.hi.abs())
        return Off.of(most.expand(len(self.phases) + 1, -1))
