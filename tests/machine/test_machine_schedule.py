"""Instructions that do not conflict share layers, and sharing never changes what a program means."""

from __future__ import annotations

import torch

from emulon.machine import Lookup, Register, RegisterProgram
from emulon.machine.layout import schedule

TOKENS = 4


def layers_of(program: RegisterProgram) -> list[str]:
    return ["; ".join(str(one.number) for one in layer.instructions) for layer in schedule(program.instructions)]


def two_registers() -> tuple[RegisterProgram, Register, Register]:
    program = RegisterProgram("p", TOKENS)
    return program, program.input("a", 2, bound=1.0), program.input("b", 2, bound=1.0)


def test_independent_products_share_a_layer() -> None:
    program, a, b = two_registers()
    program.dot(program.register("s"), a, b)
    program.dot(program.register("t"), a, a)
    assert layers_of(program) == ["1; 2"]


def test_a_read_from_elsewhere_and_a_product_of_it_share_a_layer() -> None:
    """The attention comes before the MLP: this is RAW with K(i) ≠ i."""
    program, a, b = two_registers()
    program.mov(b, a, at=Lookup("previous", (None, 1, 2, 3)))
    program.dot(program.register("s"), a, b)
    assert layers_of(program) == ["1; 2"]


def test_dependent_products_take_two_layers() -> None:
    program, a, b = two_registers()
    s, t = program.register("s"), program.register("t")
    program.dot(s, a, b)
    program.mul(t, s, s)
    assert layers_of(program) == ["1", "2"]


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


def test_divisions_by_the_same_divisor_share_a_layer_and_others_do_not() -> None:
    program, a, b = two_registers()
    divisor = 1.0 * program.input("c", bound=0.5) + 2.0
    program.div(program.register("d", 2), a, divisor)
    program.div(program.register("e", 2), b, divisor)
    program.dot(program.register("s"), a, b)
    program.div(program.register("f", 2), b, divisor + 1.0)
    assert layers_of(program)[:2] == ["1; 2", "3"]
