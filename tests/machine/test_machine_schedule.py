"""Instructions that do not conflict share layers, and sharing never changes what a program means."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from emulon.machine import Lookup, Register, RegisterProgram
from emulon.machine.layout import schedule

TOKENS = 4


def interpret(program: RegisterProgram, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the instructions say, one after the other, on stored entries (batch, tokens, size); no transformer in it."""
    batch = next(iter(inputs.values())).shape[0]
    one = torch.ones(batch, program.tokens, 1, dtype=torch.float64)
    held = dict(inputs) | {name: one * stored for name, stored in program.initial.items()}

    def value(expression) -> Tensor:
        out = one * expression.bias
        for name, part in expression.parts.items():
            out = out + held[name] @ part.mT
        return out

    for instruction in program.instructions:
        raw, read = instruction.raw, value(instruction.raw.read)
        if raw.operator == "+":
            if isinstance(instruction.where, Lookup):
                before = torch.cat([torch.zeros_like(read[:, :1]), read], dim=1)
                read = before[:, instruction.where.targets()[1:]]
            result = read if raw.local is None else read + value(raw.local)
        elif raw.operator == "÷":
            result = read / value(raw.local)
        else:
            result = torch.zeros(batch, program.tokens, instruction.target.size, dtype=torch.float64)
            result.index_add_(-1, torch.tensor(raw.into), read * value(raw.local))
        held[instruction.target.name] = result
    return held


def random_program(seed: int) -> RegisterProgram:
    """A dozen instructions over few registers, so that reads, writes and overwrites collide often."""
    draw = random.Random(seed)
    program = RegisterProgram(f"random {seed}", TOKENS)
    vectors = [program.input("a", 2, bound=1.0), program.input("b", 2, bound=1.0)]
    vectors += [program.register(name, 2, initial=torch.full((2,), 0.5)) for name in "cd"]
    scalars = [program.register(name, initial=torch.full((1,), 0.25)) for name in "st"]
    previous = Lookup("previous", (None, 1, 2, 3))
    for _ in range(12):
        kind = draw.choice(["mov", "aff", "dot", "mul", "div"])
        target, first, second = draw.choice(vectors), draw.choice(vectors), draw.choice(vectors)
        scalar, other = draw.choice(scalars), draw.choice(scalars)
        if kind == "mov":
            program.mov(target, first, at=previous)
        elif kind == "aff":
            program.aff(target, 0.5 * first - 0.25 * second, at=draw.choice([None, previous]), plus=0.25 * target)
        elif kind == "dot":
            program.dot(scalar, 0.5 * first, 0.5 * second + 0.1)
        elif kind == "mul":
            program.mul(target, first, 0.5 * other)
        elif target is not first:
            program.dot(scalar, 0.3 * first, first)
            program.div(target, 0.5 * first, scalar + 8.0)
    return program


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_mean_what_they_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Random programs lose writes; that refusal is tested elsewhere and would hide the hazards sought here.
    monkeypatch.setattr("emulon.machine.compiler.validate", lambda program: None)
    program = random_program(seed)
    model = program.compile()
    torch.manual_seed(seed)
    inputs = {name: 2 * torch.rand(5, TOKENS, 2, dtype=torch.float64) - 1 for name in "ab"}
    found, wanted = model.run(**inputs), interpret(program, inputs)
    assert model.depth <= len(program.instructions) + 1
    for name, held in wanted.items():
        assert (found[name] - held).abs().max() < 1e-9, name
        if name in model.certificates:
            model.certificates[name].verify(found[name], held)


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
    torch.manual_seed(0)
    inputs = {"a": torch.rand(3, TOKENS, 2), "b": torch.rand(3, TOKENS, 2), "c": torch.rand(3, TOKENS, 1) / 2}
    inputs = {name: values.double() for name, values in inputs.items()}
    found, wanted = program.compile().run(**inputs), interpret(program, inputs)
    for name in "desf":
        assert (found[name] - wanted[name]).abs().max() < 1e-11
