"""The bounds a construction is built for, those of the eigenvalues of XᵀX/n included, which decide how long a step may
be. Data outside them is refused, never silently wrong."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.linalg import vector_norm

from emulon.certify.rounding import gamma, unit
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadShape, OutOfDomain

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


def require_real(**tensors: Tensor) -> None:
    """Refuse complex numbers, whose imaginary part a conversion would drop, naming the tensor."""
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise OutOfDomain(f"{name} is complex; give real numbers, its two parts as features of their own")


def require_finite(**tensors: Tensor) -> None:
    """Refuse NaN, infinity and complex numbers, naming the tensor; compiled, complex numbers alone."""
    require_real(**tensors)
    if torch.compiler.is_compiling():
        return  # what depends on numbers cannot be traced
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise OutOfDomain(f"{name} contains NaN or infinity; clean or impute it first")


def require_within(bound: float, **tensors: Tensor) -> None:
    """Refuse non-finite entries and entries above `bound` in magnitude, naming the tensor; not where compiled."""
    require_real(**tensors)
    if torch.compiler.is_compiling():
        return
    for name, tensor in tensors.items():
        # The largest of entries with a NaN is one.
        if tensor.numel() and not (worst := tensor.abs().max().item()) <= min(bound, sys.float_info.max):
            require_finite(**{name: tensor})
            beyond = f"|{name}| reaches {worst:.6g} but the domain was built for {bound:.6g}"
            raise OutOfDomain(f"{beyond}; rescale or build a wider domain")


def require_shape(tensor: Tensor, name: str, *sizes: int) -> None:
    """Refuse a tensor whose last dimensions are not `sizes`; every leading dimension is a batch."""
    if tuple(tensor.shape[-len(sizes) :]) != sizes or tensor.ndim < len(sizes):
        wanted = ", ".join(["...", *map(str, sizes)])
        raise BadShape(f"{name} has shape {tuple(tensor.shape)}, wanted ({wanted})")


def by_target(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Several targets, y (..., samples, targets), as a batch of problems that share their x: (..., targets, samples).

    One target, y (..., samples), is left as it is.
    """
    if x.ndim < 2 or x.ndim != y.ndim or x.shape[:-1] != y.shape[:-1] or not y.shape[-1]:
        return x, y
    return x.unsqueeze(-3).expand(*x.shape[:-2], y.shape[-1], *x.shape[-2:]), y.mT


UNKNOWN = Spectrum()
# Numbers that can be multiplied a few times over without leaving float64; data beyond them should be rescaled.
LEAST, MOST = 1e-60, 1e60


def require_scale(**bounds: float) -> None:
    """Refuse bounds so large or so small that float64 could not compute with their products; zero is fine."""
    for name, value in bounds.items():
        if value and not LEAST <= abs(value) <= MOST:
            raise OutOfDomain(
                f"the bound of {name} is {value:.4g}, not between {LEAST:g} and {MOST:g}; rescale the data"
            )


