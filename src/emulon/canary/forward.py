"""The operations of a Llama's forward pass on numbers that carry how far an engine's may be from them.

Values are balls (Arb). Beside each stands a bound on an engine's distance from it, carried through every operation:
what its arguments were off by, to all orders, and the operation's own roundings.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, NamedTuple

from flint import arb
from numpy.typing import NDArray

from emulon.canary.engine import EXP, FLOAT32, FREQUENCY, MOMENTS, ROOT, Arithmetic, growth
from emulon.machine.targets.stock import Config

# Beside every bound: its own computation in float64 rounds up by far less.
SLACK = 1 + 2.0**-40


class Value(NamedTuple):
    """A number: the exact one, a bound on its size, and how far an engine's may be from it.

    `grid` is g where it is a whole multiple of 2^g and every engine has it exactly; None where that is not known.
    """

    exact: Any
    size: float
    error: float
    grid: int | None = None

    @property
    def reach(self) -> float:
        """The largest size that an engine's number may have."""
        return self.size + self.error


Vector = dict[int, Value]  # sparse, by entry
# Entries that stand for all those that a mean moves: see `centred_norm`.
MOVED, SPREAD = -1, -2
Parts = dict[int, Vector]
Rows = dict[int, list[tuple[int, Any, float, int]]]  # input → (output, weight, its size, its grid)


def grid_of(exact: Any) -> int | None:
    """The largest g for which the number is a multiple of 2^g, if it is known exactly."""
    if not exact.is_exact():
        return None
    mantissa, exponent = exact.mid().man_exp()
    return int(exponent) if mantissa else 1 << 20


def value(exact: Any, error: float = 0.0) -> Value:
    """A number from its ball."""
    return Value(exact, float(abs(exact).upper()) * SLACK, error * SLACK, None if error else grid_of(exact))


class _Sum:
    """Σ of products in float32, in any order: exact while every partial sum is a float32, whatever the order."""

    def __init__(self) -> None:
        self.exact, self.size, self.error, self.terms = arb(0), 0.0, 0.0, 0
        self.grid: int | None = 1 << 20

    def add(self, exact: Any, size: float, error: float, grid: int | None) -> None:
        """One product, which may be rounded by itself."""
        self.exact += exact
        self.size += size
        self.error += error
        self.terms += 1
        self.grid = None if grid is None or self.grid is None else min(self.grid, grid)

    @property
    def is_exact(self) -> bool:
        """All terms are multiples of one power of two, and no sum of them needs more than 24 bits."""
        return self.grid is not None and self.error == 0 and self.size <= math.ldexp(1, min(self.grid + 24, 1000))


