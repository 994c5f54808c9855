"""The one softmax attention that everything in emulon runs through."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class AttentionRecord:
    """Scores, weights and output of one attention.

    Args:
        name: The attention's name.
        scores: (..., queries, tokens).
        weights: Their softmax, (..., queries, tokens).
        output: (..., queries, width).
    """

    name: str
    scores: Tensor
    weights: Tensor
    output: Tensor


@dataclass
class Trace:
    """Collects an `AttentionRecord` of every attention that runs inside `with Trace() as trace:`.

    Args:
        records: What was collected, in order; empty at first.
    """

    records: list[AttentionRecord] = field(default_factory=list)

    def __enter__(self) -> Trace:
        self._token = _active.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _active.reset(self._token)

    def __getitem__(self, name: str) -> AttentionRecord:
        """The last record of that name."""
        for record in reversed(self.records):
            if record.name == name:
                return record
        raise KeyError(f"no attention called {name!r} ran; these did: {[record.name for record in self.records]}")


_active: ContextVar[Trace | None] = ContextVar("trace", default=None)


def attend(
    queries: Float[Tensor, "... queries width"],
    keys: Float[Tensor, "... tokens width"],
    values: Float[Tensor, "... tokens out"],
    *,
    causal: bool = False,
    visible: Bool[Tensor, "*rows tokens"] | None = None,
    name: str = "attention",
) -> Float[Tensor, "... queries out"]:
    """softmax(queries · keysᵀ) · values, without a hidden scale: a scale belongs into the keys.

    Every query must see some token.

    Args:
        queries: (..., queries, width).
        keys: (..., tokens, width).
        values: (..., tokens, out).
        causal: Query i sees tokens 0 to i only.
        visible: Mask of the tokens that are seen, (tokens,) or (queries, tokens).
        name: Name of the record in a `Trace`.
    Returns:
        (..., queries, out).
    """
    scores = queries @ keys.mT
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.softmax(scores, dim=-1)
    output = weights @ values
    trace = None if torch.compiler.is_compiling() else _active.get()  # a compiled attention leaves no record
    if trace is not None:
        trace.records.append(AttentionRecord(name, scores, weights, output))
    return output
