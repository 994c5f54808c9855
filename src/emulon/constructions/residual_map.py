"""Theorem 3.1 of Hu et al. 2025: one softmax head computes f(w·x_i − y_i)·x_i for every sample, for any f.

Appendix E is the same as a modern Hopfield layer, which retrieves with softmax(β·patterns·state).

`Template` is the theorem's tokens with a grid that keeps a tolerance; gradient steps are built on it, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Head, attend
from emulon.attention.codes import circular, one_hot
from emulon.certify import Certificate, Domain
from emulon.certify.certificate import CertifiedModule
from emulon.constructions.accuracy import Accuracy, Inputs, Targets, Way, Weights, aligned, promised
from emulon.expressions import Function, parse
from emulon.interpreter.checks import require_in_domain
from emulon.interpreter.phase import HALF, LEAK_SHARE, Routing, TokenLayout, stored
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


class ResidualMap(CertifiedModule):
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
        f: The function, an expression in t.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> ResidualMap("tanh(t)", domain, 1e-6)(x, y, w)
    """

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
        function, inside = parse(f), stored(domain, dtype)
        what = f"{function.text} on residuals up to {domain.residual:.4g}"
        accuracy = Accuracy(tolerance, points, grid, dtype)
        self.domain = domain
        self.template = promised(lambda asked: template(function, inside, asked), accuracy, what)
        self.f, self.slots = self.template.f, self.template.slots
        self.prepare()
        self.certificate = self.template.certificate()

    def prepare(self) -> None:
        """What the template is asked with."""
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


class HopfieldResidualMap(ResidualMap):
    """Appendix E: the residual map as a modern Hopfield layer. The data are stored patterns, w the state that asks.

    Claim: as `ResidualMap`, with the same certificate. The same keys are stored, divided by β.
    Corrected (Theorem E.2): Linear_w needs +1, not −1, in front of −L², and the routing constant needs 1/β.
    W_Q and W_K are the identity; W_V reads the pattern's value rows.

    Args:
        f: The function, an expression in t.
        domain: Bounds on the data, the weights and the residuals.
        tolerance: Largest error of an entry. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        dtype: Of everything.

    Example:
        >>> HopfieldResidualMap("tanh(t)", domain, 1e-6)(x, y, w)
    """

    w_v: Tensor

    def prepare(self) -> None:
        # A power of two: dividing by it and multiplying again is exact, so both maps round alike.
        self.beta = 2.0 ** round(torch.log2(self.f.grid.slopes.abs().max().clamp(min=1e-6)).item())
        self.register_buffer("w_v", torch.eye(self.domain.features, dtype=self.f.grid.dtype, device="cpu"))

    def extra_repr(self) -> str:
        n, keys = self.domain.samples, self.f.keys
        return f"{self.f.function.text!r}, patterns={n * keys}, β={self.beta:g}, error {self.certificate}"

    def patterns(
        self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]
    ) -> tuple[Float[Tensor, "*batch tokens width"], Float[Tensor, "*batch tokens d"]]:
        """What is stored: the key rows divided by β, and the value rows as they are."""
        parts = {name: part.flatten(-3, -2) for name, part in self.template.data_rows(x, y).items()}
        return torch.cat([parts[f"key_{name}"] for name in HALF], dim=-1) / self.beta, parts["value"]

    def state(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch n width"]:
        """What asks: (w, −1, +1, code_c) for every sample c."""
        parts = self.template.query_rows(w)
        return torch.cat([parts[f"query_{name}"] for name in HALF], dim=-1)

    def forward(self, x: Inputs, y: Targets, w: Weights) -> Inputs:
        x, y, w = admitted(self.template.domain, self.w_v.dtype, x, y, w)
        stored, values = self.patterns(x, y)
        return attend(self.state(w), self.beta * stored, values @ self.w_v.mT, name="hopfield")
