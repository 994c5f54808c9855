"""The soft threshold of every weight: the second half of a proximal gradient step."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Domain, rounding
from emulon.certify.module import CertifiedModule
from emulon.constructions.accuracy import Accuracy
from emulon.constructions.template import admitted, template
from emulon.expressions import parse


class Proximal(CertifiedModule):
    """w ↦ sign(w)·max(|w| − threshold, 0): the residual map's template again, with x = e_k, y = 0, read out by a sum.

    Claim: within `certificate.bound` in every entry, for |w| ≤ reach.
    Proof. Query k reads F(w_k)·e_k; entry k of the sum also gets what leaks from the d − 1 other queries. QED
    """

    def __init__(self, threshold: float, features: int, reach: float, accuracy: Accuracy) -> None:
        super().__init__()
        # e_k·w is a single product: nothing but w_k enters the score.
        self.domain = Domain(features, features, 1.0, 0.0, reach, residual=reach, absolute=reach)
        f = parse(f"sign(t)*Max(Abs(t) - {threshold!r}, 0)")
        # The twentieth that is held back is for the leaks of all d queries and the sum, both of a few roundings.
        self.template = accuracy.part(0.95, lambda asked: template(f, self.domain, asked))
        self.f = self.template.f
        self.head = self.template.head("proximal")
        own = self.template.certificate()
        terms = dict(own.terms)
        terms["routing leak"] *= features
        terms["rounding"] += rounding.gamma(features, accuracy.dtype) * self.template.f.interpolation.size
        self.certificate = replace(own, terms=terms)

    def data(self, w: Float[Tensor, "*batch d"]) -> list[Tensor]:
        """(x, y, w): the unit vectors, zeros, and the weights, in one batch shape."""
        unit = torch.eye(self.domain.features, dtype=w.dtype, device=w.device)
        return admitted(self.domain, self.template.grid.dtype, unit, torch.zeros_like(unit[0]), w)

    def prompt(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch tokens width"]:
        x, y, w = self.data(w)
        return self.template.prompt(self.template.data_rows(x, y), w)

    def forward(self, w: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        prompt = self.prompt(w)
        out: Tensor = self.head(prompt, prompt[..., : self.domain.features, :])
        return out.sum(dim=-2)
