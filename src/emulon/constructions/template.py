"""Theorem 3.1's tokens with a grid that keeps a tolerance: what the residual map and gradient steps are built on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Head
from emulon.attention.codes import circular, one_hot
from emulon.certify import Certificate, Domain
from emulon.constructions.accuracy import Accuracy
from emulon.constructions.batches import aligned
from emulon.expressions import Function
from emulon.interpreter.checks import require_in_domain
from emulon.interpreter.layout import LEAK_SHARE, Routing, TokenLayout
from emulon.softmax import Approximation


@dataclass(frozen=True, kw_only=True)
class Template(TokenLayout):
    """A layout, the approximation `f` whose grid it has, and `leak`, the most that all other samples' tokens weigh."""

    f: Approximation
    leak: float

    def head(self, name: str, w_v: Float[Tensor, "out width"] | None = None) -> Head:
        """The frozen head that reads this layout; without a `w_v` it returns the value rows."""
        return Head(
            *self.selectors(), self.slots.select("value", dtype=self.grid.dtype) if w_v is None else w_v, name=name
        )

    def certificate(self, scale: float = 1.0) -> Certificate:
        """Terms of scale·F(residual)·x: the scalar function's own, times |x|, and the leak to other samples' tokens."""
        own = self.f.certificate
        entry = self.domain.x * scale
        largest = self.grid.largest + self.f.interpolation.size
        terms = {
            "interpolation": own.terms["interpolation"] * entry,
            "routing leak": self.leak * largest * entry,
            "rounding": own.terms["rounding"] * entry,
        }
        return replace(own, terms=terms)


def template(
    f: Function, domain: Domain, accuracy: Accuracy, scale: float = 1.0, carried: tuple[str, ...] = ()
) -> Template:
    """A template whose outputs scale·F(residual)·x are within the tolerance, leak included; the domain is as stored.

    `scale` is what multiplies F·x afterwards; `carried` names further rows that a construction's tokens have.
    """
    dtype = accuracy.dtype
    codes = one_hot(domain.samples, dtype) if accuracy.grid == "paper" else circular(domain.samples, dtype)
    per_value = 1 / max(domain.x * scale, 1e-300)
    tolerance = accuracy.tolerance
    allowed = 0.1 * torch.finfo(dtype).eps if tolerance is None else LEAK_SHARE * tolerance * per_value
    routing = Routing(domain, codes, accuracy.grid == "paper", allowed)
    made = accuracy.part(
        (1 - LEAK_SHARE) * per_value, lambda asked: asked.approximate(f, domain.residual, routing.rounding_error)
    )
    strength, leak = routing.strength(made.grid), routing.leak(made.grid)
    return Template(made.grid, domain, codes, strength, carried, f=made, leak=leak)


def admitted(domain: Domain, dtype: torch.dtype, x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
    """x, y and w in one dtype and batch shape, inside the domain."""
    n, d = domain.samples, domain.features
    parts = aligned(dtype, x=(x, (n, d)), y=(y, (n,)), w=(w, (d,)))
    require_in_domain(domain, *parts)
    return parts
