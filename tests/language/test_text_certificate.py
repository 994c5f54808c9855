"""What is known before a run: no deviation of the exact steps, and no run of the model, is above it."""

from dataclasses import replace

import numpy as np
import pytest
from float_reading import iterates

from emulon.algorithms import HeavyBall, Ridge
from emulon.language.certificate import HIGHEST, UNIT, Pieces, Tube, U, bounds
from emulon.language.methods import as_method, known_methods
from emulon.language.prompt import gate_of, prompt, text_of

DRAW = np.random.default_rng(3)
X = DRAW.normal(size=(6, 3)).clip(-2, 2).round(4)
Y = (X @ [1.0, -0.6, 0.2] + 0.1 * DRAW.normal(size=6)).round(4)


def asked(name, steps=6, **settings):
    method = known_methods()[name](steps=steps, **settings)
    y = np.sign(Y) if as_method(method).descent.loss.link.name == "margin" else Y
    return prompt(method, X, y, start=[0.3, -0.2, 0.1])


def path_of(question):
    after = iterates(text_of(question), question.until)
    return np.vstack([np.array([question.before, question.start]) * UNIT, after])


@pytest.mark.parametrize("name", known_methods())
@pytest.mark.parametrize("wide", [1e-7, 1e-3])
def test_where_a_start_nearby_leads_is_within_the_tube(name, wide):
    question = asked(name)
    question = replace(question, momentum=50_000_000)  # with momentum, whatever the method
    exact, tube = path_of(question), Tube(question)
    tube.now = tube.last = wide * np.eye(3)
    reached = [tube.step(exact[t + 1], exact[t], exact[t + 2]) for t in range(6)]
    assert reached[-1] < 1e4 * wide or name in ("hard_threshold", "hinge", "perceptron", "talwar") or wide > 1e-6
    for corner in (np.ones(3), np.array([1, -1, 1]), DRAW.uniform(-1, 1, size=3)):
        moved = np.round(np.array(question.start) + corner * wide / UNIT).astype(int)
        start = tuple(
            int(np.clip(a, b - wide / UNIT, b + wide / UNIT)) for a, b in zip(moved, question.start, strict=True)
        )
        other = path_of(replace(question, start=start, before=start))
        for t, bound in enumerate(reached):
            assert np.abs(other[t + 2] - exact[t + 2]).max() <= bound * (1 + 1e-9) + 1e-12, (t, corner)


def test_a_step_alone_costs_half_a_digit_and_little_more():
    (one,) = bounds(asked("ridge", steps=1))
    assert 0.5 * UNIT < one < 200 * UNIT


def test_more_steps_rows_and_larger_numbers_cost_more():
    few, many = bounds(asked("linear_regression", 3)), bounds(asked("linear_regression", 9))
    assert many[:3] == few
    small = bounds(prompt(Ridge(0.3, steps=4), X / 4, Y / 4, start=None))
    assert small[-1] < bounds(prompt(Ridge(0.3, steps=4), X, Y))[-1]


def test_momentum_is_followed_along_its_own_recursion():
    """Powers of the step's matrix, not of its norm, which is above 1."""
    assert bounds(prompt(HeavyBall(steps=60), X, Y))[-1] < 1e-5


def test_beyond_what_words_can_mend_nothing_is_said():
    found = bounds(prompt(Ridge(0.0, steps=3, step_size=0.9), [[2.0, 1.0]], [19.0]))
    assert (
        found[-1] == np.inf
        and max(path_of(prompt(Ridge(0.0, steps=3, step_size=0.9), [[2.0, 1.0]], [19.0])).max(), 0) > HIGHEST
    )


@pytest.mark.parametrize("expression", ["Max(-1, Min(1, t))", "tanh(t)", "1/(1 + exp(-3*t))", "Max(t, 0)", "2*t + 0.5"])
def test_a_gate_read_with_scores_that_are_off_is_within_its_bound(expression):
    """Scores off by 8·U of their parts, as products and a sum in float32, against the gate itself in float64."""
    pieces = Pieces.of(gate_of(expression))
    for at in (*np.linspace(-3, 3, 13), 1 - 1e-7, 1 + 3e-7, 1e-8):
        parts = np.array([pieces.slope * at, pieces.bias]) * 2.0**pieces.sharpness
        scores = (parts + 8 * U * DRAW.uniform(-1, 1, size=(200, *parts.shape)) * np.abs(parts)).sum(axis=1)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        lines = pieces.times * at + pieces.plus
        values = (weights * lines).sum(axis=1) / weights.sum(axis=1)
        best = parts.sum(axis=0)
        soft = np.exp(best - best.max())
        exact = lines[best.argmax()] if pieces.sharpness == 24 else (soft * lines).sum() / soft.sum()
        assert np.abs(values - exact).max() <= pieces.gating(at, at) + 1e-15
        low, high = pieces.steepness(at - 0.1, at + 0.1)
        assert low <= high
