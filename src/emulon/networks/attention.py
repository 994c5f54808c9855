"""Attention between positions by prompt: Hu et al. 2025, Theorem 4.2, with or without a mask.

Every row of the data is a prompt of its positions' tokens (x, 1), and W_Q, W_K, W_V of the head stand in the prompt. A
causal mask is two more groups of rows: key j holds −√C at its own place, query i √C at every place after its own, so
that scores of later positions are lowered by C.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.nn.functional import pad

from emulon.attention import Slots, attend
from emulon.certify import rounding
from emulon.certify.domain import require_within
from emulon.certify.rounding import shifted_average
from emulon.core.errors import BadShape
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter
from emulon.interpreter.phase import SPARE, balancing_power, product_error
from emulon.networks.arithmetic import Arithmetic
from emulon.networks.layers import (
    LIFT,
    AttentionRanges,
    Box,
    ErrorBound,
    Prompt,
    SimpleLayer,
    SimplePhase,
    ValueRanges,
    read,
)
from emulon.networks.maps import affine_interval, rounded_sum, spectral_norm
from emulon.networks.softmaxes import power_for

f64 = torch.float64
# Scales that divide without rounding.
POWERS = frozenset(2.0**power for power in range(-64, 65))


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention(SimpleLayer):
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

    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        root, out = a.sqrt(a.of(self.w_q.new_tensor([self.scale]))), list[Any]()
        for head in range(self.heads):
            pairs = ((self.w_q, self.b_q), (self.w_k, self.b_k), (self.w_v, self.b_v))
            q, k, v = (a.matmul(x, w[head].T) + a.of(b[head]) for w, b in pairs)
            weights = a.weights(a.inner(q, k) / root, self.causal)
            out.append(a.inner(weights, a.transposed(v)) / a.sum(weights))
        return a.beside(out)

    def in_prompt(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """(matrix, bias) of q, k and v as they stand in the prompt, with the scale in q."""
        factor = 1 / math.sqrt(self.scale)
        return (self.w_q * factor, self.b_q * factor), (self.w_k, self.b_k), (self.w_v, self.b_v)

    @property
    def rounding(self) -> float:
        """Relative error of q's matrix and bias after scaling: a root, a quotient, a product."""
        return 0.0 if math.sqrt(self.scale) in POWERS else 4 * rounding.unit(f64)

    def projected(self, x: Float[Tensor, "rows positions features"]) -> list[Tensor]:
        """q, k, v, each (rows, heads, positions, ·)."""
        return [x.unsqueeze(-3) @ w.mT + b.unsqueeze(-2) for w, b in self.in_prompt()]

    def interval(self, inputs: Box) -> Box:
        """An average lies in the range of its values."""
        return affine_interval(self.w_v.flatten(0, 1), self.b_v.flatten(), inputs)

    def attention_ranges(self, x: Tensor | Box) -> AttentionRanges:
        if isinstance(x, Box):
            boxes = [affine_interval(w.flatten(0, 1), b.flatten(), x) for w, b in self.in_prompt()]
            most = [box.most.reshape(self.heads, -1) for box in boxes]
            score = (most[0] * most[1]).sum(dim=-1).max().item() * LIFT
            return AttentionRanges(boxes[0].size, boxes[1].size, boxes[2].size, score)
        q, k, v = self.projected(x)
        scores = q.norm(dim=-1).amax(dim=-1) * k.norm(dim=-1).amax(dim=-1)
        largest = [part.abs().max().item() for part in (q, k, v)]
        return AttentionRanges(largest[0], largest[1], largest[2], scores.max().item())

    def propagated(self, errors: Sequence[ErrorBound], ranges: ValueRanges) -> ErrorBound:
        """Where inputs differ by e in length, |q·k − q̂·k̂| ≤ ‖q‖·‖W_K‖e + ‖k‖·‖W_Q‖e + ‖W_Q‖‖W_K‖e².

        And by number, Σ_c |q_c|·e_k + |k_c|·e_q + e_q·e_k.
        """
        known = ranges.attention
        assert known is not None
        each = torch.cat([part.each for part in errors], dim=-1)
        length = torch.stack([part.length for part in errors], dim=-1).norm(dim=-1, keepdim=True) * LIFT
        e_q, e_k, e_v = (torch.einsum("...f,hcf->...hc", each, w.abs()) * LIFT for w, _ in self.in_prompt())
        by_number = (known.q * e_k + known.k * e_q + e_q * e_k).sum(dim=-1) * LIFT
        q, k, v = (each.new_tensor([spectral_norm(w) for w in part]) for part, _ in self.in_prompt())
        width = math.sqrt(self.w_q.shape[1])
        by_length = (width * (known.q * k + known.k * q) * length + q * k * length.square()) * LIFT
        moved = torch.minimum(by_number.nan_to_num(nan=math.inf), by_length.nan_to_num(nan=math.inf))
        # An average moves by what its numbers move, and by shifted_average(δ) where scores move by δ.
        flat = [shifted_average(min(delta, 301.0), 2 * known.v) for delta in moved.flatten().tolist()]
        shift = moved.new_tensor(flat).reshape(moved.shape)
        heads = v * length + math.sqrt(self.w_v.shape[1]) * shift * LIFT
        return ErrorBound.of(((e_v + shift.unsqueeze(-1)) * LIFT).flatten(-2), heads.norm(dim=-1) * LIFT)


