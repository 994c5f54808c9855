"""Theorem 3.1: one softmax head computes f(w·x_i − y_i)·x_i for every sample, for any f."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Head
from emulon.certify import Certificate, Domain
from emulon.constructions.template import Template, Way, template
from emulon.expression import parse


class ResidualMap(nn.Module):
    """(x, y, w) ↦ [f(w·x_i − y_i)·x_i]_i through one frozen attention head.

    Claim: the output is within `certificate.bound` of the exact one, in every entry, for all data in the domain.
    Cost: samples·keys tokens of width O(features); one head. With grid="paper" the construction is the paper's own:
    sharp β, values f(L_j), one-hot routing (width O(features + samples)).
    Corrected: the routing constant is printed as (max L)(2dB² + 2B) − ln ε₀/β, half of the M derived in the proof's own
    footnote, and with max L where max |L| is meant.

    `head.w_k`, `head.w_q`, `head.w_v` are the plain matrices; `prompt(x, y, w)` the tokens they act on. The answer is
    the output of the first n tokens.
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
        self.domain = domain
        self.template: Template = template(parse(f), domain, tolerance, points, grid, dtype, scale=1.0)
        self.f = self.template.f
        self.slots = self.template.slots
        self.head = Head(
            self.slots.select("key_x", "key_y", "key_bias", "key_code", dtype=dtype),
            self.slots.select("query_x", "query_y", "query_bias", "query_code", dtype=dtype),
            self.slots.select("value", dtype=dtype),
            name="residual map",
        )
        self.certificate = residual_certificate(self.template)

    def extra_repr(self) -> str:
        n, keys = self.domain.samples, self.f.keys
        return f"{self.f.function.text!r}, tokens={n * keys} ({n} samples × {keys} keys), width={self.slots.width}, error {self.certificate}"

    def prompt(self, x: Tensor, y: Tensor, w: Tensor) -> Float[Tensor, "... tokens width"]:
        return self.template.tokens(x, y, w)

    def forward(
        self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"], w: Float[Tensor, "... d"]
    ) -> Float[Tensor, "... n d"]:
        dtype = self.head.w_k.dtype
        x, y, w = x.to(dtype), y.to(dtype), w.to(dtype)
        self.domain.check(x, y, w)
        prompt = self.prompt(x, y, w)
        return self.head(prompt, prompt[..., : self.domain.samples, :])


def residual_certificate(template: Template, scale: float = 1.0) -> Certificate:
    """Terms of scale·F(residual)·x: the scalar function's own, times |x|, and the leak to other samples' tokens."""
    f, domain = template.f, template.domain
    entry = domain.x * scale
    largest = float(template.grid.values.abs().max()) + f.interpolation.size
    terms = {
        "interpolation": f.certificate.terms["interpolation"] * entry,
        "routing leak": template.leak * largest * entry,
        "rounding": f.certificate.terms["rounding"] * entry,
    }
    return Certificate(terms, f.certificate.dtype, f.certificate.proved, f.certificate.bands, f.certificate.note)
