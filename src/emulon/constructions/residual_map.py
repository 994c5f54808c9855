"""Theorem 3.1 of Hu et al. 2025: one softmax head computes f(w·x_i − y_i)·x_i for every sample, for any f."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Domain
from emulon.certify.module import CertifiedModule
from emulon.constructions.accuracy import Accuracy, Way, promised
from emulon.constructions.template import Template, admitted, template
from emulon.expressions import parse
from emulon.interpreter.layout import stored


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
        self.template = residual_template(f, domain, Accuracy(tolerance, points, grid, dtype))
        self.f = self.template.f
        self.slots = self.template.slots
        self.head = self.template.head("residual map")
        self.certificate = self.template.certificate()

    def extra_repr(self) -> str:
        n, keys, width = self.domain.samples, self.f.keys, self.slots.width
        size = f"tokens={n * keys} ({n} samples × {keys} keys), width={width}"
        return f"{self.f.function.text!r}, {size}, error {self.certificate}"

    def prompt(
        self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"], w: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch tokens width"]:
        return self.template.prompt(self.template.data_rows(x, y), w)

    def forward(
        self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"], w: Float[Tensor, "... d"]
    ) -> Float[Tensor, "... n d"]:
        prompt = self.prompt(*admitted(self.template.domain, self.f.grid.dtype, x, y, w))
        out: Tensor = self.head(prompt, prompt[..., : self.domain.samples, :])
        return out


def residual_template(f: Any, domain: Domain, accuracy: Accuracy) -> Template:
    """The template of f on the domain's residuals; a tolerance that cannot be kept is refused."""
    function, inside = parse(f), stored(domain, accuracy.dtype)
    what = f"{function.text} on residuals up to {domain.residual:.4g}"
    return promised(lambda asked: template(function, inside, asked), accuracy, what)
