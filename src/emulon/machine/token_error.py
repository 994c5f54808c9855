"""What a token program means, how surely its compiled form reads that, and how far it can be from it, in float32.

Routing
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

Errors
Claim. At every token of the text, every register of the network is within `errors` of what `Meaning` says.
Assumes an engine as `ASSUMES` says, silu within 4u of its value and equal to z or 0 beyond |z| = 128, and
that `Meaning`'s float64 errs by less than 1e-12 of a value.
Bound. By induction over instructions, with u = 2^-24 and γ_n = n·u/(1 − n·u):
  forms: Σ|a|·e + γ_{m+2}(Σ|a|(|x| + e) + |bias|) for m terms; norms are the identity, weights are rounded once.
  reads: an entry is read with what the tokens meant are off by, at most `leak` of all others, and γ_{n+8} of the
    mean's absolute values, n the number of tokens meant. A mean of several tokens needs `equal`, or nothing is claimed.
  products x·y: two units whose gates are opposite; each sees x within e_x, silu is 1.1-Lipschitz:
    2.2(|x|e_y + |y|e_x + e_x·e_y) + 12u·(|x| + e_x)(|y| + e_y); `gate` and `abs` add 0.56·2^-20 of the factor where the
    gate may be half open.
  sums: γ_{2n+4} of all that a register's n writes add. QED
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.core.arrays import zeros
from emulon.core.errors import BadProgram
from emulon.machine.instruction import AffineForm
from emulon.machine.targets.llama import LlamaProgram
from emulon.machine.token_layers import BIT, GATE, PLACE, Attention, Rotary
from emulon.machine.token_program import SAID, START, Back, Matching, Table, TokenInstruction, TokenProgram, Where

ASSUMES = (
    "float32 with dot products summed in any order, and exp of a softmax within two units in the last place",
    "cosines and sines within 2^-22, inverse frequencies within a relative 2^-21, angles rounded once",
)
SHUT, KINK, FLOAT64 = 128.0, 0.56, 1e-12


class Meaning:
    """A text's registers, as the program states them: reads take their tokens alone, products are products.

    BadProgram is raised where the text does not begin with `<s>`, or has a word that the program does not know.
    """

    def __init__(self, program: TokenProgram, words: Sequence[str]) -> None:
        unknown = next((word for word in words if word not in program.numbers), None)
        if unknown is not None or list(words[:1]) != [START]:
            raise BadProgram(f"a text of {program.name} begins with {START} and has no word {unknown!r}")
        self.program, self.count = program, len(words)
        tokens = torch.tensor([program.numbers[word] for word in words], device="cpu")
        self.registers: dict[str, Tensor] = {}
        for name, register in program.registers.items():
            given = program.embedded.get(name)
            self.registers[name] = zeros(len(words), register.size) if given is None else given[tokens]
        for one in program.instructions:
            self._execute(one)

    def value(self, form: AffineForm) -> Tensor:
        """What a form is at every token, (tokens, entries)."""
        parts = (self.registers[name] @ part.mT for name, part in form.parts.items())
        return sum(parts, form.bias.expand(self.count, -1).clone())

    @property
    def scores(self) -> Tensor:
        """The words' scores at every token, (tokens, words)."""
        program = self.program
        total = zeros(self.count, len(program.words))
        said = torch.zeros(len(program.words), dtype=torch.bool, device="cpu")
        for scores in program.scores:
            places = torch.tensor([program.numbers[word] for word in scores.words], device="cpu")
            total[:, places] += self.value(scores.form) @ scores.matrix.mT + scores.offset
            said[places] = True
        total[:, ~said] = -SAID
        return total

    @property
    def next_word(self) -> str:
        """The word that the program writes behind the text."""
        return self.program.words[int(self.scores[-1].argmax())]

    def _execute(self, one: TokenInstruction) -> None:
        value = self.value(one.value)
        if one.where is not None:
            value = one.times * (self.weights(one.where) @ value)
        else:
            left = torch.ones_like(value) if one.left is None else self.value(one.left)
            if one.kind == "abs":
                value = value.abs()
            value = one.times * (left.clamp(min=0) if one.kind == "gate" else left) * value
        (name,) = one.target.reads
        self.registers[name] = self.registers[name] + value @ one.target.parts[name]

    def weights(self, where: Where) -> Tensor:
        """How much every token (a row) reads of every other."""
        places = torch.arange(self.count, device="cpu")
        past = places[None, :] <= places[:, None]
        if isinstance(where, Back):
            return (places[None, :] == (places[:, None] - where.places).clamp(min=0)).double()
        if isinstance(where, Matching):
            # Codes of ±1 are equal where the product of their entries sums up to their number.
            found = (self.value(where.query) @ self.value(where.key).mT > where.key.entries - 0.5) & past
            if where.latest:
                last = (found * (places + 1)).amax(dim=1, keepdim=True)
                return ((places + 1 == last) & found).double()
            return found.double() / found.sum(dim=1, keepdim=True).clamp(min=1)
        among = (self.value(where.among)[:, 0] > 0.5) & past
        scores = self.value(where.query) @ self.value(where.slope).mT + self.value(where.bias).mT
        scores = scores.masked_fill(~among, -torch.inf)
        return torch.softmax(scores, dim=1).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class Routing:
    """One read's certificate: `gap` in nats to the next token, `leak` in weight to all of them."""

    place: str
    gap: float
    leak: float


