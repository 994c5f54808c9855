"""Four arithmetics over the numbers of a register, so that every layer writes its exact map once.

`FLOAT64` computes with tensors as PyTorch does; `FLOAT_BALLS` encloses the true numbers in balls of one float, and
`BALLS` at twice that precision, in array operations; `ARB` encloses one row of an input with as many bits as are asked
for, number by number. Values are (…, positions, features) tensors, balls, and numpy arrays of Arb balls; + − * / and
indexing work on all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.certify.balls import Ball, FloatBall
from emulon.certify.functions import enclosed
from emulon.expressions import parse
from emulon.expressions.evaluation import arb_matrix


def future_mask(positions: int) -> Tensor:
    """(i, j): whether position j comes after i."""
    return torch.ones(positions, positions, dtype=torch.bool, device="cpu").triu(1)


class Arithmetic:
    """Operations of layers beside + − * /, over float64 tensors."""

    def of(self, numbers: Tensor) -> Any:
        """float64 numbers as they are."""
        return numbers

    def rows(self, numbers: Tensor, x: Any) -> Any:
        """The first rows of `numbers`, one for each position of x, for every row of x."""
        return numbers[: x.shape[-2]].expand(*x.shape[:-2], -1, -1)

    def matmul(self, x: Any, matrix: Tensor) -> Any:
        return x @ matrix

    def inner(self, a: Any, b: Any) -> Any:
        """(…, i, j): Σ_c a(i, c)·b(j, c)."""
        return a @ b.mT

    def transposed(self, a: Any) -> Any:
        return a.mT

    def sum(self, x: Any) -> Any:
        """Over features, which become one."""
        return x.sum(dim=-1, keepdim=True)

    def sqrt(self, x: Any) -> Any:
        return x.sqrt()

    def weights(self, scores: Any, causal: bool) -> Any:
        """exp(scores), up to a positive factor a row that prevents overflow; 0 at masked places."""
        hidden = scores.masked_fill(future_mask(scores.shape[-1]), -torch.inf) if causal else scores
        return (hidden - hidden.amax(dim=-1, keepdim=True)).exp()

    def function(self, f: str, x: Any) -> Any:
        """f(x), with f written in t."""
        return parse(f)(x)

    def beside(self, parts: Sequence[Any]) -> Any:
        """Features side by side."""
        return torch.cat(list(parts), dim=-1)


class _Balls(Arithmetic):
    """Over balls of one kind."""

    def __init__(self, kind: type[Ball] | type[FloatBall]) -> None:
        self.kind = kind

    def of(self, numbers: Tensor) -> Any:
        return self.kind.of(numbers)

    def rows(self, numbers: Tensor, x: Any) -> Any:
        return self.of(FLOAT64.rows(numbers, x.high).contiguous())

    def matmul(self, x: Any, matrix: Tensor) -> Any:
        return x.matmul(matrix.contiguous())

    def inner(self, a: Any, b: Any) -> Any:
        return (a.apply(lambda part: part.unsqueeze(-2)) * b.apply(lambda part: part.unsqueeze(-3))).sum()

    def transposed(self, a: Any) -> Any:
        return a.apply(lambda part: part.mT)

    def sum(self, x: Any) -> Any:
        return x.sum().apply(lambda part: part.unsqueeze(-1))

    def weights(self, scores: Any, causal: bool) -> Any:
        hidden = future_mask(scores.high.shape[-1]) & causal
        moved = scores - scores.high.masked_fill(hidden, -torch.inf).amax(dim=-1, keepdim=True)
        # Masked before exp, which could overflow, and after it.
        kept = moved.apply(lambda part: part.masked_fill(hidden, 0.0)).exp()
        return kept.apply(lambda part: part.masked_fill(hidden, 0.0))

    def function(self, f: str, x: Any) -> Any:
        return enclosed(parse(f), x)

    def beside(self, parts: Sequence[Any]) -> Any:
        return self.kind(
            *(torch.cat(part, dim=-1) for part in zip(*(vars(one).values() for one in parts), strict=True))
        )


class _Arb(Arithmetic):
    """Inside `ball_arithmetic`, which says how many bits."""

    def of(self, numbers: Tensor) -> Any:
        flat = arb_matrix(numbers.reshape(1, -1)).entries()
        return _objects(flat).reshape(tuple(numbers.shape))

    def rows(self, numbers: Tensor, x: Any) -> Any:
        return self.of(numbers[: len(x)])

    def matmul(self, x: Any, matrix: Tensor) -> Any:
        from flint import arb_mat

        return _objects((arb_mat(x.tolist()) * arb_matrix(matrix)).entries()).reshape(len(x), -1)

    def inner(self, a: Any, b: Any) -> Any:
        from flint import arb_mat

        return _objects((arb_mat(a.tolist()) * arb_mat(b.T.tolist())).entries()).reshape(len(a), -1)

    def transposed(self, a: Any) -> Any:
        return a.T

    def sum(self, x: Any) -> Any:
        return x.sum(axis=-1, keepdims=True)

    def sqrt(self, x: Any) -> Any:
        return _each(lambda t: t.sqrt(), x)

    def weights(self, scores: Any, causal: bool) -> Any:
        hidden = np.triu(np.ones(scores.shape, dtype=bool), 1) & causal
        largest = _each(lambda t: t.mid(), np.diagonal(scores))[:, None]
        return np.where(hidden, largest * 0, _each(lambda t: t.exp(), np.where(hidden, largest, scores) - largest))

    def function(self, f: str, x: Any) -> Any:
        return _each(parse(f).arb_value, x)

    def beside(self, parts: Sequence[Any]) -> Any:
        return np.concatenate(list(parts), axis=-1)


def _objects(values: list[Any]) -> Any:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    return _objects([function(t) for t in x.flatten()]).reshape(x.shape)


FLOAT64, FLOAT_BALLS, BALLS, ARB = Arithmetic(), _Balls(FloatBall), _Balls(Ball), _Arb()
