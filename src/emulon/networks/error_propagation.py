"""Forward error propagation through a network: of every number, and of the length of a position's error vector.

Each of the two has layers that it is good at: short rows the one, wide matrices the other. Through a composite, errors
propagate part by part, and by the Lipschitz constant of its map; the smaller bound holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from emulon.interpreter.identity_grid import IdentityGrid
from emulon.networks.layers import Composite, NetworkPhase, SimpleLayer, Slack
from emulon.networks.products import ReciprocalRoot
from emulon.networks.ranges import Box, ErrorBound

f64 = torch.float64
# A run makes sure that exact numbers are in range by keeping as far from the edges as its numbers may be off. Where
# that is more than this part of the range, nothing is made sure: it would refuse what is right. Ranges seen on data
# have a margin to spare, those computed for a domain a thousandth.
VOID = {"data": 5e-3, "domain": 1e-4}


@dataclass(frozen=True)
class Register:
    """Errors of one register in several cases, and where (`known`) its exact numbers are certain to be in range.

    `limit` is how far from the edges of its range the register can be asked to stay; `parts` are a composite's.
    """

    bound: ErrorBound
    known: Bool[Tensor, " cases"]
    limit: float
    parts: tuple[Register, ...] = ()

    @property
    def slack(self) -> Slack:
        """In the last case; nothing where exact numbers are not certain to be in range all the same."""
        most = self.limit if self.known[-1] else 0.0
        return Slack(self.bound.each[-1].clamp(max=most), tuple(part.slack for part in self.parts))


@dataclass(frozen=True)
class ErrorPropagation:
    """On the interpreter with this number line; `void` is one of `VOID`."""

    line: IdentityGrid
    void: float
    _own: dict[NetworkPhase, list[Register]] = field(default_factory=dict)

    def through(self, phases: Sequence[NetworkPhase], box: Box, before: float | Tensor = 0.0) -> list[Register]:
        """All registers of a network when its first 0, 1, …, all layers err; the input is off by `before` already."""
        cases = torch.arange(len(phases) + 1, device="cpu")
        bound = ErrorBound.of(torch.zeros(len(cases), len(box.lo), dtype=f64, device="cpu") + before)
        first = self._register(bound, box, None)
        return self._registers(phases, [first], [cases > number for number in range(len(phases))], None)

    def own(self, phase: NetworkPhase) -> list[Register]:
        """All registers of a composite's phase on exact inputs, in one case."""
        layer = phase.layer
        assert isinstance(layer, Composite)
        if phase not in self._own:
            one = torch.ones(1, dtype=torch.bool, device="cpu")
            exact = [ErrorBound.of(0 * part.lo.unsqueeze(0)) for part in layer.split(phase.ranges.inputs)]
            given = [Register(bound, one, math.inf) for bound in exact]
            self._own[phase] = self._registers(phase.phases, given, [one] * len(phase.phases), None)
        return self._own[phase]

    def _register(
        self,
        bound: ErrorBound,
        box: Box,
        follows: Bool[Tensor, " cases"] | None,
        constant: bool = False,
        parts: Sequence[Register] = (),
    ) -> Register:
        limit = math.inf if constant or not len(box.lo) else self.void * (box.hi - box.lo).min().item()
        known = (bound.each <= limit).all(dim=-1)
        return Register(bound, known if follows is None else known | follows, limit, tuple(parts))

    def _registers(
        self,
        phases: Sequence[NetworkPhase],
        given: Sequence[Register],
        erring: Sequence[Bool[Tensor, " cases"]],
        follows: Bool[Tensor, " cases"] | None,
    ) -> list[Register]:
        """`erring` says in which cases each phase errs; `follows` where all exact numbers are known to be in range."""
        found = list(given)
        for phase, errs in zip(phases, erring, strict=True):
            read, layer, parts = [found[i] for i in phase.layer.reads], phase.layer, list[Register]()
            if isinstance(layer, Composite):
                parts = self._parts(phase, read, errs, follows)
                bound = self._by_map(phase, layer, read, errs, parts)
            else:
                assert isinstance(layer, SimpleLayer)
                own = phase.own_error(self.line)
                bound = layer.propagated([each.bound for each in read], phase.ranges)
                if not layer.is_affine and read:
                    bound = bound.where(_all_known(read))
                bound = bound.plus(ErrorBound.of((errs.to(f64) * own).unsqueeze(-1).expand(-1, bound.each.shape[-1])))
            constant = phase.kind == "constant"
            found.append(self._register(bound, phase.ranges.output, follows, constant, parts[len(read) :]))
        return found

    def _parts(
        self, phase: NetworkPhase, read: Sequence[Register], errs: Tensor, follows: Tensor | None
    ) -> list[Register]:
        """The registers of a composite, part by part."""
        if isinstance(phase.layer, ReciprocalRoot) and phase.layer.coarse is not None:
            follows = read[0].known  # ranges of its parts hold for every input in range
        return self._registers(phase.phases, read, [errs] * len(phase.phases), follows)

    def _by_map(
        self, phase: NetworkPhase, layer: Composite, read: Sequence[Register], errs: Tensor, parts: Sequence[Register]
    ) -> ErrorBound:
        """The least of the bounds: part by part; by the map, with what its parts add to exact inputs; of any answer."""
        own = [each.bound.where(errs, 0.0) for each in self.own(phase)]
        by_map = layer.map_error([each.bound for each in read], phase.ranges, own).plus(own[-1])
        bound = parts[-1].bound.least(by_map.where(_all_known(parts[:-1])))
        largest = layer.largest_error(phase.ranges)
        return bound if largest is None else bound.least(largest)


def _all_known(registers: Sequence[Register]) -> Bool[Tensor, " cases"]:
    return torch.stack([each.known for each in registers]).all(dim=0)
