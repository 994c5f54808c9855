"""One table of single instructions, run at every level: exact → float64 weights → float32 weights → GPT-2."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.machine import Average, Invariant, Lookup, Matched, Register, RegisterProgram

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
