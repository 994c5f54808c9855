"""Heads that copy and heads that multiply by ± pairs: Lemmas A.1 to A.3 of Gao et al. 2024, and the stencil's size."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

import torch
from torch import Tensor

from emulon.certify.rounding import EXP_ROUNDINGS, gamma, unit
from emulon.looped.layer import Circuit, Heads, Layer, TokenSlots, read, write

MOST_PAIRS = 8

# Heads that answer only themselves keep all other tokens below u·e^{(mτ − STRAY)·cauchy}.
STRAY = 6.0


@cache
def pair_weights(pairs: int) -> tuple[Fraction, ...]:
    """w_g = 2(−1)^{g+1}(m!)²/((m−g)!(m+g)!): Σ_g w_g = 1 and Σ_g w_g g^{2k} = 0 for 0 < k < m (Lagrange at 0)."""
    top = math.factorial(pairs) ** 2
    return tuple(
        Fraction((-1) ** (g + 1) * 2 * top, math.factorial(pairs - g) * math.factorial(pairs + g))
        for g in range(1, pairs + 1)
    )


@cache
def _moments(pairs: int, count: int) -> tuple[float, ...]:
    """|Σ_g w_g g^{2k}|/(2k+1)! for k = m, m+1, …; all have the same sign."""
    weights = pair_weights(pairs)
    return tuple(
        float(abs(sum(w * g ** (2 * k) for g, w in enumerate(weights, 1))) / math.factorial(2 * k + 1))
        for k in range(pairs, pairs + count)
    )


def truncation(pairs: int, tau: float) -> float:
    """Claim: |Σ_g w_g sinh(gτx)/(gτ) − x| ≤ this·|x| for |x| ≤ 1.

    Proof. The series of the left side starts at x^{2m+1} and its coefficients share one sign (complete symmetric
    polynomials of 1, 4, …, m²), so left/|x| grows with |x| and is largest at 1. 40 terms are summed; the rest is below
    Σ|w_g|·(mτ)^{2k}/(2k+1)! summed as a geometric series. QED
    """
    count = 40
    total = sum(moment * tau ** (2 * (pairs + k)) for k, moment in enumerate(_moments(pairs, count)))
    first = pairs + count
    head = (pairs * tau) ** (2 * first) / math.factorial(2 * first + 1)
    ratio = (pairs * tau) ** 2 / ((2 * first + 2) * (2 * first + 3))
    mass = float(sum(map(abs, pair_weights(pairs))))
    return (total + (mass * head / (1 - ratio) if ratio < 1 else math.inf)) * (1 + 1e-12)


@dataclass(frozen=True)
class Stencil:
    """2·pairs heads whose sum is Σ_j v_j s_j, for scores |s_j| ≤ reach, beside a sink token of score C.

    Head ±g scores c_g s_j with c_g = ±gτ/reach and carries the values ±w_g·reach/(2gτ)·e^C·v_j. In exact arithmetic
    each returns Σ_j v_j e^{c_g s_j}/(1 + ρ) with ρ = e^{−C}·Σ e^{…} ≤ leak.
    Bound: |output − Σ v_j s_j| ≤ reach·Σ|v_j|·relative (`error`). The terms:
      truncation τ^{2m}, because the ± pair cancels even orders and each further pair one more odd one;
      leak, the sink's normaliser, amplified by Σ|w_g|cosh(gτ)/(gτ) ~ 1/τ, as is
      rounding: of score − max (C + mτ, and `lift` where the sink's score carries a log n), of exp, of the normaliser,
      of the sum over `summed` tokens and over heads;
      strays, where an `offset` in the score makes only the asking token answer (`self_product`);
      score rounding, relative to the score itself, hence not amplified (`cauchy` ≥ Σ_l |q_l k_l| / reach).
    """

    pairs: int
    tau: float = 1.0
    _: KW_ONLY
    reach: float
    tokens: int
    summed: int
    width: int
    dtype: torch.dtype
    cauchy: float = 1.0
    offset: float = 0.0
    lift: float = 0.0

    @property
    def sink(self) -> float:
        """The least integer C for which all other tokens together weigh less than one rounding."""
        return float(math.ceil(math.log(self.tokens) + self.pairs * self.tau - math.log(unit(self.dtype))))

    @cached_property
    def terms(self) -> dict[str, float]:
        """Named error terms, relative to reach·Σ|v_j|."""
        steps = [(g, abs(float(w))) for g, w in enumerate(pair_weights(self.pairs), 1)]
        amplified = sum(w * math.cosh(g * self.tau) / (g * self.tau) for g, w in steps)
        plain = sum(w * math.exp(g * self.tau) for g, w in steps)
        small = unit(self.dtype)
        leak = self.tokens * math.exp(self.pairs * self.tau - self.sink)
        # Scores hold c·s ≤ mτ, and an exactly representable offset that other terms of the dot product are added to.
        score = (self.sink + 3 * self.lift + self.pairs * self.tau + EXP_ROUNDINGS) * small
        score += gamma(self.width + 2, self.dtype) * self.offset
        stray = small * math.exp(min((self.pairs * self.tau - STRAY) * self.cauchy, 700.0)) if self.offset else 0.0
        sums = 2 * leak + stray + 3 * small + gamma(self.summed + 2, self.dtype) + gamma(2 * self.pairs + 4, self.dtype)
        return {
            "truncation": truncation(self.pairs, self.tau),
            "leak": leak * amplified,
            "rounding": (math.expm1(score + sums) if score + sums < 1 else math.inf) * amplified * (1 + leak)
            + gamma(self.width + 3, self.dtype) * self.cauchy * plain,
        }

    @cached_property
    def relative(self) -> float:
        return sum(self.terms.values())

    def error(self, mass: float) -> float:
        """The bound for values with Σ_j |v_j| ≤ mass."""
        return self.reach * mass * self.relative

    def balanced(self) -> Stencil:
        """The same with the τ where truncation (rising as τ^{2m}) and rounding (falling as 1/τ) balance."""
        return replace(self, tau=_best_tau(replace(self, tau=1.0, reach=1.0)))


@cache
def _best_tau(shape: Stencil) -> float:
    """The best of 2^{1 − k/8}: the relative error falls, then rises, so that a search by thirds finds it."""

    def error(power: int) -> float:
        return replace(shape, tau=2.0 ** (1 - power / 8)).relative

    low, high = 0, 168
    while high - low > 2:
        third = (high - low) // 3
        left, right = low + third, high - third
        low, high = (low, right) if error(left) < error(right) else (left, high)
    best = min(range(low, high + 1), key=error)
    return float(2.0 ** (1 - best / 8))


# A score this far below the largest underflows to a weight of exactly zero in float64 (exp(−745.2) = 0) and float32.
UNDERFLOW = 800.0

# p·p exceeds p·q by at least this for two different codes.
GAP = 2


def code_length(count: int) -> int:
    """⌈log₂ count⌉ dimensions, at least one: Lemma A.1's O(log N)."""
    return max(1, (count - 1).bit_length())


def position_codes(count: int) -> Tensor:
    """`count` codes (count, ⌈log₂ count⌉): the binary digits of the position, as ±1.

    Claim: p_i·p_i − p_i·p_j = 2·(digits in which i and j differ) ≥ 2 for i ≠ j; scaling by √(ε/2) makes the gap of
    Lemma A.1 any ε asked for, so the scale is left to the head that uses the codes.
    """
    positions = torch.arange(count, device="cpu").unsqueeze(-1)
    digits = (positions >> torch.arange(code_length(count), device="cpu")) & 1
    return 2.0 * digits.double() - 1.0


SHARPNESS = UNDERFLOW / GAP


def copy_head(slots: TokenSlots, query: Tensor, key: Tensor, value: Tensor, into: str) -> Heads:
    """One head that averages `value` over the tokens whose key code equals the query code, and adds it to a slot.

    Claim: the copy is exact in floating point. Assumes: codes of ±1 or 0-1 whose products with the query are integers,
    largest at the matching tokens by at least GAP, and either one or a power of two of them match.
    Proof. Scores are 400·integer, exact below 2²⁴ in float32; every match has the same score, every other one is 800
    lower and its weight underflows to zero; the normaliser is the exact count of matches, and 1/count, weight·value
    and sums of zeros are exact. In exact arithmetic the leak is n·e⁻⁸⁰⁰. QED
    Cost: one head, as wide as the code.
    """
    rows = write(slots, into, value)
    return (SHARPNESS * key).unsqueeze(0), query.unsqueeze(0), rows.unsqueeze(0)


def readout_heads(
    slots: TokenSlots,
    stencil: Stencil,
    *,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    into: str = "step",
    extra: tuple[Tensor, Tensor] | None = None,
    masked: Tensor | None = None,
) -> Heads:
    """Heads that add Σ_j (value_j)(query·key_j) to slot `into` of the asking token.

    Claim and Bound: `Stencil`. Assumes: |query·key_j| ≤ stencil.reach; one token alone is a `sink`, with value 0.
    `masked` tokens get a score 800 lower, so that their weight underflows to zero. `extra` rows (query, key) are added
    to the score unscaled: a code that routes, or log n on the sink, which divides the sum by n without any MLP.
    Cost: 2·pairs heads of width + 1 rows.
    """
    fixed = stencil.sink * read(slots, sink=1.0) - (0.0 if masked is None else UNDERFLOW * masked)
    extra_query, extra_key = (query[:0], query[:0]) if extra is None else extra
    keys, queries, values = [], [], []
    for g, weight in enumerate(pair_weights(stencil.pairs), 1):
        for sign in (1.0, -1.0):
            scale = sign * g * stencil.tau / stencil.reach
            lift = sign * float(weight) * stencil.reach / (2 * g * stencil.tau) * math.exp(stencil.sink)
            keys.append(torch.cat([scale * key, fixed, extra_key]))
            queries.append(torch.cat([query, slots.one, extra_query]))
            values.append(write(slots, into, lift * value))
    return torch.stack(keys), torch.stack(queries), torch.stack(values)


# The encoder's prompt is x_1, y_1, …, x_N, y_N, x_query, answer. Exactly one of these indicators is 1 on each token;
# `sink` is the answer's.
KINDS = ("train", "label", "query", "sink")
# The decoder's is sink, x_1, y_1, …, x_N, y_N, x_query: every token can see a sink that comes first. `point` tokens
# hold an x, the `label` token after it its y.
CAUSAL_KINDS = ("sink", "point", "label")


def pair_tokens(slots: TokenSlots, xs: Tensor, ys: Tensor, x_query: Tensor, inputs: str = "x") -> Tensor:
    """Tokens (..., 2N+2, width) with sample and label of a pair sharing a position code; ys is (..., N, outputs)."""
    batch = torch.broadcast_shapes(xs.shape[:-2], ys.shape[:-2], x_query.shape[:-1])
    samples, features = xs.shape[-2:]
    end, first = 2 * samples, slots[inputs].start
    tokens = xs.new_zeros(*batch, end + 2, slots.width)
    tokens[..., 0:end:2, first : first + features] = xs
    tokens[..., 1:end:2, slots["y"]] = ys
    tokens[..., end, first : first + features] = x_query
    for kind, where in (("train", slice(0, end, 2)), ("label", slice(1, end, 2)), ("query", end), ("sink", end + 1)):
        tokens[..., where, slots[kind]] = 1.0
    tokens[..., slots["code"]] = position_codes(samples + 1).to(xs.dtype).repeat_interleave(2, dim=0)
    return tokens


def causal_tokens(slots: TokenSlots, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    """Tokens (..., 2N+2, width), with log(i−1) beside x_i, where the paper writes 1/(i−1)."""
    batch = torch.broadcast_shapes(xs.shape[:-2], ys.shape[:-1], x_query.shape[:-1])
    samples = xs.shape[-2]
    tokens = xs.new_zeros(*batch, 2 * samples + 2, slots.width)
    points, labels = slice(1, None, 2), slice(2, None, 2)
    for kind, where in (("sink", 0), ("point", points), ("label", labels)):
        tokens[..., where, slots[kind]] = 1.0
    tokens[..., slice(1, -1, 2), slots["x"]] = xs
    tokens[..., -1, slots["x"]] = x_query
    tokens[..., labels, slots["y"]] = ys.unsqueeze(-1)
    counts = torch.arange(samples + 1, dtype=torch.float64, device="cpu").clamp(min=1).log()
    tokens[..., points, slots["log_count"]] = counts.to(xs.dtype).unsqueeze(-1)
    # The sink has no code: what a self-product adds to its score must be the same for every position.
    codes = position_codes(samples + 2)[: samples + 1].to(xs.dtype)
    tokens[..., 1:, slots["code"]] = codes.repeat_interleave(2, dim=0)[:-1]
    return tokens


def exchange_layer(
    slots: TokenSlots,
    source: str,
    into: str,
    *,
    on: str,
    bound: float,
    dtype: torch.dtype,
    name: str,
    sign: float = 1.0,
    causal: bool = False,
) -> Layer:
    """The neighbour exchange of Theorem 3.1: tokens of one kind get sign·source of the token that shares their code.

    Claim: exact. Assumes: |source| ≤ bound, and source = 0 on one of the two. Cost: one layer of one head.
    """
    code = read(slots, code=1.0)
    heads = copy_head(slots, code, code, read(slots, **{source: 2.0 * sign}), "step")
    circuit = Circuit(slots).move(read(slots, step=1.0), into, on=(on,), bound=2 * bound).clear("step")
    return Layer(heads, circuit.matrices, dtype=dtype, causal=causal, name=name)
