"""Circuits that compute something which no answer depends on."""

from __future__ import annotations

import torch

from emulon.machine.programs.examples import Examples


def add_distractors(examples: Examples, count: int, generator: torch.Generator) -> None:
    """`count` of three kinds, at random: ‖x‖² of the example before, mean y·x so far, (u·x)(v·x) for random u and v."""
    program, prompt, features = examples.program, examples.prompt, examples.domain.features
    for index in range(count):
        kind = int(torch.randint(3, (), generator=generator, device="cpu"))
        name = f"distractor {index + 1}"
        if kind == 0:
            x, squared, before = examples.own_x(), program.register(f"{name} square"), program.register(name)
            program.dot(squared, x, x)
            program.mov(before, squared, at=prompt.previous_example)
        elif kind == 1:
            x, cross, mean = (
                examples.own_x(),
                program.register(f"{name} cross", features),
                program.register(name, features),
            )
            program.mul(cross, x, examples.y)
            program.mov(mean, cross, at=prompt.past_examples)
        else:
            directions = torch.randn(2, features, dtype=torch.float64, generator=generator, device="cpu")
            left, right = (row[None] / row.norm() for row in directions)
            x, form = examples.own_x(), program.register(name)
            program.mul(form, x.map(left, (1, 1), "u·x"), x.map(right, (1, 1), "v·x"))
