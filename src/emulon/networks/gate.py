"""t·σ(Gt) by prompt (Theorem 3.1 with x = t): two tokens for every number, which hold t, or nothing, as their value.

A soft grid cannot follow a kink below about 10⁻⁸ of its range, for the gate between its pieces spoils the scores inside
them. Here the gate stands alone: token 0 has score 0 and value low·t, token 1 score G·t and value t. With G = 1 that is
SiLU itself. For a kink, the larger G, the nearer.
Claim: |t·(low + (1 − low)·σ(Gt)) − max(t, low·t)| ≤ (1 − low)·0.2785/G.
Proof. The difference is (1 − low)·|t|·σ(−G|t|); u·σ(−u) is largest where u = 1 + e^{−u}, and is then u − 1 = 0.27846….
QED
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from emulon.attention import Slots, attend
from emulon.certify import rounding
from emulon.certify.perturbation import shifted_average
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.networks.layers import Elementwise
from emulon.networks.phase import NetworkPhase, Prompt, power_for, read

f64 = torch.float64
KINK = 0.2785
SLOTS = Slots(key=1, value=1, query=1)
W_K, W_Q, W_V = (SLOTS.select(name) for name in ("key", "query", "value"))


@dataclass(frozen=True, eq=False)
class GatePhase(NetworkPhase):
    """`sharpness` is G, a power of two; `kinked` says that the layer is the limit, and not the gate itself."""

    kind = "gate"
    layer: Elementwise
    low: float
    sharpness: float
    kinked: bool

    @property
    def size(self) -> float:
        return self.known.inputs.size

    @property
    def key(self) -> float:
        """G is the product of two powers of two: this one in the key, the other with the number that asks."""
        power = math.log2(self.sharpness * max(self.size, 1e-300)) / 2
        return math.ldexp(1.0, min(max(math.ceil(power), 0), round(math.log2(self.sharpness))))

    @property
    def query(self) -> float:
        return self.sharpness / self.key

    @property
    def value(self) -> float:
        return power_for(self.size)

    @property
    def capacity(self) -> Capacity:
        return Capacity(SLOTS.width, 2, 1, max(self.key, self.query * self.size, self.size / self.value))

    def _values(self, numbers: Tensor) -> Tensor:
        """(..., 2): low·t and t, divided."""
        return torch.stack([self.low * numbers, numbers], dim=-1) / self.value

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        numbers = x.flatten()
        tokens = numbers.new_zeros(len(numbers), 2, SLOTS.width)
        tokens[:, 1, SLOTS["key"]] = self.key
        tokens[..., SLOTS["value"]] = self._values(numbers).unsqueeze(-1)
        tokens[:, 0, SLOTS["query"]] = (self.query * numbers).unsqueeze(-1)
        yield Prompt(tokens, W_K, W_Q, W_V, 1)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return (answers[0].flatten() * self.value).reshape(shape)

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        numbers = x.flatten()
        keys = read(interpreter, x.new_tensor([0.0, self.key])).reshape(2, 1)
        asked = read(interpreter, self.query * numbers).reshape(-1, 1, 1)
        values = read(interpreter, self._values(numbers)).unsqueeze(-1)
        answers = attend(asked, keys.expand(len(asked), 2, 1), values, name="layer 2")
        return (answers.flatten() * self.value).reshape(x.shape)

    def own_error(self, line: IdentityGrid) -> float:
        """The gate's own, and what scores, values and the average of two are off by.

        Near zero a score is off by a fixed amount, farther out by a part of itself: what an average of two makes of the
        first is a factor e^δ of the gate's own error, and of the second a gate that is as much less sharp.
        """
        score, part = self._score_error(line)
        values = self.value * line.error(self.size / self.value)
        spread = (1 - self.low) * self.size
        rounded = rounding.average(2, self.size, f64)
        if self.kinked:
            gate = (1 - self.low) * KINK / self.sharpness * math.exp(score) / (1 - part) if part < 1 else math.inf
        else:
            gate = shifted_average(score + part * self.sharpness * self.size, spread)
        return gate + values + rounded

    def _score_error(self, line: IdentityGrid) -> tuple[float, float]:
        """(absolute, relative) error of the difference of both scores, exp and the subtraction included."""
        most = self.query * self.size
        bands = [(lo, line.error(hi)) for lo, hi in pairwise([0.0, *line.reaches]) if lo <= most]
        near = bands[0][1]
        part = max((error / lo for lo, error in bands[1:]), default=0.0)
        # The other key is zero, read to within `near`.
        keys = (line.error(self.key) + near) / self.key
        relative = (1 + part) * (1 + keys) - 1 + 8 * rounding.unit(f64)
        return self.key * (1 + keys) * near + 2 * (rounding.EXP_ROUNDINGS + 64) * rounding.unit(f64), relative

    def shown(self) -> str:
        return f"2 tokens a number, with scores 0 and {self.sharpness:g} t and values {self.low:g} t and t"
