"""Appendix E: the residual map as a modern Hopfield layer, which retrieves with softmax(β·patterns·state)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import attend
from emulon.certify import Domain
from emulon.constructions.residual_map import residual_certificate
from emulon.constructions.template import Way, template
from emulon.expression import parse


class HopfieldResidualMap(nn.Module):
    """(x, y, w) ↦ [f(w·x_i − y_i)·x_i]_i: the data are the stored patterns, w the state that asks.

    Claim: as `ResidualMap`, with the same certificate. The same keys are stored, divided by β.
    Corrected (Theorem E.2): Linear_w needs +1, not −1, in front of −L², and the routing constant needs 1/β.
    W_Q and W_K are the identity; W_V reads the pattern's value rows.
    """

    w_v: Tensor

    def __init__(
        self,
        f: Any,
        domain: Domain,
        tolerance: float | None = None,
        *,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.domain = domain
        self.template = template(parse(f), domain, tolerance, points, grid, dtype, scale=1.0)
        self.f = self.template.f
        # A power of two: dividing by it and multiplying again is exact, so both maps round alike.
        self.beta = 2.0 ** round(torch.log2(self.f.grid.slopes.abs().max().clamp(min=1e-6)).item())
        self.register_buffer("w_v", torch.eye(domain.features, dtype=dtype))
        self.certificate = residual_certificate(self.template)

    def patterns(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """What is stored: every key row divided by β, and the value rows as they are."""
        return {name: part if name == "value" else part / self.beta for name, part in self.template.keys(x, y).items()}

    def state(self, w: Tensor) -> Float[Tensor, "... n width"]:
        """What asks: (w, −1, 0, +1, code_c) for every sample c."""
        return torch.cat(list(self.template.queries(w).values()), dim=-1)

    def forward(
        self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"], w: Float[Tensor, "... d"]
    ) -> Float[Tensor, "... n d"]:
        dtype = self.w_v.dtype
        x, y, w = x.to(dtype), y.to(dtype), w.to(dtype)
        self.domain.check(x, y, w)
        patterns = self.patterns(x, y)
        stored = torch.cat([patterns[name] for name in ("key_x", "key_y", "key_bias", "key_code")], dim=-1)
        return attend(self.state(w), self.beta * stored, patterns["value"] @ self.w_v.mT, name="hopfield")
