"""A linear layer by prompt (Hu et al. 2025, Remark 4.5): Θ stands in the prompt as W_V.

Every position is a prompt of one token (x, 1), whose head has W_V = [Θ b] divided by a power of two: the only token
of a prompt attends to itself alone, so that the answer is its value, θ·x + b as layer 1 reads it off the number line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from emulon.certify import rounding
from emulon.certify.balls import Ball
from emulon.certify.domain import enclosure
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.networks.arithmetic import BALLS, FLOAT64, Arithmetic
from emulon.networks.layers import LIFT, Box, ErrorBound, Prompt, SimpleLayer, SimplePhase, ValueRanges, read
from emulon.networks.softmaxes import power_for

# Rows of Θ that one head has: more are several heads.
ROWS = 64


@dataclass(frozen=True, eq=False)
class Unrounded:
    """A linear map that float64 does not hold: x ↦ N(x − shift)/√s + bias, row by row.

    `squares` are two numbers for every row, whose sum is s: (n², 0) divides by n, (variance, ε) is a trained norm.
    """

    numerators: Float64[Tensor, "out features"]
    shift: Float64[Tensor, " features"]
    squares: Float64[Tensor, "2 out"]
    bias: Float64[Tensor, " out"]

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        products = a.matmul(x - a.of(self.shift), self.numerators.T)
        return products / self.divisors(a) + a.of(self.bias)

    def divisors(self, a: Arithmetic) -> Any:
        """√s."""
        return a.sqrt(a.of(self.squares[0]) + a.of(self.squares[1]))

    def balls(self) -> tuple[Ball, Ball]:
        """The weight and the bias of the same map, written as Θx + b."""
        weight = Ball.of(self.numerators) / self.divisors(BALLS).apply(lambda part: part.unsqueeze(-1))
        bias: Ball = self.evaluate(Ball.of(torch.zeros_like(self.shift).unsqueeze(0)), BALLS)
        return weight, bias[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear(SimpleLayer):
    """x ↦ Θx + b at every position.

    `unrounded` is the map that Θ and b are rounded from, where they are: enclosures are of that one.
    """

    kind = "linear"
    is_affine = True
    weight: Float64[Tensor, "out features"]
    bias: Float64[Tensor, " out"]
    unrounded: Unrounded | None = None

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        if self.unrounded is None or a is FLOAT64:
            return a.matmul(x, self.weight.T) + a.of(self.bias)
        return self.unrounded.evaluate(x, a)

    def interval(self, inputs: Box) -> Box:
        return affine_interval(self.weight, self.bias, inputs)

    def propagated(self, errors: Sequence[ErrorBound], ranges: ValueRanges) -> ErrorBound:
        parts = self.weight.split([each.each.shape[-1] for each in errors], dim=-1)
        norms = torch.tensor([spectral_norm(part) for part in parts], dtype=torch.float64, device="cpu")
        lengths = torch.stack([each.length for each in errors], dim=-1) @ norms * LIFT
        each = torch.cat([error.each for error in errors], dim=-1)
        return ErrorBound.of(each @ self.weight.abs().T * LIFT, lengths)

    def rounding(self, inputs: Box) -> float:
        """How far Θx + b is from the map that it is rounded from, at most."""
        if self.unrounded is None:
            return 0.0
        weight, bias = self.unrounded.balls()
        return ((weight.distance_from(self.weight) @ inputs.most + bias.distance_from(self.bias)).max() * LIFT).item()

    def sums(self, inputs: Box) -> float:
        """The largest Σ|θ_k x_k| + |b| of any row."""
        return ((self.weight.abs() @ inputs.most + self.bias.abs()).max() * LIFT).item()


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant(SimpleLayer):
    """Numbers that stand in the prompt: one row for each position, whatever the input (positions of a learner)."""

    kind = "constant"
    values: Float64[Tensor, "positions out"]

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        return a.rows(self.values, x)

    def interval(self, inputs: Box) -> Box:
        return Box(self.values.amin(dim=0), self.values.amax(dim=0))

    def propagated(self, errors: Sequence[ErrorBound], ranges: ValueRanges) -> ErrorBound:
        return ErrorBound.of(self.values.new_zeros(1, self.values.shape[-1]))


def affine_interval(weight: Tensor, bias: Tensor, inputs: Box) -> Box:
    """Where Θx + b is for x in the box."""
    middle, half = (inputs.hi + inputs.lo) / 2, (inputs.hi - inputs.lo) / 2
    size = weight.abs()
    center, reach = weight @ middle + bias, size @ half
    reach = reach + 1e-12 * (reach + size @ middle.abs() + bias.abs())
    return Box(center - reach, center + reach)


def spectral_norm(weight: Float64[Tensor, "out features"]) -> float:
    """Above ‖W‖₂, enclosed."""
    if not weight.numel():
        return 0.0
    tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return math.sqrt(enclosure(tall)[1].item() * len(tall)) * LIFT


def rounded_sum(terms: int, magnitude: float) -> float:
    """What forming a sum of products first, before the interpreter reads it, rounds."""
    return rounding.dot(terms + 1, magnitude, torch.float64) if math.isfinite(magnitude) else math.inf


@dataclass(frozen=True, eq=False)
class LinearPhase(SimplePhase):
    """Claim: every entry within own_error of θ·x + b. Cost: one token of d + 1 features a position and 64 rows."""

    layer: Linear

    @property
    def scale(self) -> float:
        """What rows are divided by, and answers multiplied by when they are written back."""
        return power_for(self.ranges.output.size)

    @property
    def capacity(self) -> Capacity:
        out, features = self.layer.weight.shape
        return Capacity(features + 1, 1, min(out, ROWS), self.ranges.output.size / self.scale)

    def rows(self) -> Tensor:
        """[Θ b], divided."""
        return torch.cat([self.layer.weight, self.layer.bias.unsqueeze(-1)], dim=-1) / self.scale

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        tokens = pad(x, (0, 1), value=1.0).reshape(-1, 1, x.shape[-1] + 1)
        nothing = tokens.new_zeros(1, tokens.shape[-1])
        for rows in self.rows().split(ROWS):
            yield Prompt(tokens, nothing, nothing, rows, 1)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (torch.cat(list(answers), dim=-1) * self.scale).reshape(*shape[:-1], -1)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        rows = self.rows()
        return read(interpreter, x @ rows[:, :-1].T + rows[:, -1]) * self.scale

    def own_error(self, line: IdentityGrid) -> float:
        terms = self.layer.weight.shape[1] + 2
        absolute, size = (part / self.scale for part in (self.layer.sums(self.ranges.inputs), self.ranges.output.size))
        own = self.scale * (line.error(size, terms, absolute) + rounded_sum(terms, absolute))
        return own + self.layer.rounding(self.ranges.inputs)

    def description(self) -> str:
        out, features = self.layer.weight.shape
        heads = f", {-(-out // ROWS)} heads" if out > ROWS else ""
        return f"W_V = [Θ b] ÷ {self.scale:g}, {out} × {features + 1}; 1 token (x, 1){heads}"


@dataclass(frozen=True, eq=False)
class ConstantPhase(SimplePhase):
    """No prompt of its own: numbers that stand in the prompt of the phase that reads them."""

    layer: Constant

    @property
    def capacity(self) -> Capacity:
        return Capacity(1, 1, 1, 0.0)

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        return iter(())

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return self.layer.values[: shape[-2]].expand(shape[0], -1, -1)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        return self.written((), x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        return 0.0

    def limit(self, void: float) -> float:
        return math.inf  # nothing is off

    def description(self) -> str:
        return f"{self.layer.values.shape[0]} rows of {self.layer.values.shape[1]} numbers, in the prompt"
