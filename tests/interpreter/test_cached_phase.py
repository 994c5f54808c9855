"""The fast path on many numbers: differences in float32, blocks of samples, segments of the line, and one answer."""

import math
from dataclasses import replace

import pytest
import torch
from library import KINKS, case

from emulon.algorithms.losses import TemplateData
from emulon.interpreter import Interpreter, Program, modes, module
from emulon.interpreter.modes import CachedPhase, unit_vectors
from emulon.interpreter.phase import certified_lazily, emulated_scores

Programs = dict[str, Program]


@pytest.mark.parametrize("name", ["ridge", "poisson_regression", "logistic_regression", "lasso", "heavy_ball"])
def test_quick_reading_in_blocks_gives_what_the_faithful_path_gives(name: str, programs: Programs, monkeypatch):
    c, program = case(name), programs[name].changed(steps=3, step_from_data=False)
    own = Interpreter.fitting(program)
    faithful = own.run(program, c.x, c.y, mode="reference").weights
    monkeypatch.setattr(module, "FEW", 0)
    monkeypatch.setattr(modes, "SCORES", 7 * len(program.gradient.grid))
    fast = own.run(program, c.x, c.y)
    exact = replace(c.algorithm, steps=3, step_size=program.step_size).run(c.x, c.y)
    # All numbers are read otherwise than on the faithful path: rather better, and at a kink that is seen.
    torch.testing.assert_close(fast.weights, faithful, rtol=0.0, atol=1e-7 if name in KINKS else 1e-12)
    assert (fast.weights - exact).abs().max() <= fast.certificate.bound


def cached(program: Program, interpreter: Interpreter) -> CachedPhase:
    c = case("ridge")
    return CachedPhase(interpreter, program.gradient, program.loss.template_data(c.x, c.y))


def test_differences_are_kept_in_float32_only_where_what_that_adds_is_within_the_promise(programs, monkeypatch):
    monkeypatch.setattr(module, "FEW", 1 << 12)  # a grid that boasts is read otherwise by segments
    program = programs["ridge"]
    honest, boasting = Interpreter.fitting(program), Interpreter.fitting(program)
    boasting.identity = replace(boasting.identity, errors=tuple(1e-6 * error for error in boasting.identity.errors))
    narrow, wide = cached(program, honest), cached(program, boasting)
    assert {block.keys.dtype for block in narrow.blocks} == {torch.float32}
    assert {block.keys.dtype for block in wide.blocks} == {torch.float64}
    w = torch.tensor([0.3, -0.2, 0.1, 0.5], dtype=torch.float64)
    torch.testing.assert_close(narrow.apply(w, w), wide.apply(w, w), rtol=0.0, atol=1e-15)


def test_datasets_that_share_their_x_are_read_once(programs: Programs):
    c, program = case("ridge"), programs["ridge"]
    x, y = c.x.expand(3, *c.x.shape), torch.stack([c.y, 0.5 * c.y, -c.y])
    phase = CachedPhase(Interpreter.fitting(program), program.gradient, program.loss.template_data(x, y))
    assert {len(block.values) for block in phase.blocks} == {1}
    w = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = cached(program, Interpreter.fitting(program)).apply(w[0], w[0])
    torch.testing.assert_close(phase.apply(w, w)[0], alone, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("together", [1, 1 << 16])
def test_a_proximal_phase_of_one_sample_answers_as_one_of_all_unit_vectors(together: int, programs, monkeypatch):
    """Every number alone, in blocks or not, with a batch of states; zeros are read as zeros."""
    program = programs["lasso"]
    monkeypatch.setattr(modes, "SCORES", together)
    monkeypatch.setattr(module, "FEW", 1 << 12)
    own, phase = Interpreter.fitting(program), program.proximal
    w = torch.linspace(-0.9, 0.9, 12, dtype=torch.float64).reshape(3, 4) * phase.domain.w
    c = case("lasso")
    steps = program.steps_on(own, program.loss.template_data(c.x, c.y), "fast")
    every = CachedPhase(own, phase, unit_vectors(w))
    found, wanted = steps._shrunk(w), every.apply(w, phase.values.shrink * w)
    assert found.shape == w.shape and steps.proximal.blocks[0].keys.numel() <= len(phase.grid)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=5e-9)
    threshold = program.step_size * program.descent.l1
    exact = w.sign() * (w.abs() - threshold).clamp(min=0)
    assert (found - exact).abs().max() <= (wanted - exact).abs().max() * 2 + 1e-12


