"""What cannot be right is refused before any weight is built, with the instruction named."""

from __future__ import annotations

import pytest
import torch

from emulon.core.errors import BadShape
from emulon.machine import Average, BadProgram, Invariant, Lookup, RegisterProgram, compiler


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a layer is an error in this file."""

    def build(*_: object) -> None:
        raise AssertionError("a weight was built")

    monkeypatch.setattr(compiler.LayerBuilder, "build", build)


def refused(program: RegisterProgram, *parts: str) -> None:
    with pytest.raises(BadProgram) as refusal:
        program.compile()
    for part in parts:
        assert part in str(refusal.value)


def test_reading_an_unwritten_register() -> None:
    program = RegisterProgram("p", 3)
    a, b, c = program.input("a", bound=1.0), program.register("b"), program.register("c")
    program.dot(c, a, b)
    refused(program, "instruction 1 (dot c ← a · b)", "reads b", "nothing has written")


def test_overlapping_writes_in_one_layer() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    with program.together():
        program.aff(b, a + 1.0)
        program.mul(b, a, a)
    refused(program, "instruction 2 (mul b ← a × a)", "overlap", "instruction 1 (aff b ← a + 1)")


def test_a_write_that_is_lost_under_another() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.aff(b, a + 1.0)
    program.aff(b, 2.0 * a)
    refused(program, "instruction 2", "overlaps the write of instruction 1")


def test_reading_in_the_layer_that_writes() -> None:
    program = RegisterProgram("p", 3)
    a, b, c = program.input("a", bound=1.0), program.register("b"), program.register("c")
    with program.together():
        program.aff(b, a + 1.0)
        program.aff(c, 2.0 * b)
    refused(program, "instruction 2 (aff c ← 2·b)", "in the same layer")


def test_leaving_a_declared_domain() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", 4, bound=2.0), program.register("b", bound=10.0)
    program.dot(b, a, a)
    refused(program, "instruction 1 (dot b ← a · a)", "can reach 16", "|·| ≤ 10")


def test_dividing_by_what_can_be_zero() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=2.0), program.register("b")
    program.div(b, a, a + 1.0)
    refused(program, "instruction 1 (div b ← a / (a + 1))", "must be > 0")


def test_dividing_in_place() -> None:
    program = RegisterProgram("p", 3)
    a = program.input("a", bound=2.0)
    with pytest.raises(BadProgram, match="writes what it reads"):
        program.div(a, a, a + 3.0)


def test_growing_beyond_the_dtype() -> None:
    program = RegisterProgram("p", 3)
    a = program.input("a", bound=1e9)
    for _ in range(5):
        program.mul(a, a, a)
    refused(program, "instruction", "beyond what torch.float64 can carry")


def test_writing_a_constant() -> None:
    program = RegisterProgram("p", 3)
    c = program.constant("c", torch.ones(3, 1))
    program.aff(c, 2.0 * c)
    refused(program, "instruction 1", "which is a constant")


def test_a_claim_that_holds_for_nothing() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.aff(b, a + 0.0, invariant=Invariant("wrong", low=5.0))
    refused(program, "instruction 1", "which is empty")


def test_reading_the_future_or_by_a_map_of_another_length() -> None:
    with pytest.raises(BadProgram, match="token 1 cannot read token 2"):
        Lookup("next", (2, 3, None))
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.mov(b, a, at=Lookup("short", (None, 1)))
    refused(program, "instruction 1", "map of 2 tokens")
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.mov(b, a, at=Average("beyond", (2, 9)))
    refused(program, "instruction 1", "outside 1..3")


def test_a_register_of_another_program() -> None:
    program, other = RegisterProgram("p", 3), RegisterProgram("q", 3)
    b, foreign = program.register("b"), other.input("foreign", bound=1.0)
    program.aff(b, foreign + 1.0)
    refused(program, "instruction 1", "no register of program p")


def test_nothing_to_do_or_nothing_to_return() -> None:
    refused(RegisterProgram("empty", 3), "no instruction")
    program = RegisterProgram("p", 3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.aff(a, 2.0 * a)
    refused(program.returns(b), "returns b")


def test_shapes_are_checked_as_the_program_is_written() -> None:
    program = RegisterProgram("p", 3)
    a, b = program.input("a", 3, bound=1.0), program.register("b", 2)
    with pytest.raises(BadShape, match="b has shape"):
        program.aff(b, a)
    with pytest.raises(BadShape, match="cannot hold"):
        program.mul(b, a, a)
    with pytest.raises(BadShape, match="cannot be added"):
        program.aff(b, b + a)
    with pytest.raises(BadShape, match="products of registers are dot and mul"):
        a * a
    with pytest.raises(BadProgram, match="already has a register"):
        program.register("a")
