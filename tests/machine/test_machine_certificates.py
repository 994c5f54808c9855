"""Certificates over random shapes, scales and neighbours: no draw, corner or one-signed input may break one."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from emulon.machine import Average, Lookup, Register, RegisterProgram

KINDS = ["mov", "mean", "aff", "in place", "dot", "mul", "div"]


def append(kind: str, program: RegisterProgram, a: Register, b: Register, c: Register, centre: float) -> Register:
    """One instruction of this kind on the inputs a and b; c + centre is positive."""
    target = {"dot": (1, 1), "mul": (a.size, b.size), "in place": None}.get(kind, a.shape)
    out = a if target is None else program.register("out", target)
    if kind == "mov":
        program.mov(out, a, at=Lookup("previous", (None, *range(1, program.tokens))))
    elif kind == "mean":
        program.mov(out, a, at=Average("all", tuple(range(1, program.tokens + 1))))
    elif kind == "aff":
        program.aff(out, 3.0 * a - 0.1 * b + 0.5)
    elif kind == "in place":
        program.mul(a, a - b, c)
    elif kind == "dot":
        program.dot(out, a, b)
    elif kind == "mul":
        program.mul(out, a, b.T)
    else:
        program.div(out, a, c + centre)
    return out


def exact(kind: str, a: Tensor, b: Tensor, c: Tensor, centre: float) -> Tensor:
    count = torch.arange(1, a.shape[1] + 1)[:, None]
    return {
        "mov": lambda: torch.cat([torch.zeros_like(a[:, :1]), a[:, :-1]], dim=1),
        "mean": lambda: a.cumsum(1) / count,
        "aff": lambda: 3 * a - 0.1 * b + 0.5,
        "in place": lambda: (a - b) * c,
        "dot": lambda: (a * b).sum(-1, keepdim=True),
        "mul": lambda: (a[..., None] * b[..., None, :]).flatten(-2),
        "div": lambda: a / (c + centre),
    }[kind]()


@pytest.mark.parametrize("seed", range(28))
def test_random_domains_never_break_the_certificate(seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind, dtype = KINDS[seed % len(KINDS)], torch.float64 if seed % 2 else torch.float32
    size, tokens, ratio, least = (
        draw.choice([1, 5, 12]),
        draw.choice([2, 9, 30]),
        draw.uniform(1.5, 50),
        draw.uniform(0.01, 5),
    )
    program = RegisterProgram(kind, tokens)
    a = program.input("a", size, bound=10 ** draw.uniform(-3, 3))
    b = program.input("b", size, bound=10 ** draw.uniform(-3, 3))
    c = program.input("c", bound=(ratio - 1) / 2 * least)
    program.input("neighbour", 4, bound=10 ** draw.uniform(-3, 3))
    centre = (ratio + 1) / 2 * least
    model = program.returns(append(kind, program, a, b, c, centre)).compile(dtype)
    worst = largest = 0.0
    for signs in (lambda v: v, torch.sign, torch.ones_like):
        inputs = {
            name: (
                reach.peak * signs(2 * torch.rand(40, tokens, program.registers[name].size, dtype=torch.float64) - 1)
            )
            for name, reach in program.inputs.items()
        }
        inputs = {name: values.to(dtype) for name, values in inputs.items()}
        wanted = exact(kind, *(inputs[name].double() for name in "abc"), centre)
        worst = max(worst, model.certificate.verify(model.run(**inputs)[program.output.name], wanted))
        largest = max(largest, wanted.abs().max().item())
    assert model.certificate.bound < float("inf")
    assert worst <= largest * (1e-9 if dtype == torch.float64 else 1e-3)
