"""How surely a compiled token program reads the tokens it means, in float32 and whatever the order of sums.

Claim. At every token of a text of up to `context` words, a read gives all tokens that it does not mean, together, at
most `leak` of its weight, if registers hold what the program means (±1 in codes, 0 or 1 in flags). The start, which
holds zeros, is counted with what is meant: beside a match it takes e^-32 at most, which rounds to nothing.
Assumes an engine as `ASSUMES` says, norms that are the identity (see `targets.llama`), and for the latest of several
tokens that at least `spacing` places lie between them.
Bound. A score is a sum over pairs of |q|·|k| times a cosine. With |q||k| ≤ a_j nats in pair j, and n products, the
computed score is off by at most E = Σ_j a_j·(2·γ_{n+6} + 2^-20 + φ_j), φ_j = ω_j·context·(2^-21 + 2^-22): products,
sums in any order, cosines, and angles whose frequency and product are rounded. Two scores that differ by G have weights
that differ by a factor e^-(G − 2E) at least.
  Back: G(δ) = 128·Σ_j (1 − cos ω_j(δ − k)) over the fast pairs, for every distance δ; the wanted one is δ = k. Nothing
    is claimed of the first k tokens.
  Codes: pairs that turn by θ over the context take (1 − cos θ) + sin θ of every entry, once again in E.
  Codes of b entries: 64·b against 64·(b − 2) at most elsewhere, and the start, which holds zeros, at 64·(b − ½).
  The latest: A·b, A = slope/2, less slope·sin(ω·distance); another of the same code is spacing tokens further, which
  costs slope·ω·cos(ω·context)·spacing; the second other twice as much, and so on: a geometric series.
Cost: one pass over the distances of a context for every place that is read. QED
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from emulon.certify.rounding import gamma
from emulon.machine.rotary import PLACE, Rotary
from emulon.machine.targets.llama import LlamaProgram
from emulon.machine.token_layers import BIT, Attention
from emulon.machine.token_program import Back, Matching

ASSUMES = (
    "float32 with dot products summed in any order, and exp of a softmax within two units in the last place",
    "cosines and sines within 2^-22, inverse frequencies within a relative 2^-21, angles rounded once",
)


@dataclass(frozen=True)
class Routing:
    """One read's certificate: `gap` in nats to the next token, `leak` in weight to all of them."""

    place: str
    gap: float
    leak: float


def routing(compiled: LlamaProgram, spacing: int) -> list[Routing]:
    """Bound what every read takes from tokens that it does not mean.

    Args:
        compiled: A compiled token program.
        spacing: The least distance between two tokens of which the latest is read.
    Returns:
        A bound for every head, layer by layer; softmax tables mean all their tokens and have none.

    Example:
        >>> max(one.leak for one in routing(compile_llama(program), spacing=5))
    """
    rotary, found = Rotary(compiled.program.context), []
    for layer in compiled.layers:
        attention = Attention(compiled.layout, layer.reads)
        for where in attention.heads:
            if isinstance(where, Back):
                found.append(_back(where, rotary))
            elif isinstance(where, Matching):
                fastest = max(map(rotary.frequency, attention.pairs(where)))
                found.append(_matching(where, rotary, fastest, spacing))
    return found


def _matching(where: Matching, rotary: Rotary, fastest: float, spacing: int) -> Routing:
    entries, angle = where.key.entries, fastest * rotary.context
    lost = (1 - math.cos(angle)) + math.sin(angle)
    if not where.latest:
        off = _error([(BIT, fastest)] * entries, rotary) + BIT * entries * lost
        gap = 1.5 * BIT - 2 * off
        return Routing(str(where), gap, _weight(gap, rotary.context))
    own, bit = rotary.frequency(rotary.recency), rotary.slope / 2
    off = _error([(rotary.slope, own), *[(bit, fastest)] * entries], rotary) + bit * entries * lost
    gap = rotary.slope * own * math.cos(own * rotary.context) * spacing - 2 * off
    mismatch = 1.5 * bit - rotary.slope * math.sin(own * rotary.context) - 2 * off
    leak = math.inf if gap <= 0 else 2 * math.exp(-gap) / (1 - math.exp(-gap)) + _weight(mismatch, rotary.context)
    return Routing(str(where), min(gap, mismatch), leak)


def _back(where: Back, rotary: Rotary) -> Routing:
    """Pointwise in the distance: far away, where angles are less certain, the gap is wide."""
    distance = np.arange(rotary.context, dtype=np.float64)
    gap = np.zeros_like(distance)
    for pair in range(rotary.recency):
        frequency = rotary.frequency(pair)
        rounded = frequency * (distance + where.places) * 2.0**-21 + 2 * frequency * rotary.context * 2.0**-24
        gap += PLACE * (1 - np.cos(frequency * (distance - where.places)) - 2 * rounded)
    gap -= 2 * _error([(PLACE, 0.0)] * rotary.recency, rotary)
    others = np.delete(gap, where.places)
    return Routing(str(where), float(others.min()), 2 * float(np.exp(-others).sum()))


def _error(pairs: Sequence[tuple[float, float]], rotary: Rotary) -> float:
    """E for pairs of (nats, frequency): two products each."""
    products = 2 * len(pairs)
    turned = [frequency * rotary.context * (2.0**-21 + 2.0**-22) for _, frequency in pairs]
    rounding = 2 * gamma(products + 6, torch.float32) + 2.0**-20
    return sum(nats * (rounding + angle) for (nats, _), angle in zip(pairs, turned, strict=True))


def _weight(gap: float, tokens: int) -> float:
    """The weight of so many tokens that far below."""
    return 2 * tokens * math.exp(-gap) if gap > 0 else math.inf