def routing(compiled: LlamaProgram, spacing: int) -> list[Routing]:
    """Bound what every head takes from tokens that its read does not mean, layer by layer.

    `spacing` is the least distance between two tokens of which the latest is read. Softmax tables mean all their tokens
    and have no bound.
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


def leak(compiled: LlamaProgram, spacing: int) -> float:
    """The most that any read takes of tokens it does not mean."""
    return max((one.leak for one in routing(compiled, spacing)), default=0.0)


class Bounded(Meaning):
    """A text's registers, and how far any correct float32 engine can be from them; `leaked` is from `leak`."""

    def __init__(self, compiled: LlamaProgram, words: Sequence[str], leaked: float) -> None:
        self.errors: dict[str, Tensor] = {}
        self.leaked, self.kind = leaked, torch.float32
        self.writes = Counter(one.written for one in compiled.program.instructions)
        super().__init__(compiled.program, words)

    def off(self, form: AffineForm) -> Tensor:
        """How far a form can be off, (tokens, entries)."""
        error = zeros(self.count, form.entries)
        terms, size = 1, form.bias.abs()
        for name, part in form.parts.items():
            terms += int((part != 0).sum(dim=1).max())
            held = self._error(name)
            error = error + held @ part.abs().mT
            size = size + (self.registers[name].abs() + held) @ part.abs().mT
        return error + size * (0.0 if self._exact(form) else gamma(terms + 2, self.kind))

    def _error(self, name: str) -> Tensor:
        """Of a register as it stands; before the first write a word's value, rounded once."""
        held = self.registers[name]
        return self.errors[name] if name in self.errors else (held.float().double() - held).abs()

    @staticmethod
    def _exact(form: AffineForm) -> bool:
        """Whether each entry is one register's entry, times a power of two: nothing is rounded."""
        parts = [part for part in form.parts.values() if bool(part.any())]
        if not parts:
            return bool((torch.frexp(form.bias[form.bias != 0]).mantissa.abs() == 0.5).all())
        if len(parts) > 1 or bool(form.bias.any()) or int((parts[0] != 0).sum(dim=1).max()) > 1:
            return False
        return bool((torch.frexp(parts[0][parts[0] != 0]).mantissa.abs() == 0.5).all())

    def _execute(self, one: TokenInstruction) -> None:
        value, error = self.value(one.value), self.off(one.value)
        if one.where is not None:
            added, off = self._read(one.where, value, error)
        else:
            left = torch.ones_like(value) if one.left is None else self.value(one.left)
            left_off = torch.zeros_like(value) if one.left is None else self.off(one.left).expand_as(value)
            added, off = self._product(one.kind, left.expand_as(value), left_off, value, error)
        (name,) = one.target.reads
        onto = one.target.parts[name]
        before, earlier = self.registers[name], self._error(name)
        super()._execute(one)
        written = abs(one.times) * (added + off) @ onto.abs()
        new = abs(one.times) * (off + (0.0 if one.times == 1 else unit(self.kind)) * added) @ onto.abs()
        if name not in self.errors:
            written = written + before.abs()
        alone = self.writes[name] == 1 and not before.any()
        rounds = 0.0 if alone else gamma(2 * self.writes[name] + 4, self.kind)
        self.errors[name] = earlier + new + (rounds + FLOAT64) * written

    def _read(self, where: Where, value: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Absolute values that are read, and how far they can be off."""
        weights, meant = self.weights(where), value.abs() + error
        count = int((weights > 0).sum(dim=1).max())
        sure = not isinstance(where, Table) and (count <= 1 or (isinstance(where, Matching) and where.equal))
        most = 2 * self.leaked * meant.cummax(dim=0).values
        rounded = gamma(count + 8, self.kind) * (weights @ meant) if count > 1 else 0.0
        off = weights @ error + most + rounded
        return weights @ value.abs(), off if sure else torch.full_like(off, torch.inf)

    def _product(self, kind: str, x: Tensor, x_off: Tensor, y: Tensor, y_off: Tensor) -> tuple[Tensor, Tensor]:
        u, size = unit(self.kind), (x.abs() + x_off) * (y.abs() + y_off)
        off = 2.2 * (x.abs() * y_off + y.abs() * x_off + x_off * y_off) + 12 * u * size
        if kind in ("gate", "abs"):
            gate, gate_off, other = (x, x_off, y.abs() + y_off) if kind == "gate" else (y, y_off, x.abs() + x_off)
            half = ((gate != 0) | (gate_off != 0)) & (gate.abs() - gate_off < SHUT / GATE)
            off = off + half * KINK / GATE * other
        return x.abs() * y.abs(), off
