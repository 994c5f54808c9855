"""The trained learner among the results: on noisy linear functions it runs ridge regression with λ near σ²/τ²."""

from pathlib import Path

import pytest
import torch

from emulon.algorithms import RidgeRegression
from emulon.identification import analyse, best_ridge, hidden_states, moments, prefix_weights
from emulon.identification.loading import load_subject
from emulon.identification.probes import shuffled
from reproduce.learning.probes import attention_probes, standardised

RUN = Path(__file__).parents[2] / "results" / "learners" / "small_learner"


@pytest.fixture(scope="module")
def subject():
    return load_subject(str(RUN))


@pytest.fixture(scope="module")
def said(subject):
    return analyse(subject.thing, subject.task, datasets=256)


def test_it_is_identified_as_ridge_regression(said):
    found = said.identification
    assert found.algorithm == "ridge" and 0.5 < found.parameters["ridge"] / said.bayes < 2
    assert found.nearest.unexplained.high < 0.02
    assert found["ols"].unexplained.low > 20 * found.nearest.unexplained.high


@pytest.mark.parametrize("seed", range(2))
def test_its_best_ridge_parameter_is_noise_over_prior_within_the_grids_step(subject, seed: int):
    fit = best_ridge(subject.thing, subject.task, seed=seed)
    assert fit.agrees(subject.task.bayes_ridge)


def test_after_every_number_of_examples_it_is_nearer_to_ridge_than_to_least_squares(said):
    ridge = next(name for name in said.comparison.predictions if name.startswith("ridge"))
    for curves in (said.comparison.predictions, said.comparison.weights):
        for n in range(2, 11):  # after one example both are almost the same
            assert curves[ridge][n].value < curves["ols"][n].value, n
        assert curves[ridge].overall.value < 0.02
    assert said.comparison.linearity.overall.value > 0.95


def test_the_moment_is_encoded_and_the_control_is_not(subject):
    """As in Akyürek et al. 2022, section 5: Xᵀy can be read off the first layers' states, w off later ones'."""
    xs, ys = subject.task.held_out(0, 1024, 11).pairs
    hidden = hidden_states(subject.thing, xs, ys)
    target = prefix_weights(RidgeRegression(subject.task.bayes_ridge), xs, ys)[:, 6]
    found = []
    for quantity, layers in ((moments(xs, ys)[:, 6], [0, 1]), (target, [0, 4])):
        states, targets = standardised(hidden.states[layers]), torch.stack([quantity, shuffled(quantity, 0)])
        found.append(attention_probes(states, targets, "mlp", steps=150)[0])
    (moment, weights), control = (each[:, 0] for each in found), torch.stack([each[:, 1] for each in found])
    assert moment[1] > 0.6 > 0.4 > moment[0] and weights[1] > 0.5 > 0.3 > weights[0]
    assert control.abs().max() < 0.1
