"""The one softmax attention that everything in emulon runs through."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


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


class Head(nn.Module):
    """One or several frozen attention heads; the outputs of several are added.

    With several heads the tokens have a head axis too, (..., heads, tokens, features), of size 1 where all heads read
    the same tokens. `forward(tokens)` is self-attention, `forward(tokens, queries)` cross-attention.

    Args:
        w_k: Key matrix (width, features), or (heads, width, features).
        w_q: Query matrix, of the same shape.
        w_v: Value matrix (out, features), or (heads, out, features).
        name: Name of its records in a `Trace`.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor

    def __init__(
        self,
        w_k: Float[Tensor, "*heads width features"],
        w_q: Float[Tensor, "*heads width features"],
        w_v: Float[Tensor, "*heads out features"],
        *,
        name: str = "head",
    ) -> None:
        super().__init__()
        self.name = name
        self.register_buffer("w_k", w_k.contiguous())
        self.register_buffer("w_q", w_q.contiguous())
        self.register_buffer("w_v", w_v.contiguous())

    @property
    def heads(self) -> int:
        return self.w_k.shape[0] if self.w_k.ndim == 3 else 1

    def extra_repr(self) -> str:
        return f"heads={self.heads}, width={self.w_k.shape[-2]}, features={self.w_k.shape[-1]}"

    def forward(
        self, tokens: Float[Tensor, "... tokens features"], queries: Float[Tensor, "... queries features"] | None = None
    ) -> Float[Tensor, "... queries out"]:
        asking = tokens if queries is None else queries
        out = attend(asking @ self.w_q.mT, tokens @ self.w_k.mT, tokens @ self.w_v.mT, name=self.name)
        return out.sum(dim=-3) if self.w_k.ndim == 3 else out


class Slots:
    """An ordered layout of named, contiguous groups of features.

    Args:
        sizes: Number of features of each group, by name.

    Example:
        >>> slots = Slots(x=2, y=1)
        >>> slots.width, slots["y"], slots.labels
        (3, slice(2, 3, None), ('x[0]', 'x[1]', 'y'))
    """

    def __init__(self, **sizes: int) -> None:
        self._slices: dict[str, slice] = {}
        start = 0
        for name, size in sizes.items():
            self._slices[name] = slice(start, start + size)
            start += size
        self.width = start

    def __getitem__(self, name: str) -> slice:
        return self._slices[name]

    def __contains__(self, name: str) -> bool:
        return name in self._slices

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __repr__(self) -> str:
        return f"Slots({', '.join(f'{name}={self.size(name)}' for name in self)})"

    def size(self, name: str) -> int:
        where = self._slices[name]
        return int(where.stop - where.start)

    @property
    def labels(self) -> tuple[str, ...]:
        """One label per feature, for traces and pictures."""
        out: list[str] = []
        for name in self:
            size = self.size(name)
            out += [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        return tuple(out)

    def pack(self, **parts: Tensor | float) -> Tensor:
        """Tokens (..., tokens, width) from their named parts, broadcast together; what is not named is zero."""
        tensors = [part for part in parts.values() if isinstance(part, Tensor)]
        lead = np.broadcast_shapes(*(part.shape[:-1] for part in tensors))  # torch's imports sympy
        out = tensors[0].new_zeros(*lead, self.width)
        for name, part in parts.items():
            out[..., self._slices[name]] = part
        return out

    def select(self, *names: str, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu") -> Tensor:
        """The 0/1 matrix (rows, width) that reads the named slots, in this order, out of a token."""
        every = torch.eye(self.width, dtype=dtype, device=device)
        return torch.cat([every[self._slices[name]] for name in names])
