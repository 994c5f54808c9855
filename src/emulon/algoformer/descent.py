"""Gradient descent in the loop, as every assembly on Lemma A.2 needs it: step size, stencil, layer, certificate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.algoformer.descent_audit import DescentAudit
from emulon.algoformer.former import share
from emulon.algoformer.gradient_step import descent_error, gradient_layer, gradient_stencil, largest_prediction
from emulon.algoformer.layer import Layer
from emulon.algoformer.stencil import Stencil
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.errors import OutOfDomain


@dataclass(frozen=True)
class Descent:
    """T steps of size η ≤ 2/largest on features off by `feature_error` in norm and labels off by `label_error`."""

    domain: Domain
    step_size: float
    tokens: int
    dtype: torch.dtype
    feature_error: float = 0.0
    label_error: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_size * self.domain.largest <= 2 * (1 + 1e-12):
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {2 / self.domain.largest:.6g}] = (0, 2/L]")

    def stencil(self, pairs: int) -> Stencil:
        return gradient_stencil(self.domain, pairs, self.tokens, self.dtype, self.feature_error)

    def layer(self, slots: Slots, pairs: int, kinds: tuple[str, ...]) -> Layer:
        return gradient_layer(slots, self.stencil(pairs), self.domain, self.step_size, kinds)

    def certificate(self, pairs: int, loops: int) -> Certificate:
        """Features off by e make x_i·x_j off by at most 2·norm·e + e²: relative to norm², one more term of the step."""
        off = self.feature_error / self.domain.norm
        # The stencil's reach is (1 + off)²·norm².
        terms = {name: part * (1 + off) ** 2 for name, part in self.stencil(pairs).terms.items()}
        terms["representation"] = off * (2 + off)
        exact = (self.domain, self.step_size, sum(terms.values()), loops, self.dtype)
        loop = descent_error(*exact)
        labels = descent_error(*exact, label_error=self.label_error) - loop if self.label_error else 0.0
        return Certificate(share(loop, terms) | {"labels": labels}, self.dtype)

    def bound(self, pairs: int, loops: int) -> float:
        return self.certificate(pairs, loops).bound

    def audit(
        self,
        xs: Tensor,
        ys: Tensor,
        x_query: Tensor,
        readings: Iterable[tuple[Tensor, Tensor]],
        feature_error: float = 0.0,
    ) -> Certificate:
        """The certificate of one run from its (residuals, prediction) before and after every loop (`DescentAudit`)."""
        audit = DescentAudit(xs, ys, x_query, self.step_size, feature_error, self.label_error)
        for step, (residuals, prediction) in enumerate(readings):
            audit.watch(residuals, prediction, start=step == 0)
        return Certificate({"loop": audit.bound.max().item()}, self.dtype, scope="run")

    def largest_prediction(self, loops: int) -> float:
        """Above every |prediction| the loop can hold, exact or computed with one pair or more."""
        return largest_prediction(self.domain, self.step_size, loops) + self.bound(1, loops)
