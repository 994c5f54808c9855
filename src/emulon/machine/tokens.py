"""Which tokens there are (the prompt x₁, y₁, x₂, … of Akyürek et al. 2022) and which a token reads (K of Eq. 26).

Token 0 is the start token, whose registers are all zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify.domain import require_shape
from emulon.core.arrays import zeros
from emulon.core.errors import BadProgram, BadShape

START = 0


@dataclass(frozen=True)
class Lookup:
    """Every token reads one other.

    Attributes:
        name: What it is called.
        table: Token i (1, 2, …) reads token `table[i − 1]`; None is the paper's empty K(i): the start token, zeros.
    """

    name: str
    table: tuple[int | None, ...]

    def __post_init__(self) -> None:
        for token, read in enumerate(self.table, start=1):
            if read is not None and not 0 < read <= token:
                raise BadProgram(f"map {self.name}: token {token} cannot read token {read} (causal: 1 to {token})")

    @property
    def reads_start(self) -> bool:
        return None in self.table

    def targets(self) -> list[int]:
        """The token that each token reads, the start token included."""
        return [START, *(START if read is None else read for read in self.table)]


@dataclass(frozen=True)
class Average:
    """Every token reads the mean over those members that are not after it; zeros where there is none yet.

    Attributes:
        name: What it is called.
        members: The tokens (1, 2, …) to average over.
        reads_start: Whether the start token may be read.
    """

    name: str
    members: tuple[int, ...]
    reads_start: bool = True

    def marks(self, tokens: int) -> Tensor:
        """The key: 1 at members, 1/2 at the start token (which therefore wins only when no member is seen), else 0."""
        marks = zeros(tokens)
        marks[START] = 0.5
        marks[list(self.members)] = 1.0
        return marks


@dataclass(frozen=True)
class Matched(Average):
    """The same mean, weighed: member j counts exp(sharp · query here · key there).

    Attributes:
        query: The register of the reading token.
        key: The register of the members; both have `size` entries.
        sharp: The factor of their product.
        reach: Bound on |sharp · query · key|; the compiler refuses one that the ranges may break.
    """

    query: str = ""
    key: str = ""
    size: int = 1
    sharp: float = 1.0
    reach: float = 0.0


Where = Lookup | Average


def here(tokens: int) -> Lookup:
    """Every token reads itself; `tokens` counts all but the start token."""
    return Lookup("here", tuple(range(1, tokens + 1)))


def codes(tokens: int) -> Tensor:
    """A point on the circle for every token, the start token included: (tokens, 2).

    Claim: a token's code has inner product 1 with itself and at most 1 − `gap(tokens)` with any other.
    The paper's one-hot codes need as many slots as tokens; these need two.
    """
    angle = 2 * math.pi * torch.arange(tokens, dtype=torch.float64, device="cpu") / tokens
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def gap(where: Where, tokens: int) -> float:
    """By how much the wanted keys beat all others, before sharpening."""
    if isinstance(where, Average):
        return 0.5
    return 1.0 - math.cos(2 * math.pi / max(tokens, 2))


def sharpness(where: Where, tokens: int, dtype: torch.dtype) -> float:
    """β with tokens·e^{−β·gap} ≤ u/16: the leak stays below what rounding costs anyway.

    What a match adds to a score, to that of a wanted token or of another, is made up for.
    """
    matched = 2 * where.reach if isinstance(where, Matched) else 0.0
    return (math.log(16 * tokens / (torch.finfo(dtype).eps / 2)) + matched) / gap(where, tokens)


class Interleaved:
    """x_i is token 2i − 1 and y_i token 2i (i = 1, 2, …); token 0 is the start token; y_n is never shown.

    Args:
        features: Entries of an x.
        samples: How many examples, the last without its y.

    >>> prompt = Interleaved(features=2, samples=3)
    >>> prompt.tokens, prompt.previous_example.table, prompt.own_example.table
    (5, (None, None, 2, 2, 4), (1, 1, 3, 3, 5))
    """

    def __init__(self, features: int, samples: int) -> None:
        self.features, self.samples = features, samples
        self.tokens = 2 * samples - 1
        tokens = range(1, self.tokens + 1)
        # x_i and y_i both read x_i
        self.own_example = Lookup("own example", tuple(t if t % 2 else t - 1 for t in tokens))
        # x_i and y_i both read y_{i−1}; those of the first example read zeros
        self.previous_example = Lookup("previous example", tuple((t - 1) // 2 * 2 or None for t in tokens))
        # the mean over y_1 … y_{i−1}, as seen from x_i
        self.past_examples = Average("past examples", tuple(t for t in tokens if t % 2 == 0))

    def fill(self, xs: Float[Tensor, "... samples features"], ys: Float[Tensor, "... targets"]) -> dict[str, Tensor]:
        """The input registers x and y, (..., tokens, size); `ys` may leave out the last target, which is not used."""
        require_shape(xs, "xs", self.samples, self.features)
        if ys.shape[:-1] != xs.shape[:-2] or ys.shape[-1] not in (self.samples, self.samples - 1):
            raise BadShape(f"ys has shape {tuple(ys.shape)}, wanted {(*xs.shape[:-2], self.samples)}")
        x = xs.new_zeros(*xs.shape[:-2], self.tokens, self.features)
        y = xs.new_zeros(*xs.shape[:-2], self.tokens, 1)
        x[..., 0::2, :] = xs
        y[..., 1::2, 0] = ys[..., : self.samples - 1].to(xs)
        return {"x": x, "y": y}

    def predictions(self, output: Float[Tensor, "... tokens 1"]) -> Float[Tensor, "... samples"]:
        """What the output register holds at x_1, …, x_n."""
        return output[..., 0::2, 0]
