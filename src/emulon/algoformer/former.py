"""What the assemblies share: choosing heads from the tolerance, checking, running, and saying what they are."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from emulon.algoformer.frame import Frame
from emulon.algoformer.stencil import MOST_PAIRS
from emulon.attention import Slots
from emulon.certify import Certificate
from emulon.errors import OutOfDomain, ToleranceTooTight

# Loops every tolerance is promised for unless the caller asks for more.
HORIZON = 50


def fewest_pairs(bound: Callable[[int, int], float], tolerance: float | None, horizon: int) -> int:
    """The fewest ± pairs whose bound(pairs, loops) keeps the tolerance up to the horizon; without one, the best pairs.

    Where nothing can be promised up to the horizon (an infinite bound), the best pairs are those of a single loop.
    """
    bounds = {}
    for pairs in range(1, MOST_PAIRS + 1):
        bounds[pairs] = bound(pairs, horizon)
        if tolerance is not None and bounds[pairs] <= tolerance:
            return pairs
    best = min(bounds, key=lambda pairs: bounds[pairs])
    if bounds[best] == math.inf:
        best = min(bounds, key=lambda pairs: bound(pairs, 1))
    if tolerance is None:
        return best
    advice = ", shorten the horizon, narrow the domain, or use a wider dtype"
    raise ToleranceTooTight(f"{best} pairs of heads over {horizon} loops", tolerance, bounds[best], advice)


def share(total: float, terms: Mapping[str, float]) -> dict[str, float]:
    """Split an accumulated bound over the named terms of the step it is proportional to."""
    whole = sum(terms.values())
    return {name: total * (part / whole) if part else 0.0 for name, part in terms.items()}


class Former(nn.Module):
    """A frozen pre/loop/post transformer built for a domain, with its certificate for every loop count ≤ horizon."""

    slots: Slots
    frame: Frame

    def __init__(self, *, dtype: torch.dtype, horizon: int) -> None:
        super().__init__()
        if dtype not in (torch.float32, torch.float64):
            raise OutOfDomain(f"{dtype} cannot hold the position codes' scores exactly; use float32 or float64")
        if horizon < 1:
            raise OutOfDomain(f"horizon must be at least one loop, got {horizon}")
        self.dtype, self.horizon = dtype, horizon

    @abstractmethod
    def certificate(self, loops: int | None = None) -> Certificate:
        """|prediction − exact iterate| after `loops` (by default `horizon`) loops, for every input in the domain."""

    def require_loops(self, loops: int) -> None:
        if not 0 <= loops <= self.horizon:
            raise OutOfDomain(
                f"loops = {loops}, but the promise was made for 0 to {self.horizon}; build with a horizon"
            )

    def require_dtype(self, **tensors: Tensor) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype != self.dtype:
                raise OutOfDomain(f"{name} is {tensor.dtype}, the weights are {self.dtype}; convert one of them first")

    def extra_repr(self) -> str:
        return f"width={self.slots.width} {self.slots}\nafter {self.horizon} loops: {self.certificate()}"
