"""Linear maps by prompt (Hu et al. 2025, Remark 4.5), and products, reciprocal roots and norms, made of them.

A linear map: every position is a prompt of one token (x, 1), whose head has W_V = [Θ b] divided by a power of two. The
only token of a prompt attends to itself alone, so that the answer is its value, θ·x + b as layer 1 reads it off the
number line.

c·r = ((c + r)² − (c − r)²)/4, so that a product is a linear map, a square and another linear map, and
x ↦ x/√(mean x² + ε) is a square, a mean, a reciprocal root and a product. Each is a layer of its own, enclosed as one
map, whose Lipschitz constant carries earlier errors: Ĝ(x̂) − G(x) = (Ĝ(x̂) − G(x̂)) + (G(x̂) − G(x)), the first being the
error of its parts on exact inputs.

A softmax follows 1/√v with equal steps, which over a ratio of 100 are too wide at one end or too many. For any s > 0,
1/√v = s·(s²v)^{−1/2}, and with s = p + q/(1 + e^{av}), two keys of a softmax, s²v lies within a factor of 3 where v
itself ranges over 100. The formulas for a and q/p are fitted to the best, for ratios from 4 to 1000.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from emulon.certify import rounding
from emulon.certify.balls import Ball
from emulon.certify.domain import enclosure
from emulon.core.arrays import eye, ones, zeros
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.networks.arithmetic import BALLS, FLOAT64, Arithmetic
from emulon.networks.elementwise import Function
from emulon.networks.layers import (
    LIFT,
    Box,
    Composite,
    ErrorBound,
    Layer,
    Prompt,
    SimpleLayer,
    SimplePhase,
    ValueRanges,
    read,
)
from emulon.networks.softmaxes import ROOT, SQUARE, power_for

f64 = torch.float64
# Most rows of Θ in one head.
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
    """A box of Θx + b for x in the box."""
    middle, half = (inputs.hi + inputs.lo) / 2, (inputs.hi - inputs.lo) / 2
    size = weight.abs()
    center, reach = weight @ middle + bias, size @ half
    reach = reach + 1e-12 * (reach + size @ middle.abs() + bias.abs())
    return Box(center - reach, center + reach)


def spectral_norm(weight: Float64[Tensor, "out features"]) -> float:
    """Proved upper bound on ‖W‖₂."""
    if not weight.numel():
        return 0.0
    tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return math.sqrt(enclosure(tall)[1].item() * len(tall)) * LIFT


def rounded_sum(terms: int, magnitude: float) -> float:
    """Rounding of a sum of products that is formed before the interpreter reads it."""
    return rounding.dot(terms + 1, magnitude, torch.float64) if math.isfinite(magnitude) else math.inf


@dataclass(frozen=True, eq=False)
class LinearPhase(SimplePhase):
    """Claim: every entry within own_error of θ·x + b. Cost: one token of d + 1 features a position and 64 rows."""

    layer: Linear

    @property
    def scale(self) -> float:
        """The divisor of rows, by which answers are multiplied."""
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
    """No prompt of its own: its numbers stand in the prompt of the phase that reads them."""

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
        return math.inf  # exact

    def description(self) -> str:
        return f"{self.layer.values.shape[0]} rows of {self.layer.values.shape[1]} numbers, in the prompt"


# Ratios of a range above which a root is scaled first, and above which it is refused.
SHORT, LONGEST = 4.0, 1e4
# Pieces of a range of v, each longer than the one before.
PIECES = 4096


def balance(x: float, y: float) -> float:
    """The power of two a for which numbers of size x, times a, are about as large as those of size y, divided by it."""
    return 2.0 ** round((math.log2(y) - math.log2(x)) / 2) if x > 0 and y > 0 else 1.0


def _short(number: float) -> float:
    """Rounded to 24 bits, so that expressions are the same on every processor."""
    mantissa, power = math.frexp(number)
    return math.ldexp(round(mantissa * 2**24), power - 24)


@dataclass(frozen=True, kw_only=True, eq=False)
class Product(Composite):
    """weight·(x∘y) + bias of two registers, feature by feature; `broadcast`: one feature of y multiplies all of x.

    `scale` is a power of two that brings both to about one size: what squares round is a part of the larger.
    """

    kind = "product"
    weight: Float64[Tensor, " features"]
    bias: Float64[Tensor, " features"]
    broadcast: bool
    scale: float = 1.0

    def split(self, x: Any) -> list[Any]:
        size = len(self.weight)
        return [*x.split(size)] if isinstance(x, Box) else [x[..., :size], x[..., size:]]

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        first, second = self.split(x)
        return first * second * a.of(self.weight) + a.of(self.bias)

    @cached_property
    def parts(self) -> tuple[Layer, ...]:
        one, weight = eye(len(self.weight)), torch.diag(self.weight)
        two = (ones(len(one), 1) if self.broadcast else one) / self.scale
        both = torch.cat([torch.cat([self.scale * one, two], dim=-1), torch.cat([self.scale * one, -two], dim=-1)])
        return (
            Linear(name=f"{self.name} sum and difference", reads=(0, 1), weight=both, bias=zeros(len(both))),
            Function(name=f"{self.name} squares", reads=(2,), expression=SQUARE),
            Linear(name=self.name, reads=(3,), weight=torch.cat([weight, -weight], dim=-1) / 4, bias=self.bias),
        )

    def planned(self, inputs: Sequence[Box]) -> Product:
        """With a scale, unless both factors are of about one size."""
        scale = balance(inputs[0].size, inputs[1].size)
        return replace(self, scale=1.0 if 1 / 4 <= scale <= 4 else scale)

    def interval(self, inputs: Box) -> Box:
        x, y = self.split(inputs)
        corners = torch.stack([a * b * self.weight + self.bias for a in (x.lo, x.hi) for b in (y.lo, y.hi)])
        more = 1e-12 * (x.most * y.most * self.weight.abs() + self.bias.abs())
        return Box(corners.amin(dim=0) - more, corners.amax(dim=0) + more)

    def map_error(self, errors: Sequence[ErrorBound], ranges: ValueRanges, own: Sequence[ErrorBound]) -> ErrorBound:
        """Claim: |x̂ŷ − xy| ≤ |x̂|·e_y + |y|·e_x, for numbers in range."""
        x, y = (box.most for box in self.split(ranges.inputs))
        return ErrorBound.of((x * errors[1].each + y * errors[0].each) * self.weight.abs() * LIFT)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReciprocalRoot(Composite):
    """1/√v of every feature; over a long range by s·(s²v)^{−1/2}.

    `coarse` are p, q and a of s = p + q/(1 + e^{av}), all above zero; `scales` are those of the products s²·v and s·r.
    """

    kind = "reciprocal root"
    features: int = 1
    coarse: tuple[float, float, float] | None = None
    scales: tuple[float, float] = (1.0, 1.0)

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        return a.function(ROOT, x)

    @cached_property
    def parts(self) -> tuple[Layer, ...]:
        if self.coarse is None:
            return (Function(name=self.name, reads=(0,), expression=ROOT),)
        p, q, a = self.coarse
        one, zero = ones(self.features), zeros(self.features)
        first, second = (
            Product(name=f"{self.name} {name}", reads=reads, weight=one, bias=zero, broadcast=False, scale=scale)
            for name, reads, scale in zip(("scaled", "in all"), ((2, 0), (1, 4)), self.scales, strict=True)
        )
        return (
            Function(name=f"{self.name} coarse scale", reads=(0,), expression=f"{p!r} + {q!r}/(1 + exp({a!r}*t))"),
            Function(name=f"{self.name} its square", reads=(1,), expression=SQUARE),
            first,
            Function(name=f"{self.name} of the scaled", reads=(3,), expression=ROOT),
            second,
        )

    def planned(self, inputs: Sequence[Box]) -> ReciprocalRoot:
        [v] = inputs
        lo, hi = v.ends
        if not 0 < lo <= hi <= LONGEST * lo:
            raise OutOfDomain(
                f"{self.name}: 1/√v is asked for v between {lo:.4g} and {hi:.4g}, which is too wide a range; give "
                "data=… for ranges, or data that do not come so near to constant"
            )
        ratio = hi / lo
        if ratio <= SHORT:
            return replace(self, coarse=None, scales=(1.0, 1.0))
        a, q = 1.55 / math.sqrt(ratio), 3.05 * ratio**0.28
        t = torch.logspace(0, math.log2(ratio), 1000, base=2.0, dtype=f64, device="cpu")
        size = (1 + q / (1 + torch.exp(a * t))).square() * t
        least, most = size.min().item(), size.max().item()
        p = 1 / math.sqrt(lo * math.sqrt(least * most))
        largest = p * (1 + q / (1 + math.exp(a)))
        scales = balance(largest**2, hi), balance(largest, most**0.25 / least**0.25)
        return replace(self, coarse=(_short(p), _short(p * q), _short(a / lo)), scales=scales)

    def with_parts(self, parts: Sequence[Layer]) -> ReciprocalRoot:
        if self.coarse is None:
            return self
        _, _, first, _, second = parts
        assert isinstance(first, Product) and isinstance(second, Product)
        return replace(self, scales=(first.scale, second.scale))

    def interval(self, inputs: Box) -> Box:
        return Box((1 / inputs.hi.sqrt()) * (1 - 1e-12), (1 / inputs.lo.sqrt()) * (1 + 1e-12))

    def part_ranges(self, inputs: Sequence[Box]) -> tuple[Box, ...] | None:
        """By intervals, s²v and the last by their formulas.

        s falls with v: on a piece from a to b, s²v lies between s(b)²·a and s(a)²·b.
        """
        if self.coarse is None:
            return None
        [v] = inputs
        lo, hi = v.ends
        coarse, square, _, fine, _ = self.parts
        ends = torch.logspace(math.log2(lo), math.log2(hi), PIECES + 1, base=2.0, dtype=f64, device="cpu")
        ends[0], ends[-1] = lo, hi
        squares = coarse.exact(ends.reshape(1, -1, 1)).flatten().square()
        least, most = (squares[1:] * ends[:-1]).min(), (squares[:-1] * ends[1:]).max()
        s = coarse.interval(v)
        product = Box((least * (1 - 1e-12)).expand_as(v.lo), (most * (1 + 1e-12)).expand_as(v.hi))
        return s, square.interval(s), product, fine.interval(product), self.interval(v)

    def map_error(self, errors: Sequence[ErrorBound], ranges: ValueRanges, own: Sequence[ErrorBound]) -> ErrorBound:
        lowest = ranges.inputs.ends[0]
        slope = 1 / (2 * lowest**1.5) * LIFT if lowest > 0 else math.inf
        return ErrorBound.of(errors[0].each * slope)


@dataclass(frozen=True, kw_only=True, eq=False)
class Norm(Composite):
    """weight·x/√(mean x² + ε) + bias at every position; `coarse` and `scales` are those of its root and its product."""

    kind = "norm"
    weight: Float64[Tensor, " features"]
    bias: Float64[Tensor, " features"]
    eps: float
    coarse: tuple[float, float, float] | None = None
    scales: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        eps = a.of(self.weight.new_tensor([self.eps]))
        return x / a.sqrt(a.sum(x * x) / len(self.weight) + eps) * a.of(self.weight) + a.of(self.bias)

    @cached_property
    def parts(self) -> tuple[Layer, ...]:
        size = len(self.weight)
        sizes, eps = self.weight.new_tensor([[size**2], [0]]), self.weight.new_tensor([self.eps])
        mean = Unrounded(ones(1, size), zeros(size), sizes, eps)
        return (
            Function(name=f"{self.name} squares", reads=(0,), expression=SQUARE),
            rounded(f"{self.name} mean square", (1,), mean),
            ReciprocalRoot(name=f"{self.name} root", reads=(2,), coarse=self.coarse, scales=self.scales[:2]),
            Product(
                name=f"{self.name} product",
                reads=(0, 3),
                weight=self.weight,
                bias=self.bias,
                broadcast=True,
                scale=self.scales[2],
            ),
        )

    def with_parts(self, parts: Sequence[Layer]) -> Norm:
        _, _, root, product = parts
        assert isinstance(root, ReciprocalRoot) and isinstance(product, Product)
        return replace(self, coarse=root.coarse, scales=(*root.scales, product.scale))

    def interval(self, inputs: Box) -> Box:
        """By its parts: what the product makes of x and 1/√v."""
        squares, mean, root, product = self.parts
        found = root.interval(mean.interval(squares.interval(inputs)))
        return product.interval(Box.beside([inputs, found]))

    def map_error(self, errors: Sequence[ErrorBound], ranges: ValueRanges, own: Sequence[ErrorBound]) -> ErrorBound:
        """Claim: x/σ moves by at most (e + ‖e‖)/σ̂ in every number, and by ‖e‖/(σ̂ − ‖e‖/√n) in length.

        Proof. x̂/σ̂ − x/σ = (x̂ − x)/σ̂ + (x/σ)·(σ − σ̂)/σ̂; σ is the length of (x, √(nε))/√n, so that it moves by at most
        ‖e‖/√n, and |x_i| ≤ √n·σ. The map's derivative, (I − xxᵀ/(nσ²))/σ, is shorter than 1/σ, and between x and x̂ σ is
        at least σ̂ − ‖e‖/√n. σ̂² is v as the exact layers give it for x̂: within what these err of the number that a run
        has found in range. QED
        """
        lowest = ranges.parts[1].output.lo.item() - own[2].each.squeeze(-1)
        sigma, size = lowest.clamp(min=0.0).sqrt() / LIFT, self.weight.abs()
        [before] = errors
        each = (before.each + before.length.unsqueeze(-1)) / sigma.unsqueeze(-1) * size * LIFT
        shortest = (sigma - before.length * LIFT / math.sqrt(len(size))).clamp(min=0.0)
        return ErrorBound.of(each, size.max() * before.length / shortest * LIFT)

    def largest_error(self, ranges: ValueRanges) -> ErrorBound:
        """For any input, as ‖x/σ‖ ≤ √n bounds exact answers, and their range the computed ones."""
        exact = self.weight.abs() * math.sqrt(len(self.weight)) * LIFT + self.bias.abs()
        return ErrorBound.of((exact + ranges.output.most).unsqueeze(0))


def rounded(name: str, reads: tuple[int, ...], exact: Unrounded) -> Linear:
    """A linear map rounded to float64, as it stands in a prompt."""
    weight, bias = (ball.high.contiguous() for ball in exact.balls())
    return Linear(name=name, reads=reads, weight=weight, bias=bias, unrounded=exact)