class Forward:
    """The operations of one forward pass, on values with their errors."""

    def __init__(self, config: Config, arithmetic: Arithmetic | None) -> None:
        self.config, self.arithmetic = config, arithmetic
        self.frequencies: dict[int, Any] = {}

    def _stored(self, exact: Any, error: float, shift: float = 0.0) -> Value:
        """A number as an engine may or may not store it; `shift` is a further error, common to all entries.

        Where all that an engine may have before lies between two midpoints of the format, the number between them is
        stored, and the error is not added to.
        """
        found, format = value(exact, error), self.arithmetic
        if format is None or self._holds(found):
            return found
        if not found.size + error < math.inf:
            return found._replace(error=math.inf)
        middle = float(exact.mid())
        power = math.frexp(middle)[1]
        spacing = math.ldexp(1.0, power - format.bits)
        nearest = round(middle / spacing) * spacing
        between = spacing / (4 if abs(nearest) <= math.ldexp(0.5, power) else 2)
        off = abs(middle - nearest) + 2.0**-50 * abs(middle)
        # A number stored in fewer bits was rounded to float32 before.
        moved = off + error + shift + FLOAT32 * abs(middle)
        if moved < between and spacing > 4 * format.tiny and abs(nearest) <= format.largest:
            return found._replace(error=max(found.error, (off + shift) * SLACK))
        return found._replace(error=found.error + format.stored(found.reach + shift) * SLACK)

    def _holds(self, found: Value) -> bool:
        """Whether the format has the number."""
        assert self.arithmetic is not None
        if found.grid is None or found.size > self.arithmetic.largest:
            return False
        if found.size == 0:
            return True
        return (
            found.size <= math.ldexp(SLACK, found.grid + self.arithmetic.bits)
            and 2.0**found.grid >= self.arithmetic.tiny
        )

    def _total(self, total: _Sum) -> float:
        """How far an engine's sum may be from the exact one."""
        if self.arithmetic is None or total.is_exact:
            return total.error
        return total.error + growth(total.terms + 1) * (total.size + total.error)

    def _units(self, count: int | float) -> float:
        """`count` units roundoff of float32."""
        return 0.0 if self.arithmetic is None else count * FLOAT32

    def linear(self, x: Vector, rows: Rows, bias: Vector | None = None) -> Vector:
        """W·x, and a bias: products and sums in float32, the result stored before the bias is added and after it."""
        sums: dict[int, _Sum] = defaultdict(_Sum)
        for into, one in x.items():
            for out, weight, size, grid in rows.get(into, ()):
                together = None if one.grid is None else one.grid + grid
                sums[out].add(weight * one.exact, size * one.size, size * one.error, together)
        found = {out: self._stored(total.exact, self._total(total)) for out, total in sums.items()}
        return self.plus(found, bias) if bias else found

    def plus(self, x: Vector, y: Vector) -> Vector:
        """The residual connection, or a bias."""
        out = dict(x)
        for i, one in y.items():
            if i in out:
                out[i] = self._stored(out[i].exact + one.exact, out[i].error + one.error)
            else:
                out[i] = one
        return out

    def norm(self, x: Vector, gain: NDArray[Any]) -> Vector:
        """x·g/√(mean x² + ε): mean and root in float32, then stored, then times the gain and stored again.

        Where one entry is a power of two and the squares of all others are lost beside its square, the norm of every
        engine is an exact scaling; so it is here.
        """
        width = len(gain)
        squares = sum((one.exact * one.exact for one in x.values()), arb(0))
        moved = sum((2 * one.size + one.error) * one.error for one in x.values())
        largest = max(x.values(), key=lambda one: one.size)
        rest = float((squares - largest.exact * largest.exact).upper()) + moved + width * self.config.rms_norm_eps
        square = math.isqrt(width) ** 2 == width
        if (
            square
            and largest.grid is not None
            and _power(largest.size, largest.grid)
            and rest * 2.0**24 < largest.size**2
        ):
            root, relative = 1 / (abs(largest.exact) / math.isqrt(width)), 0.0
        else:
            total = squares / width + arb(self.config.rms_norm_eps)
            root, low = total.rsqrt(), float(total.lower())
            off = moved / width / low + (growth(len(x) + 3) if self.arithmetic else 0.0)
            # (1 ± off)^(−1/2), and the root's own roundings.
            drift = (1 - off) ** -0.5 if off < 0.5 else math.inf
            relative = drift - 1 + self._units(ROOT + 1) * drift
        scale = float(abs(root).upper()) * SLACK
        out = {}
        for i, one in x.items():
            if not (weight := float(gain[i])):
                continue
            error = scale * (
                one.error + one.reach * (relative + (self._units(1) * (1 + relative) if relative else 0.0))
            )
            inner = self._stored(one.exact * root, error)
            out[i] = self._stored(inner.exact * arb(weight), abs(weight) * inner.error)
        return out

    def centred_norm(self, x: Vector, gain: NDArray[Any], bias: Vector) -> Vector:
        """(x − m)·g/√(mean (x − m)² + ε) + b, with the mean and the root in float32.

        An engine's m may be off by e, which moves all entries alike, by e·g/√…: rows of weights that sum to 0 over g do
        not see it. Entry `MOVED` has this error for the sums Σ w·g of rows, entry `SPREAD` its roundings for Σ |w·g|.
        """
        width, epsilon = self.config.hidden_size, arb(self.config.rms_norm_eps)
        mean = sum((one.exact for one in x.values()), arb(0)) / width
        entries = {i: x.get(i, ZERO) for i in (x if mean == 0 else range(width))}
        centred = {i: value(one.exact - mean) for i, one in entries.items()}
        variance = sum((one.exact * one.exact for one in centred.values()), arb(0)) / width
        # Sums in any order, or a running mean (Welford).
        moved = sum(one.error for one in x.values()) / width
        if self.arithmetic:
            moved += growth(width + 24) * sum(one.reach for one in x.values()) / width
        around = sum((2 * centred[i].size + one.error) * one.error for i, one in entries.items()) / width
        off = (around + 3 * moved**2) / float((variance + epsilon).lower()) + self._units(MOMENTS)
        drift = (1 - off) ** -0.5 if off < 0.5 else math.inf
        relative = drift - 1 + self._units(ROOT + 1) * drift
        root = (variance + epsilon).rsqrt()
        scale, apart = float(root.upper()) * SLACK, 2 * float(abs(mean).upper())
        shift, out = scale * moved * (1 + relative), {}
        for i, one in centred.items():
            rounded = (one.size + entries[i].error + moved + apart) * (relative + self._units(3) * (1 + relative))
            inner = self._stored(one.exact * root, scale * (entries[i].error + rounded), shift)
            weight = abs(float(gain[i]))
            out[i] = self._stored(inner.exact * arb(float(gain[i])), weight * inner.error, weight * shift)
        unit, tiny = (0.0, 0.0) if self.arithmetic is None else (self.arithmetic.unit, self.arithmetic.tiny)
        out = self.plus(out, bias)
        for i in bias:
            out[i] = out[i]._replace(error=out[i].error + (self._units(2) + unit) * (out[i].reach + shift))
        return out | {
            MOVED: Value(arb(0), 0.0, shift),
            SPREAD: Value(arb(0), shift, shift * (self._units(4) + 2 * unit) + 2 * tiny),
        }

    def activated(self, gate: Vector, up: Vector | None) -> Vector:
        """f(gate)·up or f(gate), f = SiLU or GELU, |f′| ≤ 1.13. A saturated gate is exact."""
        silu = self.config.activation == "silu"
        out = {}
        for i, one in gate.items():
            if up is not None and i not in up:
                continue
            if one.exact - one.error > 20:
                inner = one
            elif one.exact + one.error < (-128 if silu else -20):
                continue
            else:
                exact, rounded = ACTIVATIONS[self.config.activation](one.exact)
                inner = self._stored(exact, 1.13 * one.error + self._units(EXP + rounded[0]) * rounded[1])
            if up is None:
                out[i] = inner
                continue
            other = up[i]
            error = inner.error * other.reach + inner.size * other.error
            out[i] = self._stored(inner.exact * other.exact, error)
        return out

    def attention(
        self, heads: list[int], query: Parts, keys: list[Parts], values: list[Parts], places: range
    ) -> Vector:
        """The heads of one token that anything reads."""
        config, out = self.config, {}
        group = config.num_attention_heads // config.num_key_value_heads
        at = places[-1]
        for head in heads:
            ask, shared = query.get(head, {}), head // group
            scores = [self._score(ask, key.get(shared, {}), at, places[t]) for t, key in enumerate(keys)]
            read = self._average(scores, [one.get(shared, {}) for one in values])
            out.update({head * config.head_dim + i: one for i, one in read.items()})
        return out

    def _angle(self, pair: int, at: int, other: int) -> tuple[Any, float]:
        """The angle between two tokens, and how far an engine's may be off.

        Frequencies err alike at both tokens, products of position and frequency do not.
        """
        config = self.config
        if pair not in self.frequencies:
            self.frequencies[pair] = arb(config.rope_theta) ** (arb(-2 * pair) / config.rotated)
        frequency = self.frequencies[pair]
        if pair == 0:  # its frequency is 1, and its angles are whole numbers
            return arb(at - other), 0.0
        error = (abs(at - other) + abs(at) + abs(other)) * float(frequency.upper()) * self._units(FREQUENCY + pair)
        return frequency * (at - other), error

    def _score(self, query: Vector, key: Vector, at: int, other: int) -> Value:
        """q·k after both were rotated, over √d."""
        config = self.config
        half, total = config.rotated // 2, _Sum()
        still = {i for i in query if i >= config.rotated} & set(key)
        pairs = {i % half for i in query if i < config.rotated} & {i % half for i in key if i < config.rotated}
        for i in still:
            one, its = query[i], key[i]
            grid = None if one.grid is None or its.grid is None else one.grid + its.grid
            total.add(one.exact * its.exact, one.size * its.size, one.error * its.reach + one.size * its.error, grid)
        for pair in pairs:
            (a, b), (c, d) = (_pair(query, pair, half), _pair(key, pair, half))
            angle, off = self._angle(pair, at, other)
            slow = max(abs(at), abs(other)) * float(self.frequencies[pair].upper())
            if (kept := _unturned(a, b, c, d, slow)) is not None:
                total.add(kept, a.size * c.size + b.size * d.size, 0.0, grid_of(kept))
                continue
            along, across = a.exact * c.exact + b.exact * d.exact, a.exact * d.exact - b.exact * c.exact
            exact = along * angle.cos() + across * angle.sin() if at != other else along
            # Each side: two products, a sum and their cosines; 2-norms of the pairs.
            q, k = math.hypot(a.reach, b.reach), math.hypot(c.reach, d.reach)
            left, right = self._rotated(slow, not a.size or not b.size), self._rotated(slow, not c.size or not d.size)
            error = q * k * (off + left + right + left * right)
            error += math.hypot(a.error, b.error) * k + q * math.hypot(c.error, d.error)
            total.add(exact, q * k * (1 + left) * (1 + right), error, None)
            total.terms += 1
        if not pairs and not still:
            return ZERO
        # Stored before it is scaled or after; scaled as a whole or by the root of the scale on either side.
        before = self._stored(total.exact, self._total(total))
        fourth = round(config.head_dim**0.25)
        split = 0.0 if fourth**4 == config.head_dim or not self.arithmetic else 2 * (self.arithmetic.unit + 3 * FLOAT32)
        exact = before.exact / math.isqrt(config.head_dim)
        if math.isqrt(config.head_dim) ** 2 != config.head_dim:
            exact = before.exact * arb(config.head_dim).rsqrt()
        error = before.error + split * total.size
        return self._stored(exact, error / math.sqrt(config.head_dim))

    def _rotated(self, angle: float, single: bool) -> float:
        """Relative error of a rotated pair: cosines, stored; two products and their sum, stored each.

        A pair of a `single` number that hardly turns keeps it, as its cosine is 1; beside it stands its sine times it.
        """
        if self.arithmetic is None:
            return 0.0
        unit = self.arithmetic.unit
        if single and angle**2 < FLOAT32 / 2:
            return angle * (EXP * FLOAT32 + 3 * unit) + angle**2
        cosine = EXP * FLOAT32 + unit
        products = math.sqrt(2) * (cosine + unit * (1 + cosine))
        return products + unit * (1 + products)

    def _average(self, scores: list[Value], values: list[Vector]) -> Vector:
        """Softmax in float32, weights stored, then Σ p·v. Weights below e^−128 are zero."""
        best = max(scores, key=lambda one: float(one.exact.mid()))
        far = 128 + best.error
        near = [t for t, one in enumerate(scores) if not best.exact - one.exact - one.error > far]
        scores, values = [scores[t] for t in near], [values[t] for t in near]
        alike = all(one.exact == best.exact and not one.error for one in scores) and not len(near) & (len(near) - 1)
        if len(near) == 1 or alike:
            return self._mean(values)
        weights = [(one.exact - best.exact).exp() for one in scores]
        whole = sum(weights, arb(0))
        shares = [weight / whole for weight in weights]
        sizes = [float(share.upper()) * SLACK for share in shares]
        # Each score, its distance from the largest, and exp.
        drift = [
            min(one.error + self._units(float(abs(one.exact - best.exact).upper()) + one.error + EXP + 1), 300.0)
            for one in scores
        ]
        # The sum, the division, and the products: only weights that a float32 beside the others shows are counted.
        heavy = sum(size > FLOAT32 / 16 for size in sizes)
        light = 4 * sum(size for size in sizes if size <= FLOAT32 / 16) if self.arithmetic else 0.0
        divided = self._units(heavy + 8) + light
        sums: dict[int, _Sum] = defaultdict(_Sum)
        largest: dict[int, float] = defaultdict(float)
        for share, moved, size, read in zip(shares, _moved(sizes, drift), sizes, values, strict=True):
            error = min(moved + (size + moved) * divided * (1 + divided), 1.0)
            error += self.arithmetic.stored(size + error) if self.arithmetic else 0.0
            for i, one in read.items():
                sums[i].add(share * one.exact, size * one.size, error * one.reach + size * one.error, None)
                largest[i] = max(largest[i], one.reach)
        out = {}
        for i, total in sums.items():
            # Whatever the weights are, both averages are among the values.
            unit = 0.0 if self.arithmetic is None else self.arithmetic.unit
            most = 2 * largest[i] * (1 + self._units(3 * len(values) + 32) + unit)
            total.terms = heavy
            out[i] = self._stored(total.exact, min(self._total(total) + light * largest[i], most))
        return out

    def _mean(self, values: list[Vector]) -> Vector:
        """The mean of a power of two of values: their weights are exact."""
        sums: dict[int, _Sum] = defaultdict(_Sum)
        down = len(values).bit_length() - 1
        for read in values:
            for i, one in read.items():
                grid = None if one.grid is None else one.grid - down
                sums[i].add(one.exact / len(values), one.size / len(values), one.error / len(values), grid)
        return {i: self._stored(total.exact, self._total(total)) for i, total in sums.items()}


