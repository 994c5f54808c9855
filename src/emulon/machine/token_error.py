"""How far a compiled token program can be from its meaning on one text, in float32 and whatever the order of sums.

Claim. At every token of the text, every register of the network is within `errors` of what `Meaning` says.
Assumes an engine as `token_routing.ASSUMES` says, silu within 4u of its value and equal to z or 0 beyond |z| = 128, and
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

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.machine.instruction import AffineForm
from emulon.machine.targets.llama import LlamaProgram
from emulon.machine.token_layers import GATE
from emulon.machine.token_program import Matching, Table, TokenInstruction, Where
from emulon.machine.token_routing import routing
from emulon.machine.token_semantics import Meaning

SHUT, KINK, FLOAT64 = 128.0, 0.56, 1e-12


def leak(compiled: LlamaProgram, spacing: int) -> float:
    """The most that any read takes of tokens it does not mean; see `token_routing`."""
    return max((one.leak for one in routing(compiled, spacing)), default=0.0)


class Bounded(Meaning):
    """A text's registers and how far any correct float32 engine can be from them.

    Args:
        compiled: A compiled token program.
        words: The text, beginning with `<s>`.
        leaked: From `leak`.

    Example:
        >>> Bounded(compiled, ["<s>", "7"], leak(compiled, spacing=4)).errors["number"]
    """

    def __init__(self, compiled: LlamaProgram, words: Sequence[str], leaked: float) -> None:
        self.errors: dict[str, Tensor] = {}
        self.leaked, self.kind = leaked, torch.float32
        self.writes = Counter(one.written for one in compiled.program.instructions)
        super().__init__(compiled.program, words)

    def off(self, form: AffineForm) -> Tensor:
        """How far a form can be off, (tokens, entries)."""
        error = torch.zeros(self.count, form.entries, dtype=torch.float64, device="cpu")
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
