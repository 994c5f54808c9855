"""Every refusal comes before a weight is built, with the instruction named."""

from __future__ import annotations

import pytest
import torch

from emulon.core.errors import BadShape
from emulon.machine import Average, BadProgram, Invariant, Lookup, Matched, RegisterProgram, layer


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building a layer is an error in this file."""

    def build(*_: object) -> None:
        raise AssertionError("a weight was built")

    monkeypatch.setattr(layer.LayerBuilder, "build", build)


def two_writes(p, a, b, c):
    with p.together():
        p.aff(b, a + 1.0)
        p.mul(b, a, a)


def a_write_lost(p, a, b, c):
    p.aff(b, a + 1.0)
    p.aff(b, 2.0 * a)


def read_as_written(p, a, b, c):
    with p.together():
        p.aff(b, a + 1.0)
        p.aff(c, 2.0 * b)


def growth(p, a, b, c):
    for _ in range(8):
        p.mul(a, 100.0 * a, 100.0 * a)


def of_another_program(p, a, b, c):
    p.aff(b, RegisterProgram("q", 3).input("foreign", bound=1.0) + 1.0)


def returned_unwritten(p, a, b, c):
    p.aff(a, 2.0 * a)
    p.returns(b)


def a_constant(p, a, b, c):
    one = p.constant("one", torch.ones(3, 1))
    p.aff(one, 2.0 * one)


def matched(reach):
    return Matched("alike", (1, 2, 3), True, "a", "a", 1, 0.75, reach)


REFUSED = {
    "unwritten": (lambda p, a, b, c: p.dot(c, a, b), "instruction 1 (dot c ← a · b)", "reads b", "nothing has written"),
    "two writes": (two_writes, "instruction 2 (mul b ← a × a)", "overlap", "instruction 1 (aff b ← a + 1)"),
    "a write lost": (a_write_lost, "instruction 2", "overlaps the write of instruction 1"),
    "read as written": (read_as_written, "instruction 2 (aff c ← 2·b)", "in the same layer"),
    "division by zero": (lambda p, a, b, c: p.div(b, a, a + 1.0), "instruction 1 (div b ← a / (a + 1))", "must be > 0"),
    "in place": (lambda p, a, b, c: p.div(a, a, a + 3.0), "writes what it reads"),
    "growth": (growth, "instruction", "beyond what torch.float64 can carry"),
    "a constant": (a_constant, "instruction 1", "which is a constant"),
    "an empty range": (
        lambda p, a, b, c: p.aff(b, a + 0.0, invariant=Invariant("wrong", low=5.0)),
        "instruction 1",
        "is empty",
    ),
    "another length": (lambda p, a, b, c: p.mov(b, a, at=Lookup("short", (None, 1))), "instruction 1", "map of 2"),
    "beyond the tokens": (lambda p, a, b, c: p.mov(b, a, at=Average("no", (2, 9))), "instruction 1", "outside 1..3"),
    "the future": (lambda p, a, b, c: Lookup("next", (2, 3, None)), "token 1 cannot read token 2"),
    "another program": (of_another_program, "instruction 1", "no register of program p"),
    "nothing": (lambda p, a, b, c: None, "no instruction"),
    "an unwritten result": (returned_unwritten, "returns b"),
    "too alike": (lambda p, a, b, c: p.mov(b, a, at=matched(2.9)), "can reach 3", "made for 2.9"),
    "no limit": (lambda p, a, b, c: p.clip(b, a, 0.0), "positive limit, got 0"),
    "a second name": (lambda p, a, b, c: p.register("a"), "already has a register"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_program_is_refused_with_its_instruction(case: str) -> None:
    write, *parts = REFUSED[case]
    program = RegisterProgram("p", 3)
    a, b, c = program.input("a", bound=2.0), program.register("b"), program.register("c")
    with pytest.raises(BadProgram) as refusal:
        write(program, a, b, c)
        program.compile()
    for part in parts:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda p, a, b: p.aff(b, a), "b has shape"),
        (lambda p, a, b: p.clip(b, a, 1.0), "b has shape"),
        (lambda p, a, b: p.mul(b, a, a), "cannot hold"),
        (lambda p, a, b: p.div(b, a, a), "cannot hold"),
        (lambda p, a, b: p.aff(b, b + a), "cannot be added"),
        (lambda p, a, b: a * a, "products of registers are dot and mul"),
        (lambda p, a, b: p.register("c", (2, 3), symmetric=True), "cannot be symmetric"),
    ],
)
def test_shapes_are_checked_as_the_program_is_written(write, says: str) -> None:
    program = RegisterProgram("p", 3)
    with pytest.raises(BadShape, match=says):
        write(program, program.input("a", 3, bound=1.0), program.register("b", 2))
