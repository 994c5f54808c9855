"""The eigenvalues of XᵀX/n, which decide how long a step may be and how errors travel from one to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.certify.rounding import gamma
from emulon.errors import OutOfDomain

# What checks of eigenvalues allow for their own rounding, relative to λmax. A computed eigenvalue is off by at most
# d·γ_{n+10d}·λmax: XᵀX rounds by γ_n·|X|ᵀ|X|, whose norm is at most d·λmax, and eigvalsh is backward stable, its modest
# constant taken to be 10d (Weyl's inequality does the rest). That is below SLACK while (n + 10d)·d < 9e6.
SLACK = 1e-9


def eigenvalues(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch features"]:
    """Of XᵀX/n, ascending, in float64."""
    rows = x.double()
    gram = rows.mT @ rows / rows.shape[-2]
    if not torch.isfinite(gram).all():
        raise OutOfDomain(f"x up to {rows.abs().max().item():.4g} overflows float64 when squared; rescale it")
    values: Tensor = torch.linalg.eigvalsh(gram)
    return values


def largest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmax(XᵀX/n): a loss of curvature c has mean gradient c·λmax-Lipschitz, as its Hessian is XᵀDX/n with |D| ≤ c."""
    return eigenvalues(x)[..., -1:].clamp(min=0.0)


def smallest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmin(XᵀX/n): the squared loss is strongly convex with this constant."""
    return eigenvalues(x)[..., :1].clamp(min=0.0)


def enclosure(x: Real[Tensor, "*batch samples features"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Claim: low ≤ every exact eigenvalue of XᵀX/n ≤ high, dataset by dataset; low is 0 where nothing is sure."""
    values, (samples, features) = eigenvalues(x), x.shape[-2:]
    slack = max(SLACK, features * gamma(samples + 10 * features, torch.float64))
    return (values[..., 0] - slack * values[..., -1]).clamp(min=0.0), values[..., -1] * (1 + slack)


@dataclass(frozen=True)
class Spectrum:
    """smallest ≤ λ(XᵀX/n) ≤ largest and ‖x‖₂ ≤ norm; 0 says that a bound is not known."""

    largest: float = 0.0
    smallest: float = 0.0
    norm: float = 0.0

    def __post_init__(self) -> None:
        for name in ("largest", "smallest", "norm"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise OutOfDomain(f"bound {name} must be finite and not negative, got {getattr(self, name)}")

    @classmethod
    def of(cls, x: Real[Tensor, "*batch samples features"]) -> Spectrum:
        """The eigenvalues of this data, of all datasets of a batch; how long single rows may be is left open."""
        return cls(largest_eigenvalue(x).max().item(), smallest_eigenvalue(x).min().item())

    def widened(self, factor: float) -> Spectrum:
        """The same with room for data larger, or more badly conditioned, by a factor ≥ 1."""
        return Spectrum(self.largest * factor, self.smallest / factor, self.norm * factor)
