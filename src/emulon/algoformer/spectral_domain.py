"""A domain that also bounds what an iterative solver needs to know: ‖x‖ and the eigenvalues of XᵀX/samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.certify.domain import require_finite, require_shape, require_within
from emulon.errors import BadShape, OutOfDomain

# Eigenvalues are checked in float64; this much is allowed for the rounding of that check itself.
SLACK = 1e-9


@dataclass(frozen=True)
class SpectralDomain(Domain):
    """`Domain`, and ‖x‖₂ ≤ norm, and smallest ≤ eigenvalues of XᵀX/samples ≤ largest.

    By default norm = √features·x and largest = norm² follow from the entries; smallest = 0 promises nothing. Solvers
    start at w = 0 and never look at the bound on w.
    """

    norm: float = 0.0
    largest: float = 0.0
    smallest: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm == 0.0:
            object.__setattr__(self, "norm", math.sqrt(self.features) * self.x)
        if self.largest == 0.0:
            object.__setattr__(self, "largest", self.norm**2)
        if not 0.0 <= self.smallest <= self.largest < math.inf or not 0.0 < self.norm < math.inf:
            raise OutOfDomain(
                f"need 0 ≤ smallest ≤ largest and norm > 0, got smallest={self.smallest}, largest={self.largest}, "
                f"norm={self.norm}"
            )

    @classmethod
    def lift(cls, domain: Domain) -> SpectralDomain:
        """The same bounds, with norm and largest derived from them."""
        if isinstance(domain, SpectralDomain):
            return domain
        return cls(domain.samples, domain.features, domain.x, domain.y, domain.w, domain.residual)

    @classmethod
    def covering(cls, xs: Tensor, ys: Tensor, x_query: Tensor, margin: float = 1.0) -> SpectralDomain:
        """The tightest domain that holds this batch of problems, its norms and eigenvalues widened by `margin` ≥ 1."""
        labels = ys.unsqueeze(-1) if ys.ndim < xs.ndim else ys
        if xs.ndim < 2 or xs.shape[:-1] != labels.shape[:-1] or xs.shape[-1] != x_query.shape[-1]:
            raise BadShape(
                f"xs {tuple(xs.shape)}, ys {tuple(ys.shape)}, x_query {tuple(x_query.shape)} do not fit together; "
                "wanted (..., samples, features), (..., samples[, outputs]), (..., features)"
            )
        require_finite(xs=xs, ys=ys, x_query=x_query)
        values = eigenvalues(xs)
        points = torch.cat([xs.flatten(0, -2), x_query.flatten(0, -2) if x_query.ndim > 1 else x_query[None]]).double()
        samples, features = xs.shape[-2:]
        return cls(
            samples,
            features,
            margin * points.abs().max().item(),
            margin * labels.abs().max().item(),
            0.0,
            norm=margin * points.norm(dim=-1).max().item(),
            largest=margin * values.max().item(),
            smallest=max(values.min().item(), 0.0) / margin,
        )

    def require(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, spectrum: bool = True) -> None:
        """Refuse data of the wrong shape, not finite, or outside the bounds; ys is (..., samples, outputs)."""
        require_shape(xs, "xs", self.samples, self.features)
        require_shape(ys, "ys", self.samples, ys.shape[-1])
        require_shape(x_query, "x_query", self.features)
        require_within(self.x, xs=xs, x_query=x_query)
        require_within(self.y, ys=ys)
        longest = max(xs.double().norm(dim=-1).max().item(), x_query.double().norm(dim=-1).max().item())
        if longest > self.norm * (1 + SLACK):
            raise OutOfDomain(f"‖x‖ reaches {longest:.6g} but the domain was built for {self.norm:.6g}")
        if not spectrum:
            return
        values = eigenvalues(xs)
        low, high = values.min().item(), values.max().item()
        if high > self.largest * (1 + SLACK) or low < self.smallest - SLACK * self.largest:
            raise OutOfDomain(
                f"XᵀX/{self.samples} has eigenvalues {low:.6g} to {high:.6g}, the domain was built for "
                f"{self.smallest:.6g} to {self.largest:.6g}; rescale x or build a wider domain"
            )


def eigenvalues(xs: Tensor) -> Tensor:
    """Of XᵀX/samples, ascending, in float64."""
    rows = xs.double()
    return torch.linalg.eigvalsh(rows.mT @ rows / xs.shape[-2])
