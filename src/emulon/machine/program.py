"""A program: registers and a list of instructions. `print(program)` shows it, `compile` makes the transformer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.certify.domain import require_finite
from emulon.core.errors import BadProgram, BadShape
from emulon.machine.instruction import (
    AffineForm,
    Instruction,
    Invariant,
    Raw,
    Register,
    additive,
    constant,
    product,
    require_shape_of,
)
from emulon.machine.ranges import EDGE, Range
from emulon.machine.tokens import Average, Interleaved, Lookup, Where, here

if TYPE_CHECKING:
    from emulon.machine.transformer import Transformer


def validate(program: RegisterProgram) -> None:
    """Reads of unwritten registers, writes that overlap or are lost, foreign registers, maps of another length."""
    written = set(program.known)
    unread: dict[str, Instruction] = {}
    for instruction in program.instructions:
        _belongs(program, instruction)
        for name in instruction.reads:
            if name not in written:
                raise BadProgram(
                    f"{instruction.label} reads {name}, which nothing has written; write it or give it an initial value"
                )
            unread.pop(name, None)
        target = instruction.target.name
        if target in program.constants:
            raise BadProgram(f"{instruction.label} writes {target}, which is a constant; use another register")
        if target in unread:
            raise BadProgram(
                f"{instruction.label} overlaps the write of {unread[target].label}, which nothing has read"
            )
        written.add(target)
        unread[target] = instruction
    _groups(program)
    if program.output is not None and program.output.name not in written:
        raise BadProgram(f"program {program.name} returns {program.output.name}, which nothing has written")
    if not program.instructions:
        raise BadProgram(f"program {program.name} has no instruction")


def _belongs(program: RegisterProgram, instruction: Instruction) -> None:
    for name in (*instruction.reads, instruction.target.name):
        if name not in program.registers:
            raise BadProgram(f"{instruction.label} uses {name}, which is no register of program {program.name}")
    where = instruction.where
    if isinstance(where, Lookup) and len(where.table) != program.tokens:
        raise BadProgram(
            f"{instruction.label} reads by a map of {len(where.table)} tokens; the program has {program.tokens}"
        )
    if isinstance(where, Average) and not all(0 < member <= program.tokens for member in where.members):
        raise BadProgram(f"{instruction.label} averages tokens outside 1..{program.tokens}")


def _groups(program: RegisterProgram) -> None:
    for earlier, later in combinations([one for one in program.instructions if one.group is not None], 2):
        if earlier.group == later.group and earlier.target.name in later.reads:
            raise BadProgram(
                f"{later.label} reads {earlier.target.name}, which {earlier.label} writes in the same layer"
            )


Shape = int | tuple[int, int]


class RegisterProgram:
    """Registers and instructions for sequences of `tokens` tokens (a start token, all zeros, is put before them).

    Args:
        name: What it is called in messages.
        tokens: How many tokens a sequence has.

    >>> program = RegisterProgram("double", tokens=3)
    >>> a, b = program.input("a", bound=1.0), program.register("b")
    >>> program.aff(b, 2.0 * a + 1.0)
    >>> print(program)
    double: 3 tokens, 1 instruction
      a       input, |·| ≤ 1
      b       register
      1  aff  b ← 2·a + 1
    """

    def __init__(self, name: str, tokens: int) -> None:
        if tokens < 1:
            raise BadProgram(f"program {name} needs at least one token, got {tokens}")
        self.name, self.tokens = name, tokens
        self.registers: dict[str, Register] = {}
        self.inputs: dict[str, Range] = {}
        self.constants: dict[str, Tensor] = {}
        self.initial: dict[str, Tensor] = {}
        self.known: dict[str, Range] = {}
        self.instructions: list[Instruction] = []
        self.here = here(tokens)
        self.prompt: Interleaved | None = None
        self.output: Register | None = None
        self._group: int | None = None

    @classmethod
    def online(cls, name: str, domain: Domain) -> tuple[RegisterProgram, Interleaved, Register, Register]:
        """A program over the tokens x₁, y₁, x₂, …, x_n of the paper, with input registers x and y."""
        prompt = Interleaved(domain.features, domain.samples)
        program = cls(name, prompt.tokens)
        program.prompt = prompt
        x = program.input("x", domain.features, bound=domain.x, norm=domain.norm)
        y = program.input("y", bound=domain.y)
        return program, prompt, x, y

    # Registers

    def input(self, name: str, shape: Shape = 1, *, bound: float, norm: float | None = None) -> Register:
        """A register that the prompt fills; |entry| ≤ bound, and 2-norm ≤ norm, are checked on the data."""
        register = self._add(name, shape, symmetric=False)
        widest = math.sqrt(register.size) * bound
        reach = Range.of(-bound, bound, widest if norm is None else norm, register.size)
        self.inputs[name], self.known[name] = reach, reach.widened(EDGE * reach.peak)
        return register

    def register(
        self,
        name: str,
        shape: Shape = 1,
        *,
        initial: Tensor | None = None,
        symmetric: bool = False,
    ) -> Register:
        """A register; `initial` is its value at every token."""
        register = self._add(name, shape, symmetric=symmetric)
        if initial is not None:
            stored = initial.to(torch.float64).reshape(-1)[register.stored]
            self.initial[name] = stored
            self.known[name] = _range_of_values(stored.expand(self.tokens, -1))
        return register

    def constant(self, name: str, values: Tensor) -> Register:
        """A register (tokens, size) that no instruction may write; it comes with the position embedding."""
        if values.ndim != 2 or values.shape[0] != self.tokens:
            raise BadProgram(f"constant {name} has shape {tuple(values.shape)}, wanted ({self.tokens}, size)")
        register = self._add(name, values.shape[1], symmetric=False)
        self.constants[name] = values.to(torch.float64)
        self.known[name] = _range_of_values(self.constants[name])
        return register

    def _add(self, name: str, shape: Shape, *, symmetric: bool) -> Register:
        if name in self.registers:
            raise BadProgram(f"program {self.name} already has a register called {name}")
        full = (shape, 1) if isinstance(shape, int) else shape
        self.registers[name] = Register(name, full, symmetric=symmetric)
        return self.registers[name]

    # Instructions

    def mov(self, target: Register, source: Register, *, at: Where, invariant: Invariant | None = None) -> None:
        """target ← source, as it stands at the token (or averaged over the tokens) that `at` names."""
        text = f"{target.name} ← {source.text} @ {at.name}"
        self._append("mov", target, additive(target, source, None), at, text, invariant=invariant)

    def aff(
        self,
        target: Register,
        value: AffineForm | float | Tensor,
        *,
        at: Where | None = None,
        plus: AffineForm | None = None,
        invariant: Invariant | None = None,
    ) -> None:
        """target ← a linear expression, read at `at` (here by default), plus another of the token's own registers."""
        expression = value if isinstance(value, AffineForm) else constant(value, target.shape)
        text = f"{target.name} ← {expression.text}" + ("" if at is None else f" @ {at.name}")
        text += "" if plus is None else f" + {plus.text}"
        self._append("aff", target, additive(target, expression, plus), at or self.here, text, invariant=invariant)

    def dot(self, target: Register, left: AffineForm, right: AffineForm, *, invariant: Invariant | None = None) -> None:
        """target ← left · right, two columns."""
        self._product("dot", target, left.T, right, f"{left.factor_text} · {right.factor_text}", invariant)

    def mul(self, target: Register, left: AffineForm, right: AffineForm, *, invariant: Invariant | None = None) -> None:
        """target ← left × right, a matrix product; vectors are columns, `.T` makes a row."""
        self._product("mul", target, left, right, f"{left.factor_text} × {right.factor_text}", invariant)

    def div(
        self, target: Register, numerator: AffineForm, divisor: AffineForm, *, invariant: Invariant | None = None
    ) -> None:
        """target ← numerator / divisor, a positive scalar: LayerNorm does it (Lemma 7)."""
        if target.name in numerator.reads + divisor.reads:
            raise BadProgram(
                f"div {target.name} ← {numerator.text} / {divisor.text} writes what it reads; use two registers"
            )
        if numerator.shape != target.shape or divisor.shape != (1, 1):
            raise BadShape(
                f"{target.name} {target.shape} cannot hold {numerator.text} {numerator.shape} / {divisor.text}"
            )
        raw = Raw("÷", numerator.take(target.stored), divisor)
        text = f"{target.name} ← {numerator.factor_text} / {divisor.factor_text}"
        self._append("div", target, raw, self.here, text, invariant=invariant)

    def clip(self, target: Register, value: AffineForm, limit: float, *, invariant: Invariant | None = None) -> None:
        """target ← value, every entry of it clipped at ±limit: two kinks of a steep GELU each."""
        require_shape_of(target, value)
        if not 0 < limit < math.inf:
            raise BadProgram(f"clip of {value.text} needs a positive limit, got {limit}")
        raw = Raw("⊓", value.take(target.stored), None, limit=limit)
        text = f"{target.name} ← clip({value.text}, ±{limit:.6g})"
        self._append("clip", target, raw, self.here, text, invariant=invariant)

    def _product(
        self, name: str, target: Register, left: AffineForm, right: AffineForm, text: str, invariant: Invariant | None
    ) -> None:
        raw, text = product(target, left, right), f"{target.name} ← {text}"
        self._append(name, target, raw, self.here, text, factors=(left, right), invariant=invariant)

    def _append(
        self,
        name: str,
        target: Register,
        raw: Raw,
        where: Where,
        text: str,
        *,
        factors: tuple[AffineForm, ...] = (),
        invariant: Invariant | None = None,
    ) -> None:
        number = len(self.instructions) + 1
        self.instructions.append(Instruction(number, name, target, raw, where, text, factors, invariant, self._group))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Instructions inside run in one layer; they may not write the same register, nor read what another writes."""
        self._group = len(self.instructions)
        try:
            yield
        finally:
            self._group = None

    def returns(self, output: Register) -> RegisterProgram:
        """Name the register that holds the prediction, and give the program back."""
        self.output = output
        return self

    def compile(self, dtype: torch.dtype = torch.float64) -> Transformer:
        """The frozen transformer that runs this program; its certificate holds in this dtype."""
        from emulon.machine.transformer import compile_program

        return compile_program(self, dtype)

    def __str__(self) -> str:
        count = len(self.instructions)
        lines = [f"{self.name}: {self.tokens} tokens, {count} instruction{'s' if count != 1 else ''}"]
        for name, register in self.registers.items():
            lines.append(f"  {name:6s}  {self._describe(register)}")
        width = len(str(count))
        lines += [f"  {i.number:{width}d}  {i}" for i in self.instructions]
        return "\n".join(lines)

    def _describe(self, register: Register) -> str:
        rows, columns = register.shape
        shape = "" if register.size == 1 else f"[{rows}]" if columns == 1 else f"[{rows}×{columns}]"
        kind = "symmetric " if register.symmetric else ""
        if register.name in self.inputs:
            reach = self.inputs[register.name]
            extra = f", ‖·‖ ≤ {reach.norm:.4g}" if register.size > 1 else ""
            return f"input{shape}, |·| ≤ {reach.peak:.4g}{extra}"
        role = "constant" if register.name in self.constants else "register"
        start = ", starts filled" if register.name in self.initial else ""
        end = ", the output" if register is self.output else ""
        return f"{kind}{role}{shape}{start}{end}"


def _range_of_values(values: Tensor) -> Range:
    require_finite(values=values)
    norm = float(torch.linalg.vector_norm(values, dim=-1).max())
    return Range(float(values.min()), float(values.max()), norm)
