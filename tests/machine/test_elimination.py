"""Ridge by elimination: exact answers, ranges, and what an error of any instruction does to ŷ."""

from __future__ import annotations

import math

import pytest
import torch

from emulon.certify import Domain, Spectrum
from emulon.certify.balls import FloatBall
from emulon.core.errors import BadProgram
from emulon.machine.evaluate import initial_values, results
from emulon.machine.program import RegisterProgram
from emulon.machine.programs.examples import Examples
from emulon.machine.programs.ridge import NEAR, elimination_steps

f64 = torch.float64


def program_of(features: int, samples: int, ridge: float) -> RegisterProgram:
    reach = math.sqrt(samples) / (2 * math.sqrt(ridge))
    domain = Domain(samples, features, x=1.0, y=1.0, w=reach, spectrum=Spectrum(norm=1.0))
    examples = Examples.of("elimination", domain)
    return examples.program.returns(elimination_steps(examples, ridge))


def drawn(program: RegisterProgram, features: int, samples: int, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Long and short inputs, in all directions and nearly in one: eigenvalues from far below λ to above it."""
    generator = torch.Generator().manual_seed(features)
    xs = torch.randn(200, samples, features, dtype=f64, generator=generator)
    xs[50:100] = xs[50:100, :, :1] + 0.1 * xs[50:100]
    xs = torch.nn.functional.normalize(xs, dim=-1)
    lengths = torch.tensor([1.0, math.sqrt(ridge / samples), 0.03, 0.3], dtype=f64).repeat(50)[:, None, None]
    xs[100:] *= lengths[100:]
    xs[:, -1] = torch.nn.functional.normalize(xs[:, -1], dim=-1)
    ys = torch.randn(200, samples, dtype=f64, generator=generator).sign()
    return xs, ys


def answers(program: RegisterProgram, xs: torch.Tensor, ys: torch.Tensor, added: dict[int, FloatBall]) -> torch.Tensor:
    held = initial_values(program, program.prompt.fill(xs, ys), FloatBall)
    *_, (_, last) = results(program, held, added)
    return last.high[..., 0::2, 0]


@pytest.mark.parametrize("features", [1, 2, 4])
@pytest.mark.parametrize("ridge", [0.01, 0.3, 2.0])
def test_it_solves_the_equations_within_its_ranges(features: int, ridge: float) -> None:
    samples = 5
    program = program_of(features, samples, ridge)
    xs, ys = drawn(program, features, samples, ridge)
    for count in range(samples):
        x, y = xs[:, :count], ys[:, :count, None]
        w = torch.linalg.solve(x.mT @ x + ridge * torch.eye(features, dtype=f64), x.mT @ y)[..., 0]
        found = answers(program, xs, ys, {})[:, count]
        assert (found - (w * xs[:, count]).sum(-1)).abs().max() < 1e-11
    held = initial_values(program, program.prompt.fill(xs, ys), FloatBall)
    for one, result in results(program, held):
        invariant = one.invariant
        if invariant is not None and invariant.norm is not None:
            values = result.high
            # What the machine holds may be off by as much again as NEAR allows; exact values may not.
            assert values.norm(dim=-1).max() <= invariant.norm / NEAR**0.5, one.label
            assert invariant.low is None or values.min() >= invariant.low
            assert invariant.high is None or values.max() <= invariant.high


@pytest.mark.parametrize("features", [1, 2, 4])
@pytest.mark.parametrize("ridge", [0.01, 0.3])
def test_an_error_of_any_instruction_moves_the_answer_by_its_gain_at_most(features: int, ridge: float) -> None:
    samples, size = 4, 1e-7
    program = program_of(features, samples, ridge)
    xs, ys = drawn(program, features, samples, ridge)
    xs, ys = xs.repeat(2, 1, 1), ys.repeat(2, 1)
    before = answers(program, xs, ys, {})
    gains = program.instructions[-1].invariant.gains
    generator, tight = torch.Generator().manual_seed(0), {}
    for one in program.instructions[:-1]:
        error = torch.randn(len(xs), program.tokens, one.target.size, dtype=f64, generator=generator)
        error *= size / error.norm(dim=-1, keepdim=True)
        moved = (answers(program, xs, ys, {one.number: FloatBall.of(error)}) - before).abs().max() / size
        name = one.target.name
        assert moved <= gains[name] * 1.001, one.label
        tight[name] = max(tight.get(name, 0.0), float(moved) / gains[name])
    print({name: f"{share:.2f}" for name, share in tight.items()})
    assert max(tight.values()) > 0.1


def test_what_cannot_be_proved_is_not() -> None:
    with pytest.raises(BadProgram, match="ridge > 0"):
        elimination_steps(Examples.of("elimination", Domain(4, 2, x=1.0, y=1.0, w=1.0)), 0.0)
    assert math.isfinite(program_of(3, 6, 0.02).compile().certificate.bound)
    assert not math.isfinite(program_of(3, 6, 1e-9).compile().certificate.bound)