ZERO = Value(arb(0), 0.0, 0.0, 1 << 20)


def _silu(x: Any) -> tuple[Any, tuple[int, float]]:
    """x/(1 + e^(−x)); roundings beside those of exp, and the size that they are relative to."""
    exact = x / (1 + (-x).exp())
    return exact, (3, float(abs(exact).upper()))


def _gelu(x: Any) -> tuple[Any, tuple[int, float]]:
    """x/2·(1 + tanh s), s = √(2/π)·(x + 0.044715·x³), like `_silu`.

    s is off by 7 units of its size, s·tanh′(s) ≤ ½, and 1 + tanh has no relative accuracy below 0: of x, not of f(x).
    """
    inner = (arb(2) / arb.pi()).sqrt() * (x + arb("0.044715") * x**3)
    return x / 2 * (1 + inner.tanh()), (7, float(abs(x).upper()))


def _erf_gelu(x: Any) -> tuple[Any, tuple[int, float]]:
    """x/2·(1 + erf(x/√2)), like `_gelu`: the argument of erf is off by 3 units, and s·erf′(s) ≤ ½."""
    return x / 2 * (1 + (x / arb(2).sqrt()).erf()), (5, float(abs(x).upper()))


ACTIVATIONS = {"silu": _silu, "gelu": _erf_gelu, "gelu_new": _gelu, "gelu_pytorch_tanh": _gelu}


