"""The result of running what was compiled: an answer, its certificate, and an audit made when it is asked for."""

from __future__ import annotations

import html
from functools import cached_property

from torch import Tensor

from emulon.certify.certificate import Bounds, Certificate
from emulon.core.deprecated import warn_renamed

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
