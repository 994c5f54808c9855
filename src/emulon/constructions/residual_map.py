"""Theorem 3.1 of Hu et al. 2025: one softmax head computes f(w·x_i − y_i)·x_i for every sample, for any f.

`Template` is the theorem's tokens with a grid that keeps a tolerance; gradient steps are built on it, too.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Head
from emulon.attention.codes import circular, one_hot
from emulon.certify import Certificate, Domain
from emulon.certify.certificate import CertifiedModule
from emulon.constructions.accuracy import Accuracy, Inputs, Targets, Way, Weights, aligned, promised
from emulon.expressions import Function, parse
from emulon.interpreter.checks import require_in_domain
from emulon.interpreter.layout import LEAK_SHARE, Routing, TokenLayout, stored
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


class OnResiduals(CertifiedModule):
    """A map of the residuals w·x_i − y_i by one template; a subclass says how it is asked."""

    def __init__(
        self,
        f: Any,
        domain: Domain,
        tolerance: float | None = None,
        *,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.domain = domain
        self.template = residual_template(f, domain, Accuracy(tolerance, points, grid, dtype))
        self.f = self.template.f
        self.prepare()
        self.certificate = self.template.certificate()

    @abstractmethod
    def prepare(self) -> None:
        """What the template is asked with."""


class ResidualMap(OnResiduals):
    """(x, y, w) ↦ [f(w·x_i − y_i)·x_i]_i through one frozen attention head.

    Claim: the output is within `certificate.bound` of the exact one, in every entry, for all data in the domain, as
    the dtype stores them.
    Cost: samples·keys tokens of width O(features); one head. With grid="paper" the construction is the paper's own:
    sharp β, values f(L_j), one-hot routing (width O(features + samples)).
    Corrected: the routing constant is printed as (max L)(2dB² + 2B) − ln ε₀/β, half of the M derived in the proof's own
    footnote, and with max L where max |L| is meant.

    `head.w_k`, `head.w_q`, `head.w_v` are the plain matrices; `prompt(x, y, w)` the tokens they act on. The answer is
    the output of the first n tokens.

    Args:
        f: The function: an expression in t, or a callable.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> ResidualMap("tanh(t)", domain, 1e-6)(x, y, w)
    """

    def prepare(self) -> None:
        self.slots = self.template.slots
        self.head = self.template.head("residual map")

    def extra_repr(self) -> str:
        n, keys, width = self.domain.samples, self.f.keys, self.slots.width
        size = f"tokens={n * keys} ({n} samples × {keys} keys), width={width}"
        return f"{self.f.function.text!r}, {size}, error {self.certificate}"

    def prompt(
        self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"], w: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch tokens width"]:
        return self.template.prompt(self.template.data_rows(x, y), w)

    def forward(self, x: Inputs, y: Targets, w: Weights) -> Inputs:
        prompt = self.prompt(*admitted(self.template.domain, self.f.grid.dtype, x, y, w))
        out: Tensor = self.head(prompt, prompt[..., : self.domain.samples, :])
        return out


def residual_template(f: Any, domain: Domain, accuracy: Accuracy) -> Template:
    """The template of f on the domain's residuals; a tolerance that cannot be kept is refused."""
    function, inside = parse(f), stored(domain, accuracy.dtype)
    what = f"{function.text} on residuals up to {domain.residual:.4g}"
    return promised(lambda asked: template(function, inside, asked), accuracy, what)
