"""Single instructions as programs, and the networks that programs are run in: ours and those of transformers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from emulon.certify import Certificate
from emulon.machine import Average, Invariant, Lookup, Matched, Register, RegisterProgram, to_gpt2
from emulon.machine.targets.llama_registers import compile_registers
from emulon.machine.transformer import result_name
from emulon.planted.architecture import ARCHITECTURES

TOKENS = 6
PREVIOUS, EVEN = Lookup("previous", (None, *range(1, TOKENS))), Average("even", (2, 4, 6))
SECOND = Lookup("token 2", (None, *(2 for _ in range(TOKENS - 1))))
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """`write` appends an instruction that writes a new register of shape `into`, or the input of that name."""

    name: str
    inputs: dict[str, tuple[int | tuple[int, int], float]]
    into: int | tuple[int, int] | str
    write: Callable[..., None]
    positive: float | None = None  # the least value of the input b

    def program(self) -> RegisterProgram:
        program = RegisterProgram(self.name, TOKENS)
        registers = {name: program.input(name, shape, bound=bound) for name, (shape, bound) in self.inputs.items()}
        if isinstance(self.into, str):
            target = registers[self.into]
        else:
            target = program.register("c", self.into, symmetric="symmetric" in self.name)
        self.write(program, target, **registers)
        return program.returns(target)

    def scaled(self, draw: random.Random) -> Case:
        """On inputs of other sizes, but for a divisor."""
        kept = "b" if self.positive else ""
        sizes = {name: bound * (name == kept or 10 ** draw.uniform(-3, 3)) for name, (_, bound) in self.inputs.items()}
        return replace(self, inputs={name: (shape, sizes[name]) for name, (shape, _) in self.inputs.items()})

    def draw(self, batch: int) -> dict[str, Tensor]:
        """Float32 numbers: half are drawn from the whole domain, half are its corners, where products are largest."""
        out = {}
        for name, (shape, bound) in self.inputs.items():
            size = shape if isinstance(shape, int) else math.prod(shape)
            values = 2 * torch.rand(batch, TOKENS, size, dtype=torch.float64) - 1
            values[::2] = values[::2].sign()
            if self.positive and name == "b":
                values = (self.positive + (bound - self.positive) * (values + 1) / 2) / bound
            out[name] = (bound * values).float()
        return out


def divided(program: RegisterProgram, c: Register, a: Register, b: Register) -> None:
    positive = program.register("positive")
    program.aff(positive, b, invariant=Invariant("drawn so", low=0.5))
    program.div(c, a, positive)


def alike(program: RegisterProgram, c: Register, a: Register, b: Register) -> None:
    program.mov(c, b, at=Matched("like", (2, 3, 6), True, "a", "a", a.size, 1.5, 1.5 * 4 * 1.01))


FOUR = {"a": (4, 7.0)}
CASES = [
    Case("mov", FOUR, 4, lambda p, c, a: p.mov(c, a, at=PREVIOUS)),
    Case("mov from one token", FOUR, 4, lambda p, c, a: p.mov(c, a, at=SECOND)),
    Case("mov of a mean", FOUR, 4, lambda p, c, a: p.mov(c, a, at=EVEN)),
    Case("aff", {**FOUR, "b": (4, 0.1)}, 4, lambda p, c, a, b: p.aff(c, 2.0 * a - 0.5 * b + 1.0)),
    Case("aff in place", {**FOUR, "b": (4, 3.0)}, "a", lambda p, c, a, b: p.aff(a, 0.5 * a - b)),
    Case("dot", {"a": (8, 7.0), "b": (8, 0.1)}, 1, lambda p, c, a, b: p.dot(c, a, b)),
    Case("mul", {"a": ((3, 4), 70.0), "b": ((4, 2), 0.1)}, (3, 2), lambda p, c, a, b: p.mul(c, a, b)),
    Case("mul, symmetric", {"a": (5, 3.0)}, (5, 5), lambda p, c, a: p.mul(c, a, a.T)),
    Case("mul in place", {"a": (4, 3.0), "b": (1, 100.0)}, "a", lambda p, c, a, b: p.mul(a, a, b)),
    Case("clip", {"a": (4, 2.0), "b": (4, 0.5)}, 4, lambda p, c, a, b: p.clip(c, a - 2.0 * b, 0.7)),
    Case("clip in place", {"a": (3, 100.0)}, "a", lambda p, c, a: p.clip(a, 3.0 * a, 40.0)),
    Case("mov of a mean of what is alike", {"a": (4, 1.0), "b": (1, 7.0)}, 1, alike),
    Case("div", {**FOUR, "b": (1, 20.0)}, 4, divided, positive=0.5),
]


def every_operator() -> RegisterProgram:
    """Look-up, mean, product, clip and divisions, of the same register in turn."""
    program = RegisterProgram("every operator", tokens=4)
    a, b = program.input("a", 2, bound=1.0), program.input("b", bound=1.0)
    before, mean, square, ratio = (program.register(name) for name in ("before", "mean", "square", "ratio"))
    program.mov(before, b, at=Lookup("before", (None, 1, 2, 3)))
    program.mov(mean, b, at=Average("all", (1, 2, 3, 4)))
    program.dot(square, a, a, invariant=Invariant("a square", low=0.0, norm=2.0))
    program.div(ratio, before + mean, 1.0 + square, invariant=Invariant("|before| + |mean|", norm=2.0))
    program.clip(square, ratio, 0.25)
    program.div(mean, square, 3.0 + ratio)
    program.div(square, mean, 4.0 + ratio)
    program.mul(ratio, mean, 0.3 * before)
    return program.returns(ratio)


Held = tuple[dict[str, Tensor], Mapping[str, Certificate]]


def in_ours(program: RegisterProgram, inputs: Inputs, dtype: torch.dtype) -> Held:
    """(every register at the end in float64, certificates), like all that follow."""
    model = program.compile(dtype)
    run = model.run(**inputs)
    return {name: run[name].double() for name in program.registers}, model.certificates


def in_gpt2(program: RegisterProgram, inputs: Inputs, dtype: torch.dtype) -> Held:
    pytest.importorskip("transformers", reason="the GPT-2 export needs transformers (pip install 'emulon[hf]')")
    model = program.compile(dtype)
    hidden = to_gpt2(model)(inputs_embeds=model.embed(**inputs)).last_hidden_state
    return {name: held.double() for name, held in model.registers(hidden).items()}, model.certificates


def in_llama(program: RegisterProgram, inputs: Inputs, dtype: torch.dtype) -> Held:
    pytest.importorskip("transformers", reason="the target is a stock Llama (pip install 'emulon[hf]')")
    machine, llama = compile_registers(program), ARCHITECTURES["llama"]
    layout = machine.layout
    state = llama.state(llama.weights_of(machine), layout.read(result_name(program))[:1], dtype)
    embedded = machine.positions.to(dtype).expand(*next(iter(inputs.values())).shape[:-2], -1, -1).clone()
    for name, values in inputs.items():
        embedded[..., 1:, :] += values @ layout.write(name).to(dtype)
    hidden = llama.load(state, machine.heads)(inputs_embeds=embedded).last_hidden_state[:, 1:].double()
    held = {name: one.expand(hidden @ layout.read(name).mT) for name, one in program.registers.items()}
    return held, machine.certificates


# The network, its dtype, and how far off a result may be, relative to the largest that the domain allows.
NETWORKS = {
    "ours in float64": (in_ours, torch.float64, 1e-9),
    "ours in float32": (in_ours, torch.float32, 1e-3),
    "GPT-2": (in_gpt2, torch.float64, 1e-9),
    "Llama": (in_llama, torch.float32, 1e-3),
}
