"""Every error bound of a network, a second time: scalar by scalar, from what the docstrings say.

`own` is what a phase adds to its exact layer; `Registers` follows errors forward. Nothing of `error_propagation`, nor
of the layers' own bounds, takes part; the number line's error, the softmax's rounding, slopes and spectral norms are
of other packages, with tests of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import mpmath
from torch import Tensor

from emulon.certify.domain import enclosure
from emulon.expressions import parse
from emulon.interpreter.plan import Slopes
from emulon.networks.attention import Attention, AttentionPhase
from emulon.networks.elementwise import Function, FunctionPhase, Gate, GatePhase
from emulon.networks.maps import Constant, Linear, LinearPhase, Norm, Product, ReciprocalRoot

U, LIFT = 2.0**-53, 1 + 1e-9


def gamma(count: int) -> float:
    return count * U / (1 - count * U)


def most(box) -> list[float]:
    return [max(abs(lo), abs(hi)) for lo, hi in zip(box.lo.tolist(), box.hi.tolist(), strict=True)]


def power(size: float) -> float:
    """Brings numbers of this size to between 8 and 16."""
    return 2.0 ** max(math.ceil(math.log2(size / 16)), -60) if size > 0 else 1.0


def dot(row: list[float], other: list[float]) -> float:
    return sum(abs(a) * b for a, b in zip(row, other, strict=True))


def averages_move(delta: float, spread: float) -> float:
    """What an average of numbers at most 2·spread from each other moves by when log weights move by δ."""
    return spread * math.tanh(min(delta, 301.0) / 2)


def own_linear(phase: LinearPhase, line) -> float:
    layer, sizes = phase.layer, most(phase.ranges.inputs)
    count, scale = len(sizes), power(max(most(phase.ranges.output)))
    rows = list(zip(layer.weight.tolist(), layer.bias.tolist(), strict=True))
    absolute = max(dot(row, sizes) + abs(b) for row, b in rows) * LIFT / scale
    size = max(most(phase.ranges.output)) / scale
    own = scale * (line.error(size, count + 2, absolute) + gamma(count + 3) * absolute)
    return own + (0.0 if layer.unrounded is None else rounding_moves(layer, sizes))


def rounding_moves(layer: Linear, sizes: list[float]) -> float:
    """Of the exact map N(x − shift)/√s + bias."""
    exact, worst = layer.unrounded, mpmath.mpf(0)
    with mpmath.workdps(60):
        for r, row in enumerate(exact.numerators.tolist()):
            root = mpmath.sqrt(mpmath.mpf(exact.squares[0, r].item()) + mpmath.mpf(exact.squares[1, r].item()))
            thetas = [mpmath.mpf(n) / root for n in row]
            bias = exact.bias[r].item() - sum(t * s for t, s in zip(thetas, exact.shift.tolist(), strict=True))
            off = sum(abs(t - w) * m for t, w, m in zip(thetas, layer.weight[r].tolist(), sizes, strict=True))
            worst = max(worst, off + abs(bias - layer.bias[r].item()))
    return float(worst) * LIFT


def balancing(a: float, b: float) -> float:
    return 2.0 ** round(math.log2(a / b) / 2) if b > 0 else 1.0


def product_off(line, a: float, b: float) -> float:
    """Of a product of numbers of these sizes, both read off the line."""
    return line.error(a) * (b + line.error(b)) + line.error(b) * a


def own_attention(phase: AttentionPhase, line) -> float:
    layer, known, sizes = phase.layer, phase.ranges.attention, most(phase.ranges.inputs)
    balance, value, root = balancing(known.q, known.k), power(known.v), math.sqrt(layer.scale)
    strength = 2 * known.score + math.log(2 * phase.positions / U) + 1.1 if layer.causal else 0.0
    q, k, v = known.q / balance, known.k * balance, known.v / value
    scaled = 0.0 if math.log2(root).is_integer() else 4 * U

    def off(w: Tensor, b: Tensor, size: float, factor: float, more: float = 0.0) -> float:
        rows = zip(w.flatten(0, 1).tolist(), b.flatten().tolist(), strict=True)
        absolute = max(dot(row, sizes) + abs(c) for row, c in rows) * factor * LIFT
        return line.error(size, len(sizes) + 2, absolute) + (gamma(len(sizes) + 3) + more) * absolute

    e_q = off(layer.w_q, layer.b_q, q, 1 / balance / root, scaled)
    e_k, e_v = off(layer.w_k, layer.b_k, k, balance), off(layer.w_v, layer.b_v, v, 1 / value)
    width, mask = layer.w_q.shape[1], phase.positions if layer.causal else 0
    score = width * (e_q * (k + e_k) + e_k * q)
    if layer.causal:
        edge = math.sqrt(strength)
        score += product_off(line, edge, edge) + mask * line.error(0.0) * 2 * (edge + 1)
    delta = score + gamma(max(width + mask, layer.w_v.shape[1]) + 1) * (known.score + strength) + 68 * U
    average = 2 * gamma(phase.positions + 2) * (v + e_v)
    return value * (averages_move(delta, 2 * (v + e_v)) + e_v + 2 * v * U + average)


def own_gate(phase: GatePhase, line) -> float:
    """G is a power of two in the key times one in the query; near zero scores are off absolutely, else relatively."""
    low, sharp, size = phase.layer.low, phase.sharpness, max(most(phase.ranges.inputs))
    key = 2.0 ** min(max(math.ceil(math.log2(sharp * size) / 2), 0), round(math.log2(sharp)))
    asked, value = sharp / key * size, power(size)
    ends = [0.0, *line.reaches]
    errors = [line.error(hi) for lo, hi in pairwise(ends) if lo <= asked]
    part = max((error / lo for error, lo in zip(errors[1:], ends[1:], strict=False)), default=0.0)
    keys = (line.error(key) + errors[0]) / key
    relative = (1 + part) * (1 + keys) - 1 + 8 * U
    absolute = key * (1 + keys) * errors[0] + 2 * 68 * U
    if phase.layer.kinked:
        gate = (1 - low) * 0.2785 / sharp * math.exp(absolute) / (1 - relative) if relative < 1 else math.inf
    else:
        gate = averages_move(absolute + relative * sharp * size, (1 - low) * size)
    return gate + value * line.error(size / value) + 2 * gamma(4) * size


def own_function(phase: FunctionPhase, line) -> float:
    made, grid = phase.softmax, phase.softmax.grid
    key, bias = balancing(grid.range, grid.steepest), balancing(1.0, grid.highest)
    value = power(grid.largest)
    score = gamma(3) * grid.score_size
    score += product_off(line, grid.steepest * key, grid.range / key)
    score += product_off(line, grid.highest * bias, 1 / bias)
    own = made.interpolation + grid.rounding_error(made.deviation, made.size, score)
    return own + value * line.error(grid.largest / value)


def own(phase, line) -> float:
    kinds = {LinearPhase: own_linear, AttentionPhase: own_attention, GatePhase: own_gate, FunctionPhase: own_function}
    return kinds[type(phase)](phase, line) if type(phase) in kinds else 0.0


def spectral(weight: Tensor) -> float:
    tall = weight if weight.shape[0] >= weight.shape[1] else weight.T
    return math.sqrt(enclosure(tall)[1].item() * len(tall)) * LIFT


@dataclass
class Error:
    """Of every number and of the vector's length, each as small as the other allows."""

    each: list[float]
    length: float = math.inf

    def __post_init__(self) -> None:
        self.each = [math.inf if math.isnan(e) else e for e in self.each]
        self.length = min(math.inf if math.isnan(self.length) else self.length, math.hypot(*self.each) * LIFT)
        self.each = [min(e, self.length) for e in self.each]

    def plus(self, other: Error) -> Error:
        each = [(a + b) * LIFT for a, b in zip(self.each, other.each, strict=True)]
        return Error(each, (self.length + other.length) * LIFT)

    def least(self, other: Error) -> Error:
        each = [min(a, b) for a, b in zip(self.each, other.each, strict=True)]
        return Error(each, min(self.length, other.length))


