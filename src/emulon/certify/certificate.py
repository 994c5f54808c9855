"""Certificates: observed sup-norm error ≤ bound, in the stated dtype, for a whole domain or for one run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from emulon.certify.rounding import EXP_ASSUMED
from emulon.core.errors import NotCertified

# Samples whose residuals are looked at together.
ROWS = 4096
Scope = Literal["domain", "run"]
# The term of a run whose residuals came into a band, and what its certificate says of it.
IN_A_BAND = "residual in a band"
IN_A_BAND_MEANS = "a residual of this run came into such a band, or may have: nothing is certified here, see the audit"
READS: dict[Scope, str] = {"domain": "for every input of the domain", "run": "for this run only"}


@dataclass(frozen=True)
class Band:
    """An open interval around a jump, in which nothing is certified.

    Args:
        lo: Its lower end.
        hi: Its upper end.
    """

    lo: float
    hi: float


@dataclass(frozen=True)
class Certificate:
    """Named error terms; their sum is the bound.

    Args:
        terms: Error terms by name.
        dtype: The dtype of the computation that the bound is about.
        proved: False if a term was only sampled, as for a plain callable, which has no expression.
        bands: Intervals of the scalar argument, around jumps, that the bound excludes.
        note: A remark for people.
        scope: "domain" for a bound on every input of the domain (a certificate), "run" for one run only (an audit).
        assumes: What is neither proved nor checked here: that the argument stays outside the bands, how exact the
            platform's functions are, what a run checks of its input. By default torch's exp for a certificate, and
            nothing for an audit, which compares answers whatever computed them. Bands are added.

    Attributes:
        bound: The sum of the terms, rounded up.

    Example:
        >>> Certificate({"interpolation": 1e-9, "rounding": 2e-10}, torch.float64).bound
        1.2000000000000001e-09
    """

    terms: Mapping[str, float]
    dtype: torch.dtype
    proved: bool = True
    bands: tuple[Band, ...] = ()
    note: str = ""
    scope: Scope = "domain"
    assumes: tuple[str, ...] | None = None
    bound: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", dict(self.terms))
        assumes = self.assumes
        if assumes is None:
            assumes = (EXP_ASSUMED,) if self.scope == "domain" else ()
        outside = (f"no residual comes into ({band.lo:.6g}, {band.hi:.6g})" for band in self.bands)
        object.__setattr__(self, "assumes", tuple(dict.fromkeys((*assumes, *outside))))
        # The rounded sum may be a little below the true one: lift it.
        object.__setattr__(self, "bound", math.fsum(self.terms.values()) * (1 + 1e-15))

    def verify(self, observed: Tensor | float, exact: Tensor | float = 0.0) -> float:
        """The largest |observed − exact|; raises `NotCertified` when it is above the bound."""
        seen, true = (torch.as_tensor(value, dtype=torch.float64, device="cpu") for value in (observed, exact))
        difference = seen - true
        error = difference.abs().max().item() if difference.numel() else 0.0
        if not error <= self.bound:
            raise NotCertified(f"observed error {error:.3e} is above the certified {self.bound:.3e} ({self})")
        return error

    def is_informative(self, size: float) -> bool:
        """Whether the bound is below `size`, the answer's largest entry: above it, zero would be as good an answer."""
        return self.bound < size

    def excludes(self, path: Tensor, x: Tensor, y: Tensor) -> bool:
        """Whether a residual x·w − y along this path (..., iterates, features) is in a band, or may be.

        The exact path has the same start and may differ from this one by the bound: each band is widened by what that
        changes in a residual.
        """
        if not self.bands or not path.shape[-2]:
            return False
        parts = zip(x.split(ROWS, dim=-2), y.split(ROWS, dim=-1), strict=True)
        return any(self._left_out(path, *part) for part in parts)

    def void_in_band(self) -> Certificate:
        """The certificate of a run that `excludes` is true for: an infinite bound, with the reason."""
        assert self.assumes is not None
        return replace(self, terms={**self.terms, IN_A_BAND: math.inf}, assumes=(*self.assumes, IN_A_BAND_MEANS))

    def _left_out(self, path: Tensor, x: Tensor, y: Tensor) -> bool:
        residuals = x @ path.mT - y.unsqueeze(-1)
        # An infinite bound says nothing of the exact path, except where a row is zero.
        slack = (self.bound * x.abs().sum(dim=-1) * (1 + 1e-9)).nan_to_num(nan=0.0, posinf=math.inf)
        slack = slack.unsqueeze(-1).expand_as(residuals).clone()
        slack[..., 0] = 0.0
        return any(bool(((residuals > band.lo - slack) & (residuals < band.hi + slack)).any()) for band in self.bands)

    def __str__(self) -> str:
        terms = " + ".join(f"{name} {value:.2e}" for name, value in self.terms.items() if value)
        how = "proved" if self.proved else "sampled, not proved"
        bands = "".join(f", outside ({band.lo:.6g}, {band.hi:.6g})" for band in self.bands)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"≤ {self.bound:.2e} {READS[self.scope]} ({how}, {dtype}{bands}: {terms or 'exact'})"


@dataclass(frozen=True)
class Bounds:
    """The audit and the certificate of one answer, the smaller bound first; `size` is the answer's largest entry."""

    audit: Certificate
    certificate: Certificate
    size: float

    def __iter__(self) -> Iterator[Certificate]:
        return iter(sorted((self.audit, self.certificate), key=lambda each: each.bound))

    @property
    def bound(self) -> float:
        return next(iter(self)).bound

    def shown(self, scope: Scope) -> str:
        """The bound of this scope for a table, a dash where it says nothing."""
        one = self.audit if scope == "run" else self.certificate
        return f"{one.bound:.1e}" if one.is_informative(self.size) else "–"

    def __str__(self) -> str:
        return "\n".join(map(self._line, self))

    def _line(self, one: Certificate) -> str:
        void = "" if one.is_informative(self.size) else f"; says nothing: above the largest entry, {self.size:.2g}"
        return f"{one}{void}"