LAZY = ["ridge", "poisson_regression", "logistic_regression", "huber_regression", "heavy_ball"]


@pytest.mark.parametrize("name", LAZY)
@pytest.mark.parametrize("off", [0.0, 1e-5])
def test_what_reading_changes_is_added_to_the_softmax_of_the_numbers_alone(name, off, programs: Programs, monkeypatch):
    """Read as they are, and with numbers moved so far that what is of second order is seen."""
    c, program = case(name), programs[name]
    own = Interpreter.fitting(program)
    if off:
        monkeypatch.setattr(Interpreter, "read_quickly", lambda self, s: s + off * torch.sin(7 * s))
    data = program.loss.template_data(c.x, c.y)
    lazy, plain = (CachedPhase(own, program.gradient, data, lazy=lazy) for lazy in (True, False))
    assert lazy.lazy and not plain.lazy
    w = 0.9 * c.algorithm.run(c.x, c.y)
    # A gate's scores are so large that forming them rounds more.
    allowed = 1e-9 if name in KINKS else 1e-13
    torch.testing.assert_close(lazy.apply(w, w), plain.apply(w, w), rtol=0.0, atol=allowed)
    batch = torch.stack([w, -0.5 * w])
    torch.testing.assert_close(lazy.apply(batch, batch), plain.apply(batch, batch), rtol=0.0, atol=allowed)


def test_what_reading_changes_is_computed_anew_where_the_state_has_moved(programs: Programs):
    program, c = programs["ridge"], case("ridge")
    phase = CachedPhase(Interpreter.fitting(program), program.gradient, TemplateData(c.x, c.y, None), lazy=True)
    w = torch.tensor([0.3, -0.2, 0.1, 0.5], dtype=torch.float64)
    for moved, anew in ((0.0, True), (0.99 * modes.NEAR, False), (1.03 * modes.NEAR, True), (math.nan, True)):
        before = phase.corrected
        phase.apply(w := w * (1 + moved), w)
        assert (phase.corrected is not before) == anew, moved


def test_a_phase_is_lazy_only_where_that_is_within_its_certificate(programs: Programs, monkeypatch):
    """Of ridge: emulation, rounding of w·x − y, of scores and of weights, and sums."""
    program = programs["ridge"]
    line, gradient = Interpreter.fitting(program).identity, program.gradient
    grid, domain, proved, u = gradient.grid, gradient.domain, gradient.proved, 2.0**-53
    moved = 1.00000001 * (emulated_scores(gradient, line) + (domain.features + 3) * u * grid.steepest * domain.absolute)
    moved += 4 * u * (grid.steepest * domain.residual + grid.highest) + (4 + 64) * u
    needed = moved * (1 + 1.5 * moved) * proved.deviation
    needed += (2 * (len(grid) + 2) + 1) * u * (proved.size + proved.deviation)
    for room, enough in ((1 + 1e-3, True), (1 - 1e-3, False)):
        monkeypatch.setattr("emulon.interpreter.phase.function_error", lambda *_, bound=needed * room: bound)
        assert certified_lazily(gradient, line) == enough
    monkeypatch.setattr("emulon.interpreter.phase.function_error", lambda *_: math.inf)
    monkeypatch.setattr("emulon.interpreter.phase.emulated_scores", lambda *_: 1.0)
    assert not certified_lazily(gradient, line)
