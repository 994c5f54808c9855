"""A domain around the path that an algorithm takes on given data."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from emulon.algorithms import GradientDescent
from emulon.certify import Domain


def covering(descent: GradientDescent, x: Tensor, y: Tensor, room: float = 1.5) -> Domain:
    """Bounds that hold along the exact iterates on this data, with some room; a construction checks them as it runs."""
    x, y = x.double(), y.double()
    path = descent.iterates(x, y)
    inner_x, inner_y, _ = descent.loss.effective(x, y)
    residual = (inner_x @ path.mT - inner_y.unsqueeze(-1)).abs().max().item()
    absolute = (inner_x.abs() @ path.abs().mT + inner_y.abs().unsqueeze(-1)).max().item()
    wide = Domain.of(x, y, max(path.abs().max().item() * room, 1e-3))
    return replace(wide, residual=residual * room + 1e-3, absolute=absolute * room + 1e-3)
