"""Certificates: observed sup-norm error ≤ bound, in the stated dtype, for a whole domain or for one run; the runs that
have them, and the frozen modules that they are about."""

from __future__ import annotations

import hashlib
import html
import math
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from emulon.certify.rounding import EXP_ASSUMED
from emulon.core.arrays import ArrayFormat, as_tensor, bits
from emulon.core.errors import NotCertified, OutOfDomain
from emulon.core.names import warn_renamed

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
        proved: False if a term was only sampled.
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
        bands = "".join(f", outside ({band.lo:.6g}, {band.hi:.6g})" for band in self.bands)
        dtype = str(self.dtype).removeprefix("torch.")
        return f"≤ {self.bound:.2e} {READS[self.scope]} ({_how(self)}, {dtype}{bands}: {terms or 'exact'})"


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


# Entries of an answer that `_repr_html_` shows.
SHOWN = 8
VACUOUS = "a worst case over the domain that says nothing here: above the largest entry; trust the audit"
# A certificate above this part of the answer's largest entry is called loose.
LOOSE = 1e-2


class Run:
    """A run of a program, a network, a construction or a looped transformer.

    Attributes:
        certificate: Bound on the distance from the exact answer, for every input of the domain.
        audit: Bound for this run only, computed the first time it is asked for.
        bounds: Both, the smaller bound first.

    Example:
        >>> run = compile(Ridge(), data=(x, y))(x, y)
        >>> run
        Run of Ridge: 4 numbers in float64, ≤ 4.81e-09 for every input of the domain
        >>> print(run)  # six lines: the answer, its audit, its certificate
    """

    certificate: Certificate

    @property
    def name(self) -> str:
        """The name of what ran."""
        raise NotImplementedError

    @property
    def last(self) -> Tensor:
        """The answer, in the dtype and on the device of what ran."""
        raise NotImplementedError

    def _make_audit(self) -> Certificate:
        """Bound the distance of `last` from the exact answer, for this run only."""
        raise NotImplementedError

    @cached_property
    def audit(self) -> Certificate:
        """Bound for this run only: it assumes nothing of how the answer was computed."""
        return self._make_audit()

    @property
    def bounds(self) -> Bounds:
        """The audit and the certificate, with the size of the answer that they are about."""
        return Bounds(self.audit, self.certificate, self.last.abs().max().item())

    @property
    def promises(self) -> Bounds:
        """`bounds`, under its name of 0.2."""
        warn_renamed("run.promises", "run.bounds")
        return self.bounds

    def __repr__(self) -> str:
        return f"Run of {self.name}: {self._answer}, {'; '.join(map(_bound, self._certificates))}"

    def _repr_html_(self) -> str:
        last = self.last.flatten()
        numbers = ", ".join(f"{number:.6g}" for number in last[:SHOWN].tolist())
        rows = [("answer", f"{self._answer}: {numbers}{', …' if len(last) > SHOWN else ''}")]
        rows += [("audit" if one.scope == "run" else "certificate", str(one)) for one in self._certificates]
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows)
        return f"<table><caption>Run of {html.escape(self.name)}</caption>{cells}</table>"

    def __str__(self) -> str:
        """Six lines for people, the audit first; it is computed for them."""
        last, size = self.last.flatten(), self.last.abs().max().item()
        numbers = ", ".join(f"{number:.6g}" for number in last[:SHOWN].tolist())
        lines = [("answer", f"{numbers}{', …' if len(last) > SHOWN else ''}")]
        lines.append(("audit", f"≤ {self.audit.bound:.1e} from the exact algorithm, for this run ({_how(self.audit)})"))
        loose = ", loose here: trust the audit" if self.certificate.bound > LOOSE * size else ""
        worst = f"worst case over all inputs of the domain ({_how(self.certificate)}){loose}"
        told = worst if self.certificate.is_informative(size) else VACUOUS
        lines.append(("certificate", f"≤ {self.certificate.bound:.1e}, {told}"))
        lines += [*self._facts, ("more", "run.audit.terms, run.certificate.terms, run.certificate.assumes")]
        return "\n".join([f"Run of {self.name}: {self._answer}", *(f"  {name:<12}{text}" for name, text in lines)])

    @property
    def _facts(self) -> list[tuple[str, str]]:
        """Further lines for `__str__`: name and text."""
        return []

    @property
    def _answer(self) -> str:
        sizes = " × ".join(map(str, self.last.shape)) or "1"
        return f"{sizes} number{'' if sizes == '1' else 's'} in {str(self.last.dtype).removeprefix('torch.')}"

    @property
    def _certificates(self) -> list[Certificate]:
        """What is known without computing anything: an audit only once it has been made."""
        made = vars(self).get("audit")
        return [self.certificate] if made is None else [made, self.certificate]


