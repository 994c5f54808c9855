"""In-context data: what every algorithm asks of it before it looks at it."""

from __future__ import annotations

import torch
from jaxtyping import Real
from torch import Tensor

from emulon.certify.domain import require_finite
from emulon.errors import BadShape, OutOfDomain


def require_data(x: Real[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]) -> None:
    """Refuse data that is empty, not finite, or whose x and y do not belong together."""
    if x.ndim < 2 or x.shape[:-1] != y.shape:
        raise BadShape(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}, wanted (..., samples, features), (..., samples)"
        )
    if 0 in x.shape[-2:]:
        raise BadShape(f"x has shape {tuple(x.shape)}; give at least one sample and one feature")
    require_finite(x=x, y=y)


def require_queries(x: Real[Tensor, "*batch samples features"], x_query: Real[Tensor, "*query"]) -> None:
    """Refuse queries that are neither one a batch element, (..., features), nor several, (..., queries, features)."""
    batch, features = tuple(x.shape[:-2]), x.shape[-1]
    several = x_query.ndim == x.ndim
    if not x_query.ndim or x_query.shape[-1] != features or tuple(x_query.shape[: -2 if several else -1]) != batch:
        one = ", ".join(map(str, (*batch, features)))
        many = ", ".join(map(str, (*batch, "queries", features)))
        raise BadShape(f"x_query has shape {tuple(x_query.shape)}, wanted ({one}) or ({many})")
    require_finite(x_query=x_query)


def require_labels(y: Real[Tensor, "*shape"]) -> None:
    if not torch.isin(y, torch.tensor([-1, 1], dtype=y.dtype, device=y.device)).all():
        raise OutOfDomain("a margin loss needs labels −1 and +1; map the classes first, as 2*y - 1 does 0 and 1")


def require_counts(y: Real[Tensor, "*shape"]) -> None:
    if (y < 0).any():
        raise OutOfDomain(f"counts cannot be negative, got {y.min().item():.6g}; drop or correct those samples")
