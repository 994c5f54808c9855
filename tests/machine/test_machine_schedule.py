"""Instructions that do not conflict share layers, and sharing never changes what a program means."""

from __future__ import annotations

import pytest
import torch

from emulon.machine import Lookup, Register, RegisterProgram
from emulon.machine.layout import schedule

TOKENS = 4


def layers_of(program: RegisterProgram) -> list[str]:
    return ["; ".join(str(one.number) for one in layer.instructions) for layer in schedule(program.instructions)]


def two_registers() -> tuple[RegisterProgram, Register, Register]:
    program = RegisterProgram("p", TOKENS)
    return program, program.input("a", 2, bound=1.0), program.input("b", 2, bound=1.0)


def products(p, a, b):
    p.dot(p.register("s"), a, b)
    p.dot(p.register("t"), a, a)


def read_and_product(p, a, b):
    """The attention comes before the MLP: this is RAW with K(i) ≠ i."""
    p.mov(b, a, at=Lookup("previous", (None, 1, 2, 3)))
    p.dot(p.register("s"), a, b)


def dependent_products(p, a, b):
    s = p.register("s")
    p.dot(s, a, b)
    p.mul(p.register("t"), s, s)


def divisions(p, a, b):
    divisor = 1.0 * p.input("c", bound=0.5) + 2.0
    p.div(p.register("d", 2), a, divisor)
    p.div(p.register("e", 2), b, divisor)
    p.dot(p.register("s"), a, b)
    p.div(p.register("f", 2), b, divisor + 1.0)


@pytest.mark.parametrize(
    ("write", "layers"),
    [
        (products, ["1; 2"]),
        (read_and_product, ["1; 2"]),
        (dependent_products, ["1", "2"]),
        (divisions, ["1; 2", "3", "4"]),
    ],
)
def test_instructions_share_a_layer_unless_one_depends_on_the_other(write, layers) -> None:
    program, a, b = two_registers()
    write(program, a, b)
    assert layers_of(program) == layers


def test_a_register_can_be_read_and_overwritten_in_one_layer() -> None:
    """Reads of a phase see the stream before it, so the old value gets away in time."""
    program, a, b = two_registers()
    kept = program.register("kept", 2)
    program.aff(kept, 1.0 * a)
    program.aff(a, 1.0 * b)
    assert layers_of(program) == ["1; 2"]
    inputs = {name: torch.rand(3, TOKENS, 2, dtype=torch.float64) for name in "ab"}
    found = program.compile().run(**inputs)
    assert (found["kept"] - inputs["a"]).abs().max() < 1e-14
    assert (found["a"] - inputs["b"]).abs().max() < 1e-14
