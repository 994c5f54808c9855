"""One table of single instructions, and the networks that programs are run in: ours and those of transformers."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Case:
    """`build` appends the instruction and returns its target; `exact` says what it must hold."""

    name: str
    inputs: dict[str, tuple[int | tuple[int, int], float]]
    build: Callable[..., Register]
    exact: Callable[..., Tensor]
    positive: tuple[str, float] | None = None  # an input, and its least value

    def program(self) -> RegisterProgram:
        program = RegisterProgram(self.name, TOKENS)
        registers = {name: program.input(name, shape, bound=bound) for name, (shape, bound) in self.inputs.items()}
        return program.returns(self.build(program, **registers))

    def scaled(self, draw: random.Random) -> Case:
        """On inputs of other sizes, but for what is divided by."""
        kept = self.positive[0] if self.positive else ""
        sizes = {name: bound * (name == kept or 10 ** draw.uniform(-3, 3)) for name, (_, bound) in self.inputs.items()}
        return replace(self, inputs={name: (shape, sizes[name]) for name, (shape, _) in self.inputs.items()})

    def draw(self, batch: int, dtype: torch.dtype, *, corners: bool) -> dict[str, Tensor]:
        """Uniform draws from the whole domain, or its corners, where products are largest."""
        out = {}
        for name, (shape, bound) in self.inputs.items():
            size = shape if isinstance(shape, int) else shape[0] * shape[1]
            values = 2 * torch.rand(batch, TOKENS, size, dtype=torch.float64) - 1
            values = values.sign() if corners else values
            if self.positive and name == self.positive[0]:
                least = self.positive[1] / bound
                values = least + (1 - least) * (values.abs() if not corners else (values > 0).double())
            out[name] = (bound * values).to(dtype)
        return out


def _mov(program: RegisterProgram, a: Register) -> Register:
    b = program.register("b", a.shape)
    program.mov(b, a, at=Lookup("previous", (None, *range(1, TOKENS))))
    return b


def _fetch(program: RegisterProgram, a: Register) -> Register:
    b = program.register("b", a.shape)
    program.mov(b, a, at=Lookup("token 2", (None, *(2 for _ in range(TOKENS - 1)))))
    return b


def _mean(program: RegisterProgram, a: Register) -> Register:
    b = program.register("b", a.shape)
    program.mov(b, a, at=Average("even", (2, 4, 6)))
    return b


def _exact_mean(a: Tensor) -> Tensor:
    out = torch.zeros_like(a)
    for token in range(1, TOKENS + 1):
        members = [m - 1 for m in (2, 4, 6) if m <= token]
        if members:
            out[:, token - 1] = a[:, members].mean(dim=1)
    return out


def _aff(program: RegisterProgram, a: Register, b: Register) -> Register:
    c = program.register("c", a.shape)
    program.aff(c, 2.0 * a - 0.5 * b + 1.0)
    return c


def _overwrite(program: RegisterProgram, a: Register, b: Register) -> Register:
    program.aff(a, 0.5 * a - b)
    return a


def _dot(program: RegisterProgram, a: Register, b: Register) -> Register:
    c = program.register("c")
    program.dot(c, a, b)
    return c


def _mul(program: RegisterProgram, a: Register, b: Register) -> Register:
    c = program.register("c", (3, 2))
    program.mul(c, a, b)
    return c


def _outer(program: RegisterProgram, a: Register) -> Register:
    c = program.register("c", (a.size, a.size), symmetric=True)
    program.mul(c, a, a.T)
    return c


def _scaled_in_place(program: RegisterProgram, a: Register, b: Register) -> Register:
    program.mul(a, a, b)
    return a


def _clip(program: RegisterProgram, a: Register, b: Register) -> Register:
    c = program.register("c", a.shape)
    program.clip(c, a - 2.0 * b, 0.7)
    return c


def _clip_in_place(program: RegisterProgram, a: Register) -> Register:
    program.clip(a, 3.0 * a, 40.0)
    return a


def _like(program: RegisterProgram, a: Register, b: Register) -> Register:
    c = program.register("c")
    program.mov(c, b, at=Matched("like", (2, 3, 6), True, "a", "a", a.size, 1.5, 1.5 * 4 * 1.01))
    return c


def _exact_like(a: Tensor, b: Tensor) -> Tensor:
    out = torch.zeros_like(b)
    for token in range(2, TOKENS + 1):
        members = [m - 1 for m in (2, 3, 6) if m <= token]
        weights = torch.softmax(1.5 * (a[:, token - 1 : token] * a[:, members]).sum(-1), dim=-1)
        out[:, token - 1, 0] = (weights * b[:, members, 0]).sum(-1)
    return out


def _div(program: RegisterProgram, a: Register, b: Register) -> Register:
    c, positive = program.register("c", a.shape), program.register("positive")
    program.aff(positive, b, invariant=Invariant("drawn so", low=0.5))
    program.div(c, a, positive)
    return c


def _matrices(a: Tensor, b: Tensor) -> Tensor:
    return (a.unflatten(-1, (3, 4)) @ b.unflatten(-1, (4, 2))).flatten(-2)


CASES = [
    Case("mov", {"a": (4, 7.0)}, _mov, lambda a: torch.cat([torch.zeros_like(a[:, :1]), a[:, :-1]], dim=1)),
    Case(
        "mov from one token",
        {"a": (4, 7.0)},
        _fetch,
        lambda a: torch.cat([0 * a[:, :1], a[:, 1:2].expand(-1, 5, -1)], 1),
    ),
    Case("mov of a mean", {"a": (4, 7.0)}, _mean, _exact_mean),
    Case("aff", {"a": (4, 7.0), "b": (4, 0.1)}, _aff, lambda a, b: 2 * a - 0.5 * b + 1),
    Case("aff in place", {"a": (4, 7.0), "b": (4, 3.0)}, _overwrite, lambda a, b: 0.5 * a - b),
    Case("dot", {"a": (8, 7.0), "b": (8, 0.1)}, _dot, lambda a, b: (a * b).sum(-1, keepdim=True)),
    Case("mul", {"a": ((3, 4), 70.0), "b": ((4, 2), 0.1)}, _mul, _matrices),
    Case("mul, symmetric", {"a": (5, 3.0)}, _outer, lambda a: (a[..., None] * a[..., None, :]).flatten(-2)),
    Case("mul in place", {"a": (4, 3.0), "b": (1, 100.0)}, _scaled_in_place, lambda a, b: a * b),
    Case("clip", {"a": (4, 2.0), "b": (4, 0.5)}, _clip, lambda a, b: (a - 2 * b).clamp(-0.7, 0.7)),
    Case("clip in place", {"a": (3, 100.0)}, _clip_in_place, lambda a: (3 * a).clamp(-40.0, 40.0)),
    Case("mov of a mean of what is alike", {"a": (4, 1.0), "b": (1, 7.0)}, _like, _exact_like),
    Case("div", {"a": (4, 7.0), "b": (1, 20.0)}, _div, lambda a, b: a / b, positive=("b", 0.5)),
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


Inputs = Mapping[str, Tensor]
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
