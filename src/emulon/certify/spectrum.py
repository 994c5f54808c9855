"""The eigenvalues of XᵀX/n, which decide how long a step may be and how errors travel from one to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.certify.rounding import gamma
from emulon.errors import OutOfDomain

# What plans grant beyond the eigenvalues they were made with, relative to λmax: whether data keep within that is for
# `enclosure` to say, which is far tighter.
SLACK = 1e-9
# Rows whose products are summed at a time: rounding grows with the longest sum.
BLOCK = 4096


def eigenvalues(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch features"]:
    """Of XᵀX/n, ascending, in float64."""
    values: Tensor = torch.linalg.eigvalsh(_gram(x))
    return values


def _gram(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch features features"]:
    """XᵀX/n in float64, BLOCK rows at a time."""
    rows = x.double()
    gram = torch.stack([part.mT @ part for part in rows.split(BLOCK, dim=-2)]).sum(dim=0) / rows.shape[-2]
    if not torch.isfinite(gram).all():
        raise OutOfDomain(f"x up to {rows.abs().max().item():.4g} overflows float64 when squared; rescale it")
    return gram


def largest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmax(XᵀX/n): a loss of curvature c has mean gradient c·λmax-Lipschitz, as its Hessian is XᵀDX/n with |D| ≤ c."""
    return eigenvalues(x)[..., -1:].clamp(min=0.0)


def smallest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmin(XᵀX/n): the squared loss is strongly convex with this constant."""
    return eigenvalues(x)[..., :1].clamp(min=0.0)


def enclosure(x: Real[Tensor, "*batch samples features"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Claim: low ≤ every exact eigenvalue of XᵀX/n ≤ high, dataset by dataset; low is 0 where nothing is sure.

    Proof. Computed in blocks, A is off XᵀX/n by at most γ·|X|ᵀ|X|/n, whose norm is at most γ·trace. Let V hold computed
    eigenvectors of A, and ‖VᵀV − I‖ ≤ δ: then λ_i(VᵀAV) = θ_i·λ_i(A) with |θ_i − 1| ≤ δ (Ostrowski), and VᵀAV differs
    from the diagonal matrix of the computed eigenvalues by its residual, in the Frobenius norm (Weyl). Whatever an
    eigensolver did is thereby checked; products of d terms are off by γ_d times the product of the factors' Frobenius
    norms, in any order of summation, and these norms themselves by less than the lift. QED
    """
    gram, (samples, features) = _gram(x), x.shape[-2:]
    values, vectors = torch.linalg.eigh(gram)
    lift, small = 1 + 1e-9, gamma(features + 2, torch.float64)
    trace, size = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1), gram.norm(dim=(-2, -1))
    off_gram = (
        gamma(min(samples, BLOCK) + samples // BLOCK + 3, torch.float64) * trace * lift + torch.finfo(gram.dtype).tiny
    )
    skew = (vectors.mT @ vectors - torch.eye(features, dtype=gram.dtype, device=gram.device)).norm(dim=(-2, -1))
    delta = (skew + 2 * small * features) * lift
    residual = (vectors.mT @ (gram @ vectors) - torch.diag_embed(values)).norm(dim=(-2, -1))
    off = (residual + 4 * small * features * size) * lift
    high = (values[..., -1] + off) / (1 - delta) * (1 + 1e-15) + off_gram
    low = (values[..., 0] - off) / (1 + delta) * (1 - 1e-15) - off_gram
    # Vectors that are none leave what needs no eigensolver: 0 ≤ λ ≤ trace.
    sure = delta < 0.5
    return torch.where(sure, low.clamp(min=0.0), 0.0), torch.where(sure, high, trace * lift + off_gram)


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