def parts_of(x: Vector, size: int) -> Parts:
    """A vector cut into heads."""
    parts: Parts = defaultdict(dict)
    for i, one in x.items():
        parts[i // size][i % size] = one
    return dict(parts)


def _pair(x: Vector, pair: int, half: int) -> tuple[Value, Value]:
    return x.get(pair, ZERO), x.get(pair + half, ZERO)


def _moved(shares: list[float], drift: list[float]) -> list[float]:
    """How far softmax weights may move when their scores move by at most `drift`.

    p̂_j/p_j = 1/(p_j + Σ_{k≠j} p_k·e^{d_k − d_j}), |d_k − d_j| ≤ drift_k + drift_j.
    """
    up = [p * math.expm1(d) for p, d in zip(shares, drift, strict=True)]
    down = [-p * math.expm1(-d) for p, d in zip(shares, drift, strict=True)]
    rest, more, less = sum(shares), sum(up), sum(down)
    out = []
    for j, (p, d) in enumerate(zip(shares, drift, strict=True)):
        others = max(rest - p, 0.0) + 2.0**-50
        grown = others * math.expm1(d) + math.exp(d) * (max(more - up[j], 0.0) + 2.0**-50)
        shrunk = -others * math.expm1(-d) + math.exp(-d) * (max(less - down[j], 0.0) + 2.0**-50)
        out.append(min(p * max(shrunk / (1 - shrunk) if shrunk < 1 else math.inf, grown / (1 + grown)), 1.0))
    return out


def _unturned(a: Value, b: Value, c: Value, d: Value, angle: float) -> Any:
    """The product of two pairs whose rotation every engine loses, or None.

    Each side is one number, known exactly. Its cosine is 1, and the sines' product is lost in a float32 beside it.
    """
    if (a.size and b.size) or (c.size and d.size) or angle**2 >= FLOAT32 / 2:
        return None
    if any(one.grid is None or one.error for one in (a, b, c, d)):
        return None
    (q, k), same = (a if a.size else b, c if c.size else d), bool(a.size) == bool(c.size)
    if not same:
        return None
    product = q.exact * k.exact
    lost = q.size * k.size * angle**2 * 2.0**27 < math.ldexp(1, min(grid_of(product) or 0, 1000))
    return product if lost else None


def _power(size: float, grid: int) -> bool:
    """Whether a number of this size on this grid is a power of two."""
    return abs(size / math.ldexp(1, grid) - 1) < 1e-9
