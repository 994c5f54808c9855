"""A network as the exact map that it is: a list of layers, each reading registers and writing one.

Register 0 is the input, and layer i writes register i + 1; a layer that reads several sees their features side by side,
which is how a residual sum becomes part of a linear map. States are (rows, positions, features).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from emulon.certify import rounding
from emulon.certify.balls import Ball
from emulon.certify.functions import enclosed
from emulon.certify.perturbation import shifted_average
from emulon.certify.spectrum import enclosure
from emulon.core.errors import BadExpression, OutOfDomain
from emulon.expressions import parse
from emulon.interpreter.curvature import Slopes

f64 = torch.float64
# Bounds are computed in float64, with sums of a few thousand terms: a part of them that outweighs their rounding.
LIFT = 1 + 1e-9
# Points at which a function is looked at to enclose its range; between them its slope does.
LOOKS = 513
# Scales that divide without rounding.
POWERS = frozenset(2.0**power for power in range(-64, 65))


@dataclass(frozen=True)
class Box:
    """lo ≤ number ≤ hi, feature by feature."""

    lo: Float64[Tensor, " features"]
    hi: Float64[Tensor, " features"]

    @property
    def size(self) -> float:
        """The largest magnitude."""
        return max(self.lo.abs().max().item(), self.hi.abs().max().item()) if len(self.lo) else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """One interval for all features."""
        return self.lo.min().item(), self.hi.max().item()

    def is_inside(self, other: Box) -> bool:
        return bool((self.lo >= other.lo).all() and (self.hi <= other.hi).all())

    @staticmethod
    def beside(boxes: Sequence[Box]) -> Box:
        return Box(torch.cat([box.lo for box in boxes]), torch.cat([box.hi for box in boxes]))

    def widened(self, by: float) -> Box:
        """By this part of the width, to both sides."""
        room = by * (self.hi - self.lo) + by * 1e-3 * torch.maximum(self.lo.abs(), self.hi.abs())
        return Box(self.lo - room, self.hi + room)

    def stretched(self, by: float) -> Box:
        """By this part of the numbers themselves, which are positive and stay so."""
        return Box(self.lo / (1 + by), self.hi * (1 + by))


@dataclass(frozen=True)
class Inner:
    """What is known of a head's own numbers: its largest |q|, |k|, |v|, and the largest |q·k|."""

    q: float
    k: float
    v: float
    score: float


@dataclass(frozen=True)
class Known:
    """Where a layer's numbers may be: what it reads, what it writes, and what an attention has inside."""

    inputs: Box
    output: Box
    inner: Inner | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer(ABC):
    """`name` says where in the network it came from; `reads` are its registers."""

    name: str
    reads: tuple[int, ...]
    kind: ClassVar[str]

    @abstractmethod
    def exact(self, x: Float64[Tensor, "rows positions features"]) -> Float64[Tensor, "rows positions out"]:
        """In plain float64, as PyTorch would."""

    @abstractmethod
    def enclosed(self, x: Ball) -> Ball:
        """In balls of twice the precision: the true output, for every true input in the ball."""

    @abstractmethod
    def interval(self, inputs: Box) -> Box:
        """Where the outputs are when the inputs are in this box."""

    @abstractmethod
    def carried(self, errors: Float64[Tensor, "*batch features"], known: Known) -> Float64[Tensor, "*batch out"]:
        """How far outputs can be apart when inputs are, both where `known` says."""

    @abstractmethod
    def travelled(
        self,
        errors: Float64[Tensor, "erring features"],
        lengths: Float64[Tensor, "erring reads"],
        sizes: Sequence[int],
        known: Known,
    ) -> tuple[Float64[Tensor, "erring out"], Float64[Tensor, " erring"]]:
        """`carried`, and the length of a position's error vector; `lengths` are those of the registers read."""

    def inside(self, x: Float64[Tensor, "rows positions features"]) -> Inner | None:
        """What an attention has inside on these inputs."""
        return None

    def inside_of(self, inputs: Box) -> Inner | None:
        """What an attention may have inside on inputs from this box."""
        return None


