"""The eigenvalues of XᵀX/n, which decide how long a step may be and how errors travel from one to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.linalg import vector_norm

from emulon.certify.rounding import gamma, unit
from emulon.core.errors import OutOfDomain

# What plans grant beyond the eigenvalues they were made with, relative to λmax: whether data keep within that is for
# `enclosure` to say, which is tighter by γ_{BLOCK + length/BLOCK} times the shorter side of X: 6e-10 at 5,000.
SLACK = 1e-9
# Rows whose products are summed at a time: rounding grows with the longest sum.
BLOCK = 1024


def eigenvalues(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch features"]:
    """Of XᵀX/n, ascending, in float64; where X has more columns than rows, the first are 0."""
    values = torch.linalg.eigvalsh(_gram(x)).clamp(min=0.0)
    zeros = values.new_zeros(*values.shape[:-1], x.shape[-1] - values.shape[-1])
    return torch.cat([zeros, values], dim=-1)


def _gram(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch short short"]:
    """XᵀX/n or XXᵀ/n, whichever is smaller, in float64, summed BLOCK products at a time."""
    rows = _tall(x).double()
    first, *others = rows.split(BLOCK, dim=-2)
    gram: Tensor = first.mT @ first
    for part in others:
        gram += part.mT @ part
    gram /= x.shape[-2]
    if not torch.isfinite(gram).all():
        raise OutOfDomain(f"x up to {rows.abs().max().item():.4g} overflows float64 when squared; rescale it")
    return gram


def _tall(x: Tensor) -> Tensor:
    """X or Xᵀ, whichever has no more columns than rows: XᵀX and XXᵀ have the same eigenvalues but for zeros."""
    return x if x.shape[-2] >= x.shape[-1] else x.mT


def largest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmax(XᵀX/n): a loss of curvature c has mean gradient c·λmax-Lipschitz, as its Hessian is XᵀDX/n with |D| ≤ c."""
    return eigenvalues(x)[..., -1:]


def smallest_eigenvalue(x: Real[Tensor, "*batch samples features"]) -> Float[Tensor, "*batch 1"]:
    """λmin(XᵀX/n): the squared loss is strongly convex with this constant."""
    return eigenvalues(x)[..., :1]


def enclosure(x: Real[Tensor, "*batch samples features"]) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Claim: low ≤ every exact eigenvalue of XᵀX/n ≤ high, dataset by dataset; low is 0 where nothing is sure.

    Proof. Summed in blocks, A is off the exact matrix by at most γ·|X|ᵀ|X|/n, whose norm is at most γ·trace; its count
    of roundings includes the last addition here. `_above` bounds A and −A from above, whatever the eigenvalues
    computed first. Where X has more columns than rows, XXᵀ/n has all eigenvalues but 0. Without any solver,
    0 ≤ λ ≤ trace. QED
    """
    gram, (long, short) = _gram(x), _tall(x).shape[-2:]
    values, trace = torch.linalg.eigvalsh(gram), gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    tiny, lift = torch.finfo(gram.dtype).tiny, 1 + gamma(long + short + 8, gram.dtype)
    off = gamma(min(long, BLOCK) + long // BLOCK + 6, gram.dtype) * trace * lift + tiny
    # Enough for a factorisation not to fail on rounding: it and the eigenvalues are off by a few √short·u·λmax.
    slack = 16 * short * unit(gram.dtype) * values[..., -1].abs() + tiny
    top, bottom = _above(torch.stack([gram, -gram]), torch.stack([values[..., -1] + slack, slack - values[..., 0]]))
    low = torch.fmax(-bottom - off, torch.zeros_like(off))
    return low if short == x.shape[-1] else torch.zeros_like(low), torch.fmin(top, trace * lift) + off


def _above(a: Float[Tensor, "*batch d d"], guess: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Claim: every eigenvalue of the symmetric part of A is at most this, which is near a guess that is none too low.

    Proof. For any L, LLᵀ has no negative eigenvalue, so guess·I − A has none below −‖guess·I − A − LLᵀ‖. Which L a
    Cholesky factorisation returns does therefore not matter. The difference is computed BLOCK columns of L at a time:
    off by u of the diagonal of guess·I − A, and at most γ·|L||L|ᵀ besides, of norm γ·‖L‖² (Frobenius); the lift covers
    the rounding of the norms themselves, the last term that of the final sum. QED
    """
    size = a.shape[-1]
    rest = -a
    rest.diagonal(dim1=-2, dim2=-1).add_(guess.unsqueeze(-1))
    factor = torch.linalg.cholesky_ex(rest).L
    for start in range(0, size, BLOCK):
        part = factor[..., start:, start : start + BLOCK]
        rest[..., start:, start:] -= part @ part.mT
    rounded = gamma(min(size, BLOCK) + 2 * (size // BLOCK) + 6, a.dtype) * vector_norm(factor, dim=(-2, -1)).square()
    lift = 1 + gamma(size**2 + 8, a.dtype)
    bound: Tensor = guess + (vector_norm(rest, dim=(-2, -1)) + rounded) * lift + 4 * unit(a.dtype) * guess.abs()
    return bound


@dataclass(frozen=True)
class Spectrum:
    """Bounds on the eigenvalues of XᵀX/n and on the rows of X; 0 means that a bound is not known.

    Args:
        largest: λ(XᵀX/n) ≤ this.
        smallest: λ(XᵀX/n) ≥ this.
        norm: ‖x‖₂ ≤ this for every row x.
    """

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
        """The same for data larger, or more badly conditioned, by a factor ≥ 1."""
        return Spectrum(self.largest * factor, self.smallest / factor, self.norm * factor)