@dataclass(frozen=True, eq=False)
class AttentionPhase(SimplePhase):
    """Claim: every entry within own_error of the head, for up to `positions` positions.

    Cost: positions tokens of d + 1 features (and twice the positions for a mask), one prompt a head.
    """

    layer: Attention
    positions: int

    @property
    def known(self) -> AttentionRanges:
        assert self.ranges.attention is not None
        return self.ranges.attention

    @property
    def mask(self) -> int:
        """Slots of each of the mask's two codes."""
        return self.positions if self.layer.causal else 0

    @property
    def strength(self) -> float:
        """C: the weight of all later tokens is below a rounding, whatever the scores."""
        if not self.mask:
            return 0.0
        return 2 * self.known.score + math.log(2 * self.positions / rounding.unit(f64)) + SPARE + 1.0

    @property
    def balance(self) -> float:
        """The factor of the keys, by which queries are divided."""
        return balancing_power(self.known.q, self.known.k)

    @property
    def value(self) -> float:
        return power_for(self.known.v)

    @cached_property
    def slots(self) -> Slots:
        return Slots(x=self.layer.w_q.shape[-1], one=1, place=self.mask, ahead=self.mask)

    @property
    def sizes(self) -> tuple[float, float, float]:
        """The largest |q|, |k| and |v| as the number line reads them."""
        return self.known.q / self.balance, self.known.k * self.balance, self.known.v / self.value

    @property
    def capacity(self) -> Capacity:
        width = max(self.layer.w_q.shape[1] + self.mask, self.layer.w_v.shape[1])
        return Capacity(self.slots.width, self.positions, width, max(*self.sizes, math.sqrt(self.strength)))

    def weights(self, head: int) -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q, W_V of one head, as they stand in the prompt."""
        slots, factors, rows = self.slots, (1 / self.balance, self.balance, 1 / self.value), []
        for (w, b), factor in zip(self.layer.in_prompt(), factors, strict=True):
            part = torch.cat([w[head], b[head].unsqueeze(-1)], dim=-1) * factor
            rows.append(pad(part, (0, slots.width - part.shape[-1])))
        w_q, w_k, w_v = rows
        if self.layer.causal:
            root = math.sqrt(self.strength)
            w_k = torch.cat([w_k, -root * slots.select("place")])
            w_q = torch.cat([w_q, root * slots.select("ahead")])
        return w_k, w_q, w_v

    def prompts(self, x: Tensor) -> Iterator[Prompt]:
        self._projected(x)
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
        q, k, v = self._projected(x)
        numbers = (q / self.balance, k * self.balance, v / self.value)
        q, k, v = (read(interpreter, part) for part in numbers)
        heads = attend(q, k, v, causal=self.layer.causal, name="layer 2")
        return heads.movedim(-3, -2).flatten(-2) * self.value

    def _projected(self, x: Tensor) -> list[Tensor]:
        """q, k, v; larger ones, or more positions, than planned for are refused."""
        if x.shape[-2] > self.positions:
            raise BadShape(f"the prompt has {x.shape[-2]} positions, and the program was made for {self.positions}")
        name, known = self.layer.name, self.known
        q, k, v = self.layer.projected(x)
        for part, letter, most in ((q, "q", known.q), (k, "k", known.k), (v, "v", known.v)):
            require_within(most, **{f"{letter} of {name}": part})
        longest = q.norm(dim=-1).amax(dim=-1) * k.norm(dim=-1).amax(dim=-1)
        require_within(known.score, **{f"‖q‖·‖k‖ of {name}": longest})
        return [q, k, v]

    def own_error(self, line: IdentityGrid) -> float:
        """Entries of K, Q, V are off by the line's error; then scores, the weights they give, and the average."""
        terms, most, errors = self.layer.w_q.shape[-1] + 2, self.ranges.inputs.most, []
        factors, scaled = (1 / self.balance, self.balance, 1 / self.value), (self.layer.rounding, 0.0, 0.0)
        for (w, b), size, factor, more in zip(self.layer.in_prompt(), self.sizes, factors, scaled, strict=True):
            absolute = ((w.abs() @ most + b.abs()).max() * factor * (1 + 1e-9)).item()
            errors.append(line.error(size, terms, absolute) + rounded_sum(terms, absolute) + more * absolute)
        (q, k, v), (e_q, e_k, e_v) = self.sizes, errors
        score = self.layer.w_q.shape[1] * (e_q * (k + e_k) + e_k * q)
        if self.layer.causal:
            root = math.sqrt(self.strength)
            # A mask's rows: products that should be zero, one for every place.
            score += product_error(line, root, root, 1) + self.positions * line.error(0.0) * 2 * (root + 1)
        score += rounding.dot(self.capacity.width + 1, self.known.score + self.strength, f64)
        delta = rounding.softmax_weights(score, 64.0, f64)
        emulated = shifted_average(min(delta, 300.0), 2 * (v + e_v)) + e_v
        hidden = 2 * v * rounding.unit(f64)
        return self.value * (emulated + hidden + rounding.average(self.positions, v + e_v, f64))

    def description(self) -> str:
        heads, width, features = self.layer.w_q.shape
        mask = f", mask {self.strength:.3g}" if self.layer.causal else ""
        return f"{heads} heads of {width} rows on {features + 1} features, up to {self.positions} tokens{mask}"