@dataclass(frozen=True, eq=False)
class Unrounded:
    """A linear map that float64 does not hold: x ↦ N(x − shift)/√s + bias, row by row.

    `squares` are two numbers for every row, whose sum is s: (n², 0) divides by n, (variance, ε) is a trained norm.
    """

    numerators: Float64[Tensor, "out features"]
    shift: Float64[Tensor, " features"]
    squares: Float64[Tensor, "2 out"]
    bias: Float64[Tensor, " out"]

    @property
    def divisors(self) -> Ball:
        """√s."""
        root = self.squares[0].sqrt()
        if bool(((self.squares[1] == 0) & (root < 2.0**26) & (root == root.round())).all()):
            return Ball.of(root)
        return (Ball.of(self.squares[0]) + self.squares[1]).sqrt()

    def enclosed(self, x: Ball) -> Ball:
        return (x - self.shift).matmul(self.numerators.T.contiguous()) / self.divisors + self.bias

    def balls(self) -> tuple[Ball, Ball]:
        """The weight and the bias of the same map, written as Θx + b."""
        weight = Ball.of(self.numerators) / self.divisors.apply(lambda part: part.unsqueeze(-1))
        return weight, self.enclosed(Ball.of(torch.zeros_like(self.shift).unsqueeze(0)))[0]


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear(Layer):
    """x ↦ Θx + b at every position.

    `unrounded` is the map that Θ and b are rounded from, where they are: enclosures are of that one.
    """

    kind = "linear"
    weight: Float64[Tensor, "out features"]
    bias: Float64[Tensor, " out"]
    unrounded: Unrounded | None = None

    def exact(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias

    def enclosed(self, x: Ball) -> Ball:
        if self.unrounded is not None:
            return self.unrounded.enclosed(x)
        return x.matmul(self.weight.T.contiguous()) + self.bias

    def rounding(self, inputs: Box) -> float:
        """How far Θx + b is from the map that it is rounded from, at most."""
        if self.unrounded is None:
            return 0.0
        most = torch.maximum(inputs.lo.abs(), inputs.hi.abs())
        weight, bias = self.unrounded.balls()
        return ((weight.distance_from(self.weight) @ most + bias.distance_from(self.bias)).max() * LIFT).item()

    def interval(self, inputs: Box) -> Box:
        middle, half = (inputs.hi + inputs.lo) / 2, (inputs.hi - inputs.lo) / 2
        size = self.weight.abs()
        center, reach = self.weight @ middle + self.bias, size @ half
        reach = reach + 1e-12 * (reach + size @ middle.abs() + self.bias.abs())
        return Box(center - reach, center + reach)

    def carried(self, errors: Tensor, known: Known) -> Tensor:
        return errors @ self.weight.abs().T * LIFT

    def travelled(self, errors: Tensor, lengths: Tensor, sizes: Sequence[int], known: Known) -> tuple[Tensor, Tensor]:
        norms = [spectral_norm(part) for part in self.weight.split(list(sizes), dim=-1)]
        return self.carried(errors, known), lengths @ lengths.new_tensor(norms) * LIFT

    def sums(self, inputs: Box) -> float:
        """The largest Σ|θ_k x_k| + |b| of any row."""
        most = torch.maximum(inputs.lo.abs(), inputs.hi.abs())
        return ((self.weight.abs() @ most + self.bias.abs()).max() * LIFT).item()


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant(Layer):
    """Numbers that stand in the prompt: one row for each position, whatever the input (positions of a learner)."""

    kind = "constant"
    values: Float64[Tensor, "positions out"]

    def exact(self, x: Tensor) -> Tensor:
        return self.values[: x.shape[-2]].expand(x.shape[0], -1, -1)

    def enclosed(self, x: Ball) -> Ball:
        return Ball.of(self.exact(x.high).contiguous())

    def interval(self, inputs: Box) -> Box:
        return Box(self.values.amin(dim=0), self.values.amax(dim=0))

    def carried(self, errors: Tensor, known: Known) -> Tensor:
        return errors.new_zeros(*errors.shape[:-1], self.values.shape[-1])

    def travelled(self, errors: Tensor, lengths: Tensor, sizes: Sequence[int], known: Known) -> tuple[Tensor, Tensor]:
        return self.carried(errors, known), errors.new_zeros(len(errors))


@dataclass(frozen=True)
class Gated:
    """That a function is t·(low + (1 − low)·σ(t)) itself, or, `kinked`, max(t, low·t)."""

    low: float
    kinked: bool

    @property
    def steepest(self) -> float:
        """Above the slope anywhere: (t·σ(t))′ lies between −0.1 and 1.1."""
        return max(1.0, abs(self.low)) if self.kinked else abs(self.low) + 1.1 * abs(1 - self.low)


@dataclass(frozen=True, kw_only=True, eq=False)
class Elementwise(Layer):
    """A scalar function, written in t, of every feature; `gated` where it is a gate on its own argument.

    The network's is another one above `most`, where no number may be.
    """

    kind = "elementwise"
    f: str
    gated: Gated | None = None
    most: float = math.inf

    def exact(self, x: Tensor) -> Tensor:
        return parse(self.f)(x)

    def enclosed(self, x: Ball) -> Ball:
        value = enclosed(parse(self.f), x)
        if self.most < math.inf:
            above = x.high + (x.low.abs() + x.radius) >= self.most
            value = value.widened(torch.where(above, math.inf, 0.0))
        return value

    def interval(self, inputs: Box) -> Box:
        if not (torch.isfinite(inputs.lo).all() and torch.isfinite(inputs.hi).all()):
            raise BadExpression(f"{self.name}: {self.f} is asked for numbers without a bound; give data for ranges")
        steepest = self._steepest(inputs)
        if not math.isfinite(steepest):
            lo, hi = inputs.ends
            raise OutOfDomain(
                f"{self.name}: no bound on the slope of {self.f} was found between {lo:.4g} and {hi:.4g}; give data=… "
                "for ranges, or a smaller domain"
            )
        steps = torch.linspace(0, 1, LOOKS, dtype=f64, device="cpu")[:, None]
        values = parse(self.f)(inputs.lo + steps * (inputs.hi - inputs.lo))
        room = steepest * (inputs.hi - inputs.lo) / (2 * (LOOKS - 1)) * LIFT
        room = room + 1e-12 * (1e-3 + values.abs().amax(dim=0))
        return Box(values.amin(dim=0) - room, values.amax(dim=0) + room)

    def carried(self, errors: Tensor, known: Known) -> Tensor:
        return errors * self._steepest(known.inputs) * LIFT

    def travelled(self, errors: Tensor, lengths: Tensor, sizes: Sequence[int], known: Known) -> tuple[Tensor, Tensor]:
        return self.carried(errors, known), lengths.norm(dim=-1) * self._steepest(known.inputs) * LIFT

    def _steepest(self, inputs: Box) -> float:
        return slope_bound(self.f, *inputs.ends) if self.gated is None else self.gated.steepest


@dataclass(frozen=True, kw_only=True, eq=False)
class Root(Elementwise):
    """1/√t; `within` is where t is known to be, whatever data show."""

    within: tuple[float, float] | None = None


@lru_cache(maxsize=512)
def slope_bound(f: str, lo: float, hi: float) -> float:
    """Above |f′| on [lo, hi], proved."""
    low, high = Slopes(parse(f)).between(lo, hi)
    return max(abs(low), abs(high))


def spectral_norm(weight: Float64[Tensor, "out features"]) -> float:
    """Above ‖W‖₂, enclosed."""
    if not weight.numel():
        return 0.0
    tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return math.sqrt(enclosure(tall)[1].item() * len(tall)) * LIFT


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(Layer):
    """Heads of softmax attention between positions, side by side: scores are q·k/√scale.

    Matrices are (heads, width, features), biases (heads, width). `causal` lets position i see 0..i.
    """

    kind = "attention"
    w_q: Float64[Tensor, "heads width features"]
    w_k: Float64[Tensor, "heads width features"]
    w_v: Float64[Tensor, "heads out features"]
    b_q: Float64[Tensor, "heads width"]
    b_k: Float64[Tensor, "heads width"]
    b_v: Float64[Tensor, "heads out"]
    causal: bool
    scale: float = 1.0

    @property
    def heads(self) -> int:
        return len(self.w_q)

    def written(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """(matrix, bias) of q, k and v as the network has them."""
        return (self.w_q, self.b_q), (self.w_k, self.b_k), (self.w_v, self.b_v)

    def parts(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """The same with the scale in q, as they stand in the prompt."""
        factor = 1 / math.sqrt(self.scale)
        return (self.w_q * factor, self.b_q * factor), (self.w_k, self.b_k), (self.w_v, self.b_v)

    @property
    def rounding(self) -> float:
        """Of every number of q's matrix and bias by the scale, as a part of itself: a root, a quotient, a product."""
        return 0.0 if math.sqrt(self.scale) in POWERS else 4 * rounding.unit(f64)

    def projected(self, x: Float[Tensor, "rows positions features"]) -> list[Tensor]:
        """q, k, v, each (rows, heads, positions, ·)."""
        return [x.unsqueeze(-3) @ w.mT + b.unsqueeze(-2) for w, b in self.parts()]

    def exact(self, x: Tensor) -> Tensor:
        q, k, v = self.projected(x)
        scores = q @ k.mT
        if self.causal:
            scores = scores.masked_fill(_ahead(scores), -torch.inf)
        return side_by_side(torch.softmax(scores, dim=-1) @ v)

    def enclosed(self, x: Ball) -> Ball:
        out = []
        for head in range(self.heads):
            q, k, v = (x.matmul(w[head].T.contiguous()) + b[head] for w, b in self.written())
            scores = (_spread(q, -2) * _spread(k, -3)).sum()
            if self.scale != 1:
                scores = scores / Ball.of(scores.high.new_tensor(self.scale)).sqrt()
            if self.causal:
                scores = _hidden(scores)
            weights = (scores - scores.high.amax(dim=-1, keepdim=True)).exp()
            if self.causal:
                weights = _hidden(weights)
            # (rows, i, c, j): positions j are added up.
            across = v.apply(lambda part: part.mT.unsqueeze(-3))
            total = weights.sum().apply(lambda part: part.unsqueeze(-1))
            out.append((_spread(weights, -2) * across).sum() / total)
        parts = (torch.cat([getattr(ball, name) for ball in out], dim=-1) for name in ("high", "low", "radius"))
        return Ball(*parts)

    def interval(self, inputs: Box) -> Box:
        """Averages of values are where the values are."""
        return Linear(name=self.name, reads=(), weight=self.w_v.flatten(0, 1), bias=self.b_v.flatten()).interval(inputs)

    def carried(self, errors: Tensor, known: Known) -> Tensor:
        e_v, moved = self._moved(errors, known)
        return self._averaged(e_v, moved, known).flatten(-2)

    def travelled(self, errors: Tensor, lengths: Tensor, sizes: Sequence[int], known: Known) -> tuple[Tensor, Tensor]:
        """As `carried`; |q·k − q̂·k̂| ≤ ‖q‖·‖W_K‖e + ‖k‖·‖W_Q‖e + ‖W_Q‖‖W_K‖e² where the inputs are e apart."""
        inner = known.inner
        assert inner is not None
        length, width = lengths.norm(dim=-1, keepdim=True) * LIFT, math.sqrt(self.w_q.shape[1])
        q, k, v = (lengths.new_tensor([spectral_norm(w) for w in part]) for part, _ in self.parts())
        by_length = (width * (inner.q * k + inner.k * q) * length + q * k * length.square()) * LIFT
        e_v, moved = self._moved(errors, known)
        moved = torch.minimum(moved, by_length.nan_to_num(nan=math.inf))
        shift = self._averaged(torch.zeros_like(e_v[..., :1]), moved, known).squeeze(-1)
        heads = v * length + math.sqrt(self.w_v.shape[1]) * shift
        return self._averaged(e_v, moved, known).flatten(-2), heads.norm(dim=-1) * LIFT

    def _moved(self, errors: Tensor, known: Known) -> tuple[Tensor, Tensor]:
        """Of every value e_v, and of every score of a head Σ_c |q_c|·e_k + |k_c|·e_q + e_q·e_k, at most."""
        inner = known.inner
        assert inner is not None
        e_q, e_k, e_v = (torch.einsum("...f,hcf->...hc", errors, w.abs()) * LIFT for w, _ in self.parts())
        moved = (inner.q * e_k + inner.k * e_q + e_q * e_k).sum(dim=-1) * LIFT
        return e_v, moved.nan_to_num(nan=math.inf)

    def _averaged(self, e_v: Tensor, moved: Tensor, known: Known) -> Tensor:
        """Claim: |Δ output| ≤ e_v + shifted_average(δ) where scores move by δ."""
        assert known.inner is not None
        flat = [shifted_average(min(delta, 301.0), 2 * known.inner.v) for delta in moved.flatten().tolist()]
        return (e_v + moved.new_tensor(flat).reshape(moved.shape).unsqueeze(-1)) * LIFT

    def inside(self, x: Tensor) -> Inner:
        q, k, v = self.projected(x)
        scores = q.norm(dim=-1).amax(dim=-1) * k.norm(dim=-1).amax(dim=-1)
        largest = [part.abs().max().item() for part in (q, k, v)]
        return Inner(largest[0], largest[1], largest[2], scores.max().item())

    def inside_of(self, inputs: Box) -> Inner:
        boxes = [
            Linear(name="", reads=(), weight=w.flatten(0, 1), bias=b.flatten()).interval(inputs)
            for w, b in self.parts()
        ]
        most = [torch.maximum(box.lo.abs(), box.hi.abs()).reshape(self.heads, -1) for box in boxes]
        score = (most[0] * most[1]).sum(dim=-1).max().item() * LIFT
        return Inner(boxes[0].size, boxes[1].size, boxes[2].size, score)


def _ahead(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").triu(1)


def _hidden(scores: Ball) -> Ball:
    """Zero where position j is ahead of i."""
    return scores.apply(lambda part: part.masked_fill(_ahead(part), 0.0))


def _spread(ball: Ball, dim: int) -> Ball:
    return ball.apply(lambda part: part.unsqueeze(dim))


def side_by_side(heads: Float[Tensor, "*batch heads positions width"]) -> Float[Tensor, "*batch positions all"]:
    return heads.movedim(-3, -2).flatten(-2)


def rounded_sum(terms: int, magnitude: float) -> float:
    """What forming a sum of products first, before the interpreter reads it, rounds."""
    return rounding.dot(terms + 1, magnitude, f64) if math.isfinite(magnitude) else math.inf
