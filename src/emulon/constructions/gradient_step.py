"""Corollaries 3.1.1 and 3.1.2: one step of (proximal) gradient descent on any loss, by one head and a readout."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.algorithms import losses
from emulon.algorithms.loss import Loss
from emulon.attention import Head
from emulon.certify import Certificate, Domain, rounding
from emulon.certify.domain import require_shape, require_within
from emulon.constructions.residual_map import residual_certificate
from emulon.constructions.template import Template, Way, template
from emulon.errors import EmulonError
from emulon.expression import parse

# The proximal step's share of a step's tolerance, where there is one.
PROXIMAL_SHARE = 0.4


class GradientStep(nn.Module):
    """(x, y, w) ↦ prox(w − η·∇(mean ℓ)(w) − η·l2·w), the prox being the soft threshold at η·l1.

    Claim: within `certificate.bound` of the exact step in every entry, for data in the domain (and, for losses whose
    derivative jumps, residuals outside the bands).
    How: Theorem 3.1 with f = ℓ′; the value rows read −η·f(w·x_i − y_i)·x_i + (1 − η·l2)·w, as every token also carries
    the state w; the readout is the mean over samples. l1 > 0 adds a second head of the same kind with x = e_k, y = 0 and
    f the soft threshold, read out by a sum. A classifier's data enter as label·x with y = 0; Poisson's tokens also carry
    the fixed y_i·x_i.
    Corrected: Corollary 3.1.2's readout gives w − η∇ only if the values carry w.
    """

    def __init__(
        self,
        loss: Loss | str,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        l2: float = 0.0,
        l1: float = 0.0,
        points: int | None = None,
        grid: Way = "auto",
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        self.loss = as_loss(loss)
        self.domain = domain
        self.step_size = domain_step_size(self.loss, domain, l2) if step_size is None else float(step_size)
        self.l2, self.l1 = float(l2), float(l1)
        self.inner = inner = effective_domain(self.loss, domain)
        share = None if tolerance is None else tolerance * (1 - PROXIMAL_SHARE if l1 else 0.9)
        self.template = template(
            parse(self.loss.derivative), inner, share, points, grid, dtype, self.step_size, extra=2 * domain.features
        )
        self.head = self._gradient_head(dtype)
        self.proximal = self._proximal(tolerance, points, grid, dtype) if l1 else None
        self.certificate = self._certificate()

    def extra_repr(self) -> str:
        n, keys = self.domain.samples, self.template.f.keys
        return f"{self.loss.name}, η={self.step_size:.4g}, tokens={n * keys}, width={self.template.slots.width}, error {self.certificate}"

    def _gradient_head(self, dtype: torch.dtype) -> Head:
        slots, d = self.template.slots, self.domain.features
        state = slots.select("state", dtype=dtype)
        w_v = -self.step_size * slots.select("value", dtype=dtype)
        w_v = w_v + (1 - self.step_size * self.l2) * state[:d] + self.step_size * state[d:]
        return Head(
            slots.select("key_x", "key_y", "key_bias", "key_code", dtype=dtype),
            slots.select("query_x", "query_y", "query_bias", "query_code", dtype=dtype),
            w_v,
            name="gradient",
        )

    def _proximal(self, tolerance: float | None, points: int | None, grid: Way, dtype: torch.dtype) -> Proximal:
        f, domain = self.template.f, self.domain
        step = self.step_size * (domain.x * f.interpolation.size + self._fixed)
        reach = abs(1 - self.step_size * self.l2) * domain.w + step
        share = None if tolerance is None else PROXIMAL_SHARE * tolerance * 0.9
        return Proximal(self.step_size * self.l1, domain.features, reach * (1 + 1e-6), share, points, grid, dtype)

    @property
    def _fixed(self) -> float:
        """Bound on the entries of y_i·x_i, where they are carried."""
        return self.domain.x * self.domain.y if self.loss.form == "rate" else 0.0

    def prompt(self, x: Tensor, y: Tensor, w: Tensor) -> Float[Tensor, "... tokens width"]:
        """Tokens that also carry the state w, and for Poisson y_i·x_i."""
        inner_x, inner_y, _ = self.loss.effective(x, y)
        keys = self.template.f.keys
        fixed = y.unsqueeze(-1) * x if self.loss.form == "rate" else torch.zeros_like(x)
        fixed = fixed.repeat_interleave(keys, dim=-2)
        state = torch.cat([w.unsqueeze(-2).expand_as(fixed), fixed], dim=-1)
        return self.template.tokens(inner_x, inner_y, w, state=state)

    def forward(
        self, x: Float[Tensor, "... n d"], y: Float[Tensor, "... n"], w: Float[Tensor, "... d"]
    ) -> Float[Tensor, "... d"]:
        dtype = self.head.w_k.dtype
        x, y, w = x.to(dtype), y.to(dtype), w.to(dtype)
        require_shape(y, "y", self.domain.samples)
        require_shape(x, "x", self.domain.samples, self.domain.features)
        require_within(self.domain.y, y=y)
        inner_x, inner_y, _ = self.loss.effective(x, y)
        self.inner.check(inner_x, inner_y, w)
        prompt = self.prompt(x, y, w)
        out = self.head(prompt, prompt[..., : self.domain.samples, :]).mean(dim=-2)
        return out if self.proximal is None else self.proximal(out)

    def _certificate(self) -> Certificate:
        f, domain = self.template.f, self.domain
        inner = residual_certificate(self.template, self.step_size)
        keys, n, dtype = f.keys, domain.samples, f.grid.dtype
        carried = domain.w + self.step_size * self._fixed
        moved = self.step_size * domain.x * float(f.grid.values.abs().max())
        terms = dict(inner.terms)
        terms["routing leak"] += 2 * self.template.leak * self.step_size * self._fixed
        # W_V adds three numbers, the average sums the carried state too, the readout sums n and divides.
        terms["rounding"] += (
            rounding.gamma(4, dtype) * (carried + moved)
            + rounding.average(keys, carried, dtype)
            + rounding.gamma(n + 1, dtype) * (carried + self.step_size * domain.x * (f.interpolation.size + 1e-300))
        )
        if self.proximal is not None:
            terms["proximal step"] = self.proximal.certificate.bound
        proved = inner.proved and (self.proximal is None or self.proximal.certificate.proved)
        return Certificate(terms, dtype, proved, inner.bands, inner.note)


class Proximal(nn.Module):
    """w ↦ soft threshold of w: the residual map's template again, with x = e_k, y = 0, read out by a sum."""

    def __init__(
        self,
        threshold: float,
        features: int,
        reach: float,
        tolerance: float | None,
        points: int | None,
        grid: Way,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        # e_k·w is a single product: nothing but w_k enters the score.
        self.domain = Domain(features, features, 1.0, 0.0, reach, residual=reach, absolute=reach)
        f = f"sign(t)*Max(Abs(t) - {threshold!r}, 0)"
        self.template: Template = template(parse(f), self.domain, tolerance, points, grid, dtype, 1.0)
        slots = self.template.slots
        self.head = Head(
            slots.select("key_x", "key_y", "key_bias", "key_code", dtype=dtype),
            slots.select("query_x", "query_y", "query_bias", "query_code", dtype=dtype),
            slots.select("value", dtype=dtype),
            name="proximal",
        )
        inner = residual_certificate(self.template)
        terms = dict(inner.terms)
        # Entry k of the sum gets what leaks from each of the d queries.
        terms["routing leak"] *= features
        terms["rounding"] += rounding.gamma(features, dtype) * reach
        self.certificate = Certificate(terms, dtype, inner.proved)

    def forward(self, w: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        x = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
        y = w.new_zeros(w.shape[-1])
        self.domain.check(x, y, w)
        prompt = self.template.tokens(x, y, w)
        return self.head(prompt, prompt[..., : w.shape[-1], :]).sum(dim=-2)


def as_loss(loss: Loss | str) -> Loss:
    """A `Loss`, the name of a built-in one, or an expression in the residual t."""
    if isinstance(loss, Loss):
        return loss
    named = {name: getattr(losses, name) for name in BUILT_IN}
    return named[loss]() if loss in named else Loss.of(loss)


BUILT_IN = ("squared", "huber", "log_cosh", "quantile", "logistic", "squared_hinge", "perceptron", "poisson")


def effective_domain(loss: Loss, domain: Domain) -> Domain:
    """Bounds on the data as f sees them: margins and rates have no y."""
    if loss.form == "residual":
        return domain
    bounds = {name: getattr(domain, name) for name in ("residual", "absolute")}
    return replace(domain, y=0.0, **{name: bound if bound < domain.widest else 0.0 for name, bound in bounds.items()})


def domain_step_size(loss: Loss, domain: Domain, l2: float) -> float:
    """1/L for the worst data of the domain: L = curvature·features·x² + l2."""
    if loss.curvature == float("inf"):
        raise EmulonError(f"the curvature of the loss {loss.name} has no bound; pass step_size")
    return 1 / max(loss.curvature * domain.features * domain.x**2 + l2, 1e-300)