@dataclass(frozen=True)
class Domain:
    """Bounds on in-context data.

    Smaller bounds on residuals than those that follow from the entries make a finer construction with the same keys;
    like all bounds they are checked on the data of every run. `norm`, `largest` and `smallest` are the bounds of the
    spectrum, or those that follow from the entries.

    Args:
        samples: Rows of data.
        features: Numbers in a row.
        x: |x| ≤ this in every entry.
        y: |y| ≤ this.
        w: |w| ≤ this in every entry.
        residual: |w·x − y| ≤ this; by default features·x·w + y.
        absolute: Σ|w_k x_k| + |y| ≤ this, to which rounding errors are proportional; the same default.
        spectrum: Bounds on the eigenvalues of XᵀX/n and on row norms.

    Example:
        >>> Domain(samples=20, features=4, x=3.0, y=2.0, w=1.0).residual
        14.0
    """

    samples: int
    features: int
    x: float
    y: float
    w: float
    residual: float = 0.0
    absolute: float = 0.0
    spectrum: Spectrum = UNKNOWN

    def __post_init__(self) -> None:
        for name in ("samples", "features"):
            if int(getattr(self, name)) < 1:
                raise OutOfDomain(f"Domain needs at least one of {name}, got {getattr(self, name)}")
        for name in ("x", "y", "w", "residual", "absolute"):
            value = float(getattr(self, name))
            if not 0.0 <= value < float("inf"):
                raise OutOfDomain(f"Domain bound {name} must be finite and not negative, got {value}")
        for name in ("absolute", "residual"):
            if getattr(self, name) == 0.0 or getattr(self, name) > self.widest:
                object.__setattr__(self, name, self.widest)
        require_scale(**{f"|{name}|": getattr(self, name) for name in ("x", "y", "w", "residual", "absolute")})
        if self.residual == 0.0:
            raise OutOfDomain("Domain allows only zero residuals; give x and w, or y, a positive bound")
        if self.smallest > self.largest:
            raise OutOfDomain(f"need smallest ≤ largest eigenvalue, got smallest={self.smallest} > {self.largest}")

    @property
    def widest(self) -> float:
        """The largest residual that bounds on single entries allow: features·x·w + y."""
        return float(self.features * self.x * self.w + self.y)

    @property
    def norm(self) -> float:
        """‖x‖₂ ≤ this: √features·x, where the spectrum does not know better."""
        return min(self.spectrum.norm or math.inf, math.sqrt(self.features) * self.x)

    @property
    def largest(self) -> float:
        """λ(XᵀX/n) ≤ this: from the spectrum, or norm²."""
        return self.spectrum.largest or self.norm * self.norm

    @property
    def smallest(self) -> float:
        """λ(XᵀX/n) ≥ this; 0 if nothing is known."""
        return self.spectrum.smallest

    @classmethod
    @accepts_arraylike("x", "y", "w", like="x")
    def of(cls, x: Tensor, y: Tensor, w: Tensor | float | None = None) -> Domain:
        """The domain of this data; `w` is a tensor of weights, or a bound on them.

        Without `w` the weights are those of descent from zero towards a least-squares fit: ‖w‖₂ ≤ 2‖w*‖₂ along it,
        which bounds the residuals, too. Other losses may leave it, and a run then raises `OutOfDomain`.
        """
        require_finite(x=x, y=y)
        x, y = by_target(x, y)
        if x.ndim < 2 or x.shape[:-1] != y.shape:
            raise BadShape(
                f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}, wanted (..., samples, features), (..., samples)"
            )
        x, y = x.double(), y.double()
        sizes = (x.shape[-2], x.shape[-1], x.abs().max().item(), y.abs().max().item())
        spectrum = Spectrum.of(x)
        if w is not None:
            bound = w.abs().max().item() if isinstance(w, Tensor) else float(w)
            return cls(*sizes, bound, spectrum=spectrum)
        fit = torch.linalg.pinv(x, rtol=1e-10) @ y.unsqueeze(-1)
        length = 2 * fit.squeeze(-1).norm(dim=-1).max().item() + 1e-3
        widest = x.norm(dim=-1).max().item() * length + sizes[3]
        return cls(*sizes, length, residual=widest, absolute=widest, spectrum=spectrum)

    @classmethod
    @accepts_arraylike("xs", "ys", "x_query", like="xs")
    def covering(cls, xs: Tensor, ys: Tensor, x_query: Tensor, margin: float = 1.0) -> Domain:
        """The tightest domain that holds these problems of regression and their queries, widened by `margin` ≥ 1.

        ys is (..., samples) or (..., samples, outputs). For solvers that start at w = 0 and never look at its bound.
        """
        labels = ys.unsqueeze(-1) if ys.ndim < xs.ndim else ys
        if xs.ndim < 2 or xs.shape[:-1] != labels.shape[:-1] or xs.shape[-1] != x_query.shape[-1]:
            raise BadShape(
                f"xs {tuple(xs.shape)}, ys {tuple(ys.shape)}, x_query {tuple(x_query.shape)} do not fit together; "
                "wanted (..., samples, features), (..., samples[, outputs]), (..., features)"
            )
        require_finite(xs=xs, ys=ys, x_query=x_query)
        xs, labels, x_query = xs.double(), labels.double(), x_query.double()
        points = torch.cat([xs.flatten(0, -2), x_query.flatten(0, -2) if x_query.ndim > 1 else x_query[None]]).double()
        spectrum = replace(Spectrum.of(xs), norm=points.norm(dim=-1).max().item()).widened(margin)
        entries = (margin * points.abs().max().item(), margin * labels.abs().max().item())
        return cls(xs.shape[-2], xs.shape[-1], *entries, 0.0, spectrum=spectrum)

    def check(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        """Refuse data of the wrong shape, not finite, or outside the bounds."""
        require_shape(x, "x", self.samples, self.features)
        require_shape(y, "y", self.samples)
        require_shape(w, "w", self.features)
        require_within(self.x, x=x)
        require_within(self.y, y=y)
        require_within(self.w, w=w)
        if self.residual < self.widest:
            require_within(self.residual, **{"w·x − y": (x @ w.unsqueeze(-1)).squeeze(-1) - y})
        if self.absolute < self.widest:
            sums = (x.abs() @ w.abs().unsqueeze(-1)).squeeze(-1) + y.abs()
            require_within(self.absolute, **{"w|·|x| + |y": sums})

    def check_problem(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, spectrum: bool = True) -> None:
        """`check` for a regression, ys (..., samples, outputs), and its query, with norms and eigenvalues."""
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
        lows, highs = enclosure(xs)
        low, high = lows.min().item(), highs.max().item()
        if high > self.largest * (1 + SLACK) or low < self.smallest - SLACK * self.largest:
            raise OutOfDomain(
                f"XᵀX/{self.samples} has eigenvalues {low:.6g} to {high:.6g}, the domain was built for "
                f"{self.smallest:.6g} to {self.largest:.6g}; rescale x or build a wider domain"
            )