def unknown(count: int) -> Error:
    return Error([math.inf] * count)


@dataclass
class Registers:
    """Errors of all registers when all phases err; `known` says of which the exact numbers are certainly in range."""

    line: object
    void: float

    def forward(self, phases, given, follows=False):
        """(error, known) of the given registers, and of those that the phases write."""
        found = list(given)
        for phase in phases:
            read, layer = [found[i] for i in phase.layer.reads], phase.layer
            certain = all(known for _, known in read)
            if phase.phases:
                error = self.composite(phase, read, follows)
            else:
                error = self.moved(phase, [each for each, _ in read])
                if not isinstance(layer, Linear | Constant) and not certain:
                    error = unknown(len(error.each))
                error = error.plus(Error([own(phase, self.line)] * len(error.each)))
            box = phase.ranges.output
            pairs = [*zip(box.lo.tolist(), box.hi.tolist(), strict=True)]
            limit = min([self.void * (hi - lo) for lo, hi in pairs] + [lo / 10 for lo, _ in pairs if lo > 0])
            known = follows or isinstance(layer, Constant) or all(e <= limit for e in error.each)
            found.append((error, known))
        return found

    def composite(self, phase, read, follows):
        layer, ranges = phase.layer, phase.ranges
        root = isinstance(layer, ReciprocalRoot) and layer.coarse is not None
        parts = self.forward(phase.phases, read, read[0][1] if root else follows)
        local = self.forward(phase.phases, [(Error([0.0] * len(each.each)), True) for each, _ in read])
        error = parts[-1][0]
        if all(known for _, known in parts[:-1]):
            error = error.least(self.by_map(layer, ranges, [each for each, _ in read], local).plus(local[-1][0]))
        if isinstance(layer, Norm):  # ‖x/σ‖ ≤ √n, and computed numbers are in range
            pairs = zip(layer.weight.tolist(), layer.bias.tolist(), most(ranges.output), strict=True)
            root_n = math.sqrt(len(layer.weight))
            error = error.least(Error([abs(w) * root_n * LIFT + abs(b) + m for w, b, m in pairs]))
        return error

    def by_map(self, layer, ranges, errors, local) -> Error:
        """What the exact map makes of errors before it."""
        e = errors[0].each
        if isinstance(layer, ReciprocalRoot):
            lowest = min(ranges.inputs.lo.tolist())
            return Error([each / (2 * lowest**1.5) * LIFT for each in e])
        weights = [abs(w) for w in layer.weight.tolist()]
        if isinstance(layer, Product):
            sizes, count = most(ranges.inputs), len(weights)
            x, y = sizes[:count], sizes[count:] * (count if layer.broadcast else 1)
            others = errors[1].each * (count if layer.broadcast else 1)
            return Error([(a * f + b * g) * w * LIFT for a, b, f, g, w in zip(x, y, others, e, weights, strict=True)])
        variance, length = local[2][0].each[0], errors[0].length
        sigma = math.sqrt(max(ranges.parts[1].output.lo.item() - variance, 0.0)) / LIFT
        shortest = max(sigma - length * LIFT / math.sqrt(len(weights)), 0.0)
        each = [(a + length) / sigma * w * LIFT if sigma else math.inf for a, w in zip(e, weights, strict=True)]
        return Error(each, max(weights) * length / shortest * LIFT if shortest else math.inf)

    def moved(self, phase, errors) -> Error:
        """What an exact layer makes of errors before it."""
        layer, ranges = phase.layer, phase.ranges
        each = [e for error in errors for e in error.each]
        if isinstance(layer, Constant):
            return Error([0.0] * layer.values.shape[1])
        if isinstance(layer, Linear):
            parts = layer.weight.split([len(error.each) for error in errors], dim=-1)
            length = sum(error.length * spectral(part) for error, part in zip(errors, parts, strict=True)) * LIFT
            return Error([dot(row, each) * LIFT for row in layer.weight.tolist()], length)
        if isinstance(layer, Attention):
            return self.attention(layer, ranges.attention, each, math.hypot(*(error.length for error in errors)) * LIFT)
        slope = self.steepest(layer, ranges.inputs)
        return Error([e * slope * LIFT for e in each], errors[0].length * slope * LIFT)

    @staticmethod
    def steepest(layer: Function | Gate, box) -> float:
        if isinstance(layer, Gate):
            return max(1.0, abs(layer.low)) if layer.kinked else 1.1
        return max(map(abs, Slopes(parse(layer.f)).between(min(box.lo.tolist()), max(box.hi.tolist()))))

    @staticmethod
    def attention(layer: Attention, known, each: list[float], length: float) -> Error:
        """Scores move by Σ|q|e_k + |k|e_q + e_q·e_k, and by no more than lengths let them."""
        factor, out, lengths = 1 / math.sqrt(layer.scale), list[float](), list[float]()
        for w_q, w_k, w_v in zip(layer.w_q * factor, layer.w_k, layer.w_v, strict=True):
            e_q, e_k, e_v = ([dot(row, each) * LIFT for row in w.tolist()] for w in (w_q, w_k, w_v))
            moved = sum(known.q * k + known.k * q + q * k for q, k in zip(e_q, e_k, strict=True)) * LIFT
            q, k, v = map(spectral, (w_q, w_k, w_v))
            long = (math.sqrt(len(e_q)) * (known.q * k + known.k * q) * length + q * k * length**2) * LIFT
            shift = averages_move(min(moved, long), 2 * known.v)
            out += [(e + shift) * LIFT for e in e_v]
            lengths.append(v * length + math.sqrt(len(e_v)) * shift * LIFT)
        return Error(out, math.hypot(*lengths) * LIFT)
