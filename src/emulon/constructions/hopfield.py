"""Appendix E: the residual map as a modern Hopfield layer, which retrieves with softmax(β·patterns·state)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import attend
from emulon.constructions.accuracy import Inputs, Targets, Weights
from emulon.constructions.residual_map import OnResiduals, admitted
from emulon.interpreter.layout import HALF


class HopfieldResidualMap(OnResiduals):
    """(x, y, w) ↦ [f(w·x_i − y_i)·x_i]_i: the data are the stored patterns, w the state that asks.

    Claim: as `ResidualMap`, with the same certificate. The same keys are stored, divided by β.
    Corrected (Theorem E.2): Linear_w needs +1, not −1, in front of −L², and the routing constant needs 1/β.
    W_Q and W_K are the identity; W_V reads the pattern's value rows.

    Args:
        f: The function: an expression in t, or a callable.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> HopfieldResidualMap("tanh(t)", domain, 1e-6)(x, y, w)
    """

    w_v: Tensor

    def prepare(self) -> None:
        # A power of two: dividing by it and multiplying again is exact, so both maps round alike.
        self.beta = 2.0 ** round(torch.log2(self.f.grid.slopes.abs().max().clamp(min=1e-6)).item())
        self.register_buffer("w_v", torch.eye(self.domain.features, dtype=self.f.grid.dtype, device="cpu"))

    def extra_repr(self) -> str:
        n, keys = self.domain.samples, self.f.keys
        return f"{self.f.function.text!r}, patterns={n * keys}, β={self.beta:g}, error {self.certificate}"

    def patterns(
        self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]
    ) -> tuple[Float[Tensor, "*batch tokens width"], Float[Tensor, "*batch tokens d"]]:
        """What is stored: the key rows divided by β, and the value rows as they are."""
        parts = {name: part.flatten(-3, -2) for name, part in self.template.data_rows(x, y).items()}
        return torch.cat([parts[f"key_{name}"] for name in HALF], dim=-1) / self.beta, parts["value"]

    def state(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n width"]:
        """What asks: (w, −1, +1, code_c) for every sample c."""
        parts = self.template.query_rows(w)
        return torch.cat([parts[f"query_{name}"] for name in HALF], dim=-1)

    def forward(self, x: Inputs, y: Targets, w: Weights) -> Inputs:
        x, y, w = admitted(self.template.domain, self.w_v.dtype, x, y, w)
        stored, values = self.patterns(x, y)
        return attend(self.state(w), self.beta * stored, values @ self.w_v.mT, name="hopfield")