def _how(one: Certificate) -> str:
    return "proved" if one.proved else "sampled, not proved"


def _bound(one: Certificate) -> str:
    return str(one).partition(" (")[0]


def fingerprint(module: nn.Module) -> str:
    """sha256 of every buffer: its name, its dtype, its bits."""
    digest = hashlib.sha256()
    for name, buffer in module.named_buffers():
        digest.update(f"{name} {buffer.dtype} {tuple(buffer.shape)}".encode())
        digest.update(bits(buffer))
    return digest.hexdigest()


class _Sealing(ABCMeta):
    """Seals a module once it is whole: when the last of its constructors has returned."""

    def __call__(cls, *args: Any, **options: Any) -> Any:
        made = super().__call__(*args, **options)
        made.seal()
        return made


class SealedModule(nn.Module, metaclass=_Sealing):
    """The certificate is about the numbers, and the dtype, that the module was made with.

    `.half()`, an edited buffer or loaded weights make it another module: its certificate is then refused
    (`NotCertified`). So is running it under autocast, which computes in another dtype. An output that is not finite
    is refused, too: no bound covers it.

    `torch.compile(module, fullgraph=True)` and `torch.export` trace the tensor operations alone. What depends on
    numbers is then not refused: the certificate holds for data of the domain, in the module's own dtype, as before, but
    nothing checks that they are. After `module.compile(fullgraph=True)` answers and dtype are still checked, inputs
    are not. Calls that are not compiled check everything.
    """

    _sealed: str | None = None

    def seal(self) -> None:
        """Take the hash of the buffers that the certificate is about."""
        self._sealed = fingerprint(self)

    def require_unchanged(self) -> None:
        if self._sealed not in (None, fingerprint(self)):
            raise NotCertified(
                f"the weights of this {type(self).__name__} are not those it was certified with (another dtype, or "
                "other numbers): its certificate is withdrawn; build it anew"
            )

    def __call__(self, *args: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            return super().__call__(*args, **options)
        require_own_dtype()
        given = ArrayFormat.of(args[0]) if args else ArrayFormat()
        out = super().__call__(*map(_read, args), **{name: _read(value) for name, value in options.items()})
        if not isinstance(out, Tensor):
            return out
        require_answer(out)
        return given.back(out)


class CertifiedModule(SealedModule):
    """A sealed module with one certificate."""

    _sealed_certificate: Certificate

    @property
    def certificate(self) -> Certificate:
        self.require_unchanged()
        return self._sealed_certificate

    @certificate.setter
    def certificate(self, certificate: Certificate) -> None:
        self._sealed_certificate = certificate


def _read(value: Any) -> Any:
    """Numbers on their own are options of a call, and no data."""
    return as_tensor(value) if hasattr(value, "__array__") or isinstance(value, list) else value


def require_own_dtype() -> None:
    """Refuse to run under autocast, or where products of float32 may be of less."""
    if torch.get_float32_matmul_precision() != "highest":
        raise NotCertified(
            "products of float32 are of fewer bits here than the certificate is about; "
            "torch.set_float32_matmul_precision('highest')"
        )
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise NotCertified("autocast computes in another dtype than the certificate is about; leave it for this call")


def require_answer(out: Tensor) -> None:
    """Refuse an answer that is not finite: no bound covers it."""
    if not torch.isfinite(out).all():
        raise OutOfDomain(f"a number overflowed {str(out.dtype).removeprefix('torch.')} on the way; use a wider dtype")
