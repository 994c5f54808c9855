"""Two learners in one stream: their answers mixed, or one of them chosen by the prompt."""

from __future__ import annotations

import torch

from emulon.machine.affine import Register
from emulon.machine.programs.examples import Examples
from emulon.machine.tokens import Lookup


def mixed(examples: Examples, first: Register, second: Register, share: float) -> Register:
    """share·first + (1 − share)·second."""
    mixture = examples.register("mixture")
    examples.program.aff(mixture, share * first + (1 - share) * second)
    return mixture


def switched(examples: Examples, first: Register, second: Register, sharp: float) -> Register:
    """g·first + (1 − g)·second with g = clip(sharp·x₁[0], ±½) + ½: the first feature of the first example decides.

    Where |x₁[0]| ≥ 1/(2·sharp) exactly one of them answers.
    """
    program = examples.program
    cue, gate = examples.register("cue"), examples.register("gate")
    chosen, answer = examples.register("chosen"), examples.register("answer")
    x = examples.own_x()
    program.aff(
        cue,
        x.map(torch.eye(x.entries, dtype=torch.float64, device="cpu")[:1], (1, 1), "x[0]"),
        at=Lookup("first token", (1,) * program.tokens),
    )
    program.clip(gate, sharp * cue, 0.5)
    program.mul(chosen, gate + 0.5, first - second)
    program.aff(answer, second + chosen)
    return answer
