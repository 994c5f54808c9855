"""Scalar functions of every feature, by prompt: the grid of a softmax as tokens, or a gate of two tokens a number.

A softmax: token r holds the key (slope_r, intercept_r) and value_r; as many numbers as there are grid points ask in one
prompt, each as the query (s, 1): the answer is Σ_r softmax_r(slope_r·s + intercept_r)·value_r.

A gate, t·σ(Gt) (Theorem 3.1 with x = t): token 0 has score 0 and value low·t, token 1 score G·t and value t. With
G = 1 that is SiLU itself. A soft grid cannot follow a kink below about 10⁻⁸ of its range, for the gate between its
pieces spoils the scores inside them; a gate that stands alone can: the larger G, the nearer.
Claim: |t·(low + (1 − low)·σ(Gt)) − max(t, low·t)| ≤ (1 − low)·0.2785/G.
Proof. The difference is (1 − low)·|t|·σ(−G|t|); u·σ(−u) is largest where u = 1 + e^{−u}, and is then u − 1 = 0.27846….
QED
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from emulon.attention import Slots, attend
from emulon.certify import rounding
from emulon.certify.rounding import shifted_average
from emulon.core.errors import BadExpression, OutOfDomain
from emulon.expressions import parse
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.interpreter.plan import Slopes
from emulon.networks.arithmetic import Arithmetic
from emulon.networks.layers import LIFT, Box, ErrorBound, Prompt, SimpleLayer, SimplePhase, ValueRanges, read
from emulon.networks.softmaxes import SMALL, Softmax, power_for

# Points at which a function is evaluated to enclose its range; between them its slope does.
POINTS = 513
KINK = 0.2785
GRID = Slots(key_x=1, key_bias=1, value=1, query_x=1, query_bias=1)
GATE = Slots(key=1, value=1, query=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Elementwise(SimpleLayer):
    """A scalar function of every feature."""

    @property
    @abstractmethod
    def f(self) -> str:
        """The function, written in t."""

    @abstractmethod
    def steepest(self, inputs: Box) -> float:
        """Upper bound on |f′| in the box."""

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        return a.function(self.f, x)

    def interval(self, inputs: Box) -> Box:
        if not (torch.isfinite(inputs.lo).all() and torch.isfinite(inputs.hi).all()):
            raise BadExpression(f"{self.name}: {self.f} is asked for numbers without a bound; give data for ranges")
        steepest = self.steepest(inputs)
        if not math.isfinite(steepest):
            lo, hi = inputs.ends
            raise OutOfDomain(
                f"{self.name}: no bound on the slope of {self.f} was found between {lo:.4g} and {hi:.4g}; give data=… "
                "for ranges, or a smaller domain"
            )
        steps = torch.linspace(0, 1, POINTS, dtype=torch.float64, device="cpu")[:, None]
        values = parse(self.f)(inputs.lo + steps * (inputs.hi - inputs.lo))
        between = steepest * (inputs.hi - inputs.lo) / (2 * (POINTS - 1)) * LIFT
        between = between + 1e-12 * (1e-3 + values.abs().amax(dim=0))
        return Box(values.amin(dim=0) - between, values.amax(dim=0) + between)

    def propagated(self, errors: Sequence[ErrorBound], ranges: ValueRanges) -> ErrorBound:
        [before] = errors
        steepest = self.steepest(ranges.inputs) * LIFT
        return ErrorBound.of(before.each * steepest, before.length * steepest)


@dataclass(frozen=True, kw_only=True, eq=False)
class Function(Elementwise):
    """Any expression in t."""

    kind = "function"
    expression: str

    @property
    def f(self) -> str:
        return self.expression

    def steepest(self, inputs: Box) -> float:
        return slope_bound(self.f, *inputs.ends)


@dataclass(frozen=True, kw_only=True, eq=False)
class Gate(Elementwise):
    """max(t, low·t) where `kinked`, else t·σ(t)."""

    kind = "gate"
    low: float
    kinked: bool

    @property
    def f(self) -> str:
        if not self.kinked:
            return "t/(1 + exp(-t))"
        return "Max(t, 0)" if self.low == 0 else f"Max(t, ({Fraction(self.low)})*t)"

    def steepest(self, inputs: Box) -> float:
        """(t·σ(t))′ lies between −0.1 and 1.1."""
        return max(1.0, abs(self.low)) if self.kinked else 1.1


@lru_cache(maxsize=512)
def slope_bound(f: str, lo: float, hi: float) -> float:
    """Proved upper bound on |f′| on [lo, hi]."""
    low, high = Slopes(parse(f)).between(lo, hi)
    return max(abs(low), abs(high))


@dataclass(frozen=True, eq=False)
class FunctionPhase(SimplePhase):
    """Claim: every entry within own_error of f. Cost: K tokens of 5 features for every K numbers."""

    layer: Function
    softmax: Softmax

    @property
    def capacity(self) -> Capacity:
        return Capacity(GRID.width, len(self.softmax.grid), 2, self.softmax.reach)

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        made, grid = self.softmax, self.softmax.grid
        numbers = x.flatten() / made.key
        count = len(grid)
        asked = torch.nn.functional.pad(numbers, (0, -len(numbers) % count)).reshape(-1, count, 1)
        fixed = GRID.pack(
            key_x=grid.slopes[:, None] * made.key,
            key_bias=grid.intercepts[:, None] * made.bias,
            value=grid.values[:, None] / made.value,
            query_bias=1 / made.bias,
        )
        tokens = fixed.expand(len(asked), -1, -1).clone()
        tokens[..., GRID["query_x"]] = asked
        w_k, w_q = GRID.select("key_x", "key_bias"), GRID.select("query_x", "query_bias")
        yield Prompt(tokens, w_k, w_q, GRID.select("value"), count)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (answers[0].flatten()[: shape.numel()] * self.softmax.value).reshape(shape)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        made, grid = self.softmax, self.softmax.grid
        keys = torch.stack([grid.slopes * made.key, grid.intercepts * made.bias], dim=-1)
        values, one = grid.values / made.value, x.new_tensor([1 / made.bias])
        keys, values, one = (read(interpreter, part) for part in (keys, values, one))
        asked = read(interpreter, x.flatten() / made.key)
        queries = torch.stack([asked, one.expand_as(asked)], dim=-1)
        parts = [attend(part, keys, values.unsqueeze(-1), name="layer 2") for part in queries.split(1 << 16)]
        return (torch.cat(parts) * made.value).reshape(x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        return self.softmax.own_error(line)

    def description(self) -> str:
        grid = self.softmax.grid
        return f"{len(grid)} keys of {self.layer.f} on ({grid.lo:.4g}, {grid.hi:.4g}), as tokens; numbers are queries"


@dataclass(frozen=True, eq=False)
class GatePhase(SimplePhase):
    """Claim: every entry within own_error of the layer. `sharpness` is G, a power of two; 1 without a kink."""

    layer: Gate
    sharpness: float

    @property
    def size(self) -> float:
        return self.ranges.inputs.size

    @property
    def key(self) -> float:
        """G is the product of two powers of two: this one in the key, the other in the query."""
        power = math.log2(self.sharpness * max(self.size, 1e-300)) / 2
        return math.ldexp(1.0, min(max(math.ceil(power), 0), round(math.log2(self.sharpness))))

    @property
    def query(self) -> float:
        return self.sharpness / self.key

    @property
    def farthest(self) -> float:
        """Mode "fast" cuts queries at this size, where the identity grid is shortest.

        Claim: the error stays within `own_error`. Proof. Scores are off by a part ≤ 1/2 of themselves, and by an
        absolute error δ: there the token that loses weighs at most e^{−SMALL·key/2 + δ}, and (1 − low)·|t| times that
        is at most (1 − low)·KINK/G·e^δ where G·size·e^{−SMALL·key/2} ≤ KINK. QED
        """
        decided = self.sharpness * self.size * math.exp(-SMALL * self.key / 2) <= KINK
        return SMALL if self.layer.kinked and decided else math.inf

    @property
    def value(self) -> float:
        return power_for(self.size)

    @property
    def capacity(self) -> Capacity:
        return Capacity(GATE.width, 2, 1, max(self.key, self.query * self.size, self.size / self.value))

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        numbers = x.flatten()
        tokens = numbers.new_zeros(len(numbers), 2, GATE.width)
        tokens[:, 1, GATE["key"]] = self.key
        tokens[..., GATE["value"]] = torch.stack([self.layer.low * numbers, numbers], dim=-1).unsqueeze(-1) / self.value
        tokens[:, 0, GATE["query"]] = (self.query * numbers).unsqueeze(-1)
        w_k, w_q, w_v = (GATE.select(name) for name in ("key", "query", "value"))
        yield Prompt(tokens, w_k, w_q, w_v, 1)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (answers[0].flatten() * self.value).reshape(shape)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        numbers = x.flatten()
        keys = read(interpreter, x.new_tensor([0.0, self.key])).reshape(2, 1)
        asked = (self.query * numbers).clamp(-self.farthest, self.farthest)
        asked = read(interpreter, asked).reshape(-1, 1, 1)
        # Zeros are not read: 0 is within the number line's error of any reading.
        low = read(interpreter, self.layer.low * numbers / self.value) if self.layer.low else torch.zeros_like(numbers)
        values = torch.stack([low, read(interpreter, numbers / self.value)], dim=-1).unsqueeze(-1)
        answers = attend(asked, keys, values, name="layer 2")
        return (answers.flatten() * self.value).reshape(x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        """The gate's own error, and the effect of errors of scores, values and the average of two.

        Near zero a score is off by a fixed amount, farther out by a part of itself: what an average of two makes of the
        first is a factor e^δ of the gate's own error, and of the second a gate that is as much less sharp.
        """
        score, part = self._score_error(line)
        values = self.value * line.error(self.size / self.value)
        rounded = rounding.average(2, self.size, torch.float64)
        if self.layer.kinked:
            gate = (
                (1 - self.layer.low) * KINK / self.sharpness * math.exp(score) / (1 - part) if part <= 0.5 else math.inf
            )
        else:
            gate = shifted_average(score + part * self.size, self.size)
        return gate + values + rounded

    def _score_error(self, line: IdentityGrid) -> tuple[float, float]:
        """(absolute, relative) error of the difference of both scores, exp and the subtraction included."""
        most, unit = self.query * self.size, rounding.unit(torch.float64)
        bands = [(lo, line.error(hi)) for lo, hi in pairwise([0.0, *line.reaches]) if lo <= most]
        near = bands[0][1]
        part = max((error / lo for lo, error in bands[1:]), default=0.0)
        # The other key is zero, read to within `near`.
        keys = (line.error(self.key) + near) / self.key
        relative = (1 + part) * (1 + keys) - 1 + 8 * unit
        return self.key * (1 + keys) * near + 2 * (rounding.EXP_ROUNDINGS + 64) * unit, relative

    def description(self) -> str:
        return f"2 tokens a number, with scores 0 and {self.sharpness:g} t and values {self.layer.low:g} t and t"
