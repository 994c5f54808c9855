"""The layout that Theorem 3.1 and its corollaries share: n samples × K grid points as tokens, n queries, one head."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.approximation import Approximation, Grid
from emulon.attention import Head, Slots
from emulon.certify import Certificate, Domain, rounding
from emulon.constructions.accuracy import Accuracy, checked_to
from emulon.constructions.batches import aligned
from emulon.constructions.codes import Codes, circular, one_hot
from emulon.constructions.routing import Routing
from emulon.expression import Function

# Of a tolerance, what may leak to other samples' tokens; the rest is for interpolation and rounding.
LEAK_SHARE = 0.02
HALF = ("x", "y", "bias", "code")


@dataclass(frozen=True)
class Template:
    """A grid for f on the domain's residuals, the codes that route, and how strongly they do.

    Token (i, j) is the key (slope_j·x_i, slope_j·y_i, intercept_j, C·code_i) with value_j·x_i beside it; query c is
    (w, −1, 1, code_c). Their product is score_j(w·x_i − y_i) + C·code_i·code_c: the grid's score, raised for one's own
    sample. `strength` is C; `leak` bounds the total weight of all other samples' tokens.
    """

    f: Approximation
    domain: Domain
    codes: Codes
    strength: float
    leak: float
    slots: Slots

    @property
    def grid(self) -> Grid:
        return self.f.grid

    def head(self, name: str, w_v: Float[Tensor, "out width"] | None = None) -> Head:
        """The frozen head that reads this layout; without a `w_v` it returns the value rows."""
        dtype = self.grid.dtype
        w_k, w_q = (self.slots.select(*(f"{side}_{part}" for part in HALF), dtype=dtype) for side in ("key", "query"))
        return Head(w_k, w_q, self.slots.select("value", dtype=dtype) if w_v is None else w_v, name=name)

    def keys(self, x: Float[Tensor, "*batch n d"], y: Float[Tensor, "*batch n"]) -> dict[str, Tensor]:
        """The key half of every token, (..., samples·keys, ·) by slot name."""
        keys, codes = self.f.keys, self.codes.vectors.to(x.device)
        slopes, values, intercepts = (part.unsqueeze(-1) for part in (self.f.slopes, self.f.values, self.f.intercepts))
        parts = {
            "key_x": slopes * x.unsqueeze(-2),
            "key_y": slopes * y[..., None, None],
            "key_bias": intercepts.expand(*y.shape, keys, 1),
            "key_code": (self.strength * codes).unsqueeze(-2).expand(*x.shape[:-1], keys, -1),
            "value": values * x.unsqueeze(-2),
        }
        return {name: part.flatten(-3, -2) for name, part in parts.items()}

    def queries(self, w: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """The query half of the first n tokens, (..., samples, ·) by slot name."""
        n = self.domain.samples
        ones = w.new_ones(*w.shape[:-1], n, 1)
        return {
            "query_x": w.unsqueeze(-2).expand(*w.shape[:-1], n, w.shape[-1]),
            "query_y": -ones,
            "query_bias": ones,
            "query_code": self.codes.vectors.to(w.device).expand(*w.shape[:-1], n, -1),
        }

    def tokens(
        self,
        x: Float[Tensor, "*batch n d"],
        y: Float[Tensor, "*batch n"],
        w: Float[Tensor, "*batch d"],
        **more: Float[Tensor, "*batch tokens more"],
    ) -> Float[Tensor, "*batch tokens width"]:
        """The whole prompt: the key half in every token, the query half in the first n."""
        prompt = self.slots.pack(**self.keys(x, y), **more)
        for name, part in self.queries(w).items():
            prompt[..., : self.domain.samples, self.slots[name]] = part
        return prompt

    def certificate(self, scale: float = 1.0) -> Certificate:
        """Terms of scale·F(residual)·x: the scalar function's own, times |x|, and the leak to other samples' tokens."""
        own = self.f.certificate
        entry = self.domain.x * scale
        largest = float(self.grid.values.abs().max()) + self.f.interpolation.size
        terms = {
            "interpolation": own.terms["interpolation"] * entry,
            "routing leak": self.leak * largest * entry,
            "rounding": own.terms["rounding"] * entry,
        }
        return replace(own, terms=terms)


def as_stored(domain: Domain, dtype: torch.dtype) -> Domain:
    """The same domain with a little room: data at its very edge may be rounded outwards when cast or checked."""
    room = 1 + 4 * rounding.unit(dtype)
    edges = {name: getattr(domain, name) * room for name in ("x", "y", "w")}
    # A bound that only follows from the others is left to follow again.
    last = 4 * rounding.unit(dtype) * domain.absolute + checked_to(domain.features + 1, domain.absolute)
    residual, absolute = (
        bound + last if bound < domain.widest else 0.0 for bound in (domain.residual, domain.absolute)
    )
    return replace(domain, **edges, residual=residual, absolute=absolute)


def template(f: Function, domain: Domain, accuracy: Accuracy, scale: float = 1.0, state: int = 0) -> Template:
    """A template whose outputs scale·F(residual)·x are within the tolerance, leak included; the domain is `as_stored`.

    `scale` is what multiplies F·x afterwards; `state` the width of a further slot that a construction's tokens carry.
    """
    dtype = accuracy.dtype
    codes = one_hot(domain.samples, dtype) if accuracy.grid == "paper" else circular(domain.samples, dtype)
    per_value = 1 / max(domain.x * scale, 1e-300)
    tolerance = accuracy.tolerance
    allowed = 0.1 * torch.finfo(dtype).eps if tolerance is None else LEAK_SHARE * tolerance * per_value
    routing = Routing(domain, codes, accuracy.grid == "paper", allowed)
    # Checks see a residual only to within this much.
    reach = domain.residual + checked_to(domain.features + 1, domain.absolute)
    made = accuracy.part(
        (1 - LEAK_SHARE) * per_value, lambda asked: asked.approximate(f, reach, routing.rounding_error)
    )
    halves = {"x": domain.features, "y": 1, "bias": 1, "code": codes.width}
    slots = Slots(
        **{f"key_{name}": halves[name] for name in HALF},
        value=domain.features,
        **({"state": state} if state else {}),
        **{f"query_{name}": halves[name] for name in HALF},
    )
    return Template(made, domain, codes, routing.strength(made.grid), routing.leak(made.grid), slots)


def admitted(domain: Domain, dtype: torch.dtype, x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
    """x, y and w in one dtype and batch shape, checked in float64: a check then errs by at most `checked_to`."""
    n, d = domain.samples, domain.features
    parts = aligned(dtype, x=(x, (n, d)), y=(y, (n,)), w=(w, (d,)))
    domain.check(*(part.double() for part in parts))
    return parts
