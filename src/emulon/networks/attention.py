"""Attention between positions by prompt: Hu et al. 2025, Theorem 4.2, as it stands, with or without a mask.

Every row of the data is a prompt of its positions' tokens (x, 1), and W_Q, W_K, W_V of the head stand in the prompt. A
causal mask is two more groups of rows: key j holds −√C at its own place, query i √C at every place after its own, so
that what lies ahead loses C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from emulon.attention import Slots, attend
from emulon.certify import rounding
from emulon.certify.domain import require_within
from emulon.certify.perturbation import shifted_average
from emulon.core.errors import BadShape
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.layout import SPARE, balancing_power
from emulon.interpreter.module import Capacity, Interpreter
from emulon.interpreter.phase import product_error
from emulon.networks.layers import Attention, Inner, rounded_sum, side_by_side
from emulon.networks.phase import NetworkPhase, Prompt, power_for, read

f64 = torch.float64


@dataclass(frozen=True, eq=False)
class AttentionPhase(NetworkPhase):
    """Claim: every entry within own_error of the head. `positions` is the most it takes.

    Cost: positions tokens of d + 1 features (and twice the positions for a mask), one prompt a head.
    """

    kind = "attention"
    layer: Attention
    positions: int

    @property
    def inner(self) -> Inner:
        assert self.known.inner is not None
        return self.known.inner

    @property
    def strength(self) -> float:
        """C: all tokens ahead together weigh less than a rounding, whatever the scores."""
        if not self.layer.causal:
            return 0.0
        return 2 * self.inner.score + math.log(2 * self.positions / rounding.unit(f64)) + SPARE + 1.0

    @property
    def balance(self) -> float:
        """What keys are multiplied by, and queries divided by."""
        return balancing_power(self.inner.q, self.inner.k)

    @property
    def value(self) -> float:
        return power_for(self.inner.v)

    @cached_property
    def slots(self) -> Slots:
        mask = self.positions if self.layer.causal else 0
        return Slots(x=self.layer.w_q.shape[-1], one=1, place=mask, ahead=mask)

    @property
    def capacity(self) -> Capacity:
        mask = self.positions if self.layer.causal else 0
        width = max(self.layer.w_q.shape[1] + mask, self.layer.w_v.shape[1])
        numbers = (self.inner.q / self.balance, self.inner.k * self.balance, self.inner.v / self.value)
        return Capacity(self.slots.width, self.positions, width, max(*numbers, math.sqrt(self.strength)))

    def weights(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q, W_V of one head, as they stand in the prompt."""
        slots, factors, rows = self.slots, (1 / self.balance, self.balance, 1 / self.value), []
        for (w, b), factor in zip(self.layer.parts(), factors, strict=True):
            part = torch.cat([w[head], b[head].unsqueeze(-1)], dim=-1) * factor
            rows.append(pad(part, (0, slots.width - part.shape[-1])))
        w_q, w_k, w_v = rows
        if self.layer.causal:
            root = math.sqrt(self.strength)
            w_k = torch.cat([w_k, -root * slots.select("place")])
            w_q = torch.cat([w_q, root * slots.select("ahead")])
        return w_k, w_q, w_v

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        self._require_positions(x)
        self._require_inner(*self.layer.projected(x))
        slots, positions = self.slots, x.shape[-2]
        tokens = x.new_zeros(*x.shape[:-1], slots.width)
        tokens[..., slots["x"]], tokens[..., slots["one"]] = x, 1.0
        if self.layer.causal:
            place = torch.eye(positions, self.positions, dtype=f64, device="cpu")
            tokens[..., slots["place"]] = place
            tokens[..., slots["ahead"]] = place.cumsum(dim=-1) - place
        for head in range(self.layer.heads):
            yield Prompt(tokens, *self.weights(head), positions)

    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return torch.cat(list(answers), dim=-1) * self.value

    def fast(self, interpreter: Interpreter, x: Tensor) -> Tensor:
        self._require_positions(x)
        q, k, v = self.layer.projected(x)
        self._require_inner(q, k, v)
        numbers = (q / self.balance, k * self.balance, v / self.value)
        q, k, v = (read(interpreter, part) for part in numbers)
        return side_by_side(attend(q, k, v, causal=self.layer.causal, name="layer 2")) * self.value

    def _require_positions(self, x: Tensor) -> None:
        if x.shape[-2] > self.positions:
            raise BadShape(f"the prompt has {x.shape[-2]} positions, and the program was made for {self.positions}")

    def _require_inner(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        name, inner = self.layer.name, self.inner
        for part, letter, most in ((q, "q", inner.q), (k, "k", inner.k), (v, "v", inner.v)):
            require_within(most, **{f"{letter} of {name}": part})
        longest = q.norm(dim=-1).amax(dim=-1) * k.norm(dim=-1).amax(dim=-1)
        require_within(inner.score, **{f"‖q‖·‖k‖ of {name}": longest})

    def own_error(self, line: IdentityGrid) -> float:
        """Entries of K, Q, V are off by the line's error; then scores, the weights they give, and the average."""
        inner, terms = self.inner, self.layer.w_q.shape[-1] + 2
        box = self.known.inputs
        most = torch.maximum(box.lo.abs(), box.hi.abs())
        off = []
        sizes = (inner.q / self.balance, inner.k * self.balance, inner.v / self.value)
        factors = (1 / self.balance, self.balance, 1 / self.value)
        parts = zip(self.layer.parts(), sizes, factors, (self.layer.rounding, 0.0, 0.0), strict=True)
        for (w, b), size, factor, scaled in parts:
            absolute = ((w.abs() @ most + b.abs()).max() * factor * (1 + 1e-9)).item()
            off.append(line.error(size, terms, absolute) + rounded_sum(terms, absolute) + scaled * absolute)
        width = self.layer.w_q.shape[1]
        (q, k, _), (e_q, e_k, e_v) = sizes, off
        score = width * (e_q * (k + e_k) + e_k * q)
        if self.layer.causal:
            root = math.sqrt(self.strength)
            # A mask's rows: what is not hidden should come to zero, and is as far off as places are many.
            score += product_error(line, root, root, 1) + self.positions * line.error(0.0) * 2 * (root + 1)
        score += rounding.dot(self.capacity.width + 1, inner.score + self.strength, f64)
        delta = rounding.softmax_weights(score, 64.0, f64)
        emulated = shifted_average(min(delta, 300.0), 2 * (inner.v / self.value + e_v)) + e_v
        leak = 2 * inner.v / self.value * rounding.unit(f64)
        average = rounding.average(self.positions, inner.v / self.value + e_v, f64)
        return self.value * (emulated + leak + average)

    def shown(self) -> str:
        heads, width, features = self.layer.w_q.shape
        mask = f", mask {self.strength:.3g}" if self.layer.causal else ""
        return f"{heads} heads of {width} rows on {features + 1} features, up to {self.positions} tokens{mask}"
