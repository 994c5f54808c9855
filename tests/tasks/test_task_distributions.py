"""Each task is what its docstring says it is."""

import dataclasses

import pytest
import torch

from emulon.algorithms import RidgeRegression
from emulon.core.predictor import predict_at
from emulon.tasks import (
    DecisionTree,
    Linear,
    ReluNetwork,
    SparseLinear,
    TaskSet,
    at_step,
    deinterleave,
    interleave,
)
from reproduce.algoformer.tasks import AutoRegression, ChainOfThought, Representation


def draw(task, batch=64, step=0):
    return task.sample(at_step(torch.Generator(), 0, step), batch)


def test_tokens_alternate_between_x_and_y_and_hide_the_last_y():
    xs, ys = torch.randn(2, 3, 4), torch.randn(2, 3)
    tokens = interleave(xs, ys)
    assert tokens.shape == (2, 5, 5)
    back, seen = deinterleave(tokens)
    assert torch.equal(back, xs) and torch.equal(seen, ys[:, :-1])


def test_linear_data_have_the_stated_noise_and_prior():
    prompts = draw(Linear(features=5, points=9, noise=0.5, prior=2.0), 4096)
    assert (prompts.targets - prompts.truth).std().item() == pytest.approx(0.5, rel=0.05)
    assert prompts.truth.var().item() == pytest.approx(5 * 4, rel=0.1)


def test_noiseless_linear_data_are_solved_by_least_squares_after_d_samples():
    task = Linear(features=4, points=7)
    curves = task.baselines(draw(task))
    assert curves["ols"][4:].max() < 1e-6 < curves["ols"][:4].min()


def test_with_noise_no_baseline_beats_the_bayes_ridge():
    task = Linear(features=5, points=11, noise=0.5)
    curves = task.baselines(draw(task, 2048))
    assert all((curves["ridge"] <= curve * 1.02).all() for curve in curves.values())


def test_no_baseline_sees_the_answer_it_is_asked_for():
    task = Linear(features=3, points=7, noise=0.5)
    prompts = draw(task)
    later = prompts.targets.clone()
    later[:, 4:] += 7
    before, after = task.baselines(prompts), task.baselines(dataclasses.replace(prompts, targets=later))
    for name in ("ols", "gd", "knn", "ridge"):
        assert torch.equal(before[name][:5], after[name][:5]) and (before[name][5:] != after[name][5:]).all()


def test_sparse_weights_have_the_stated_support():
    weights = SparseLinear(features=9, nonzero=2).weights(at_step(torch.Generator(), 0, 0), 50)
    assert ((weights != 0).sum(dim=1) == 2).all()


def test_a_task_set_draws_its_vectors_and_no_others_and_who_knows_them_is_best():
    task = TaskSet(features=3, points=6, noise=0.5, prior=2.0, tasks=4)
    drawn = task.weights(at_step(torch.Generator(), 0, 0), 400, torch.float64)
    same = (drawn.unsqueeze(1) == task.vectors).all(dim=-1)
    assert same.any(dim=1).all() and same.any(dim=0).all()
    assert not torch.equal(task.vectors, dataclasses.replace(task, task_seed=1).vectors)
    curves = task.baselines(draw(task, 1024))
    assert all((curves["task mixture"] <= curve * 1.02)[1:].all() for curve in curves.values())


def test_the_representation_is_shared_and_its_oracle_exact():
    task = Representation(features=4, points=9)
    prompts = draw(task)
    assert task.baselines(prompts)["oracle"][5:].max() < 1e-4
    x = torch.randn(3, 4)
    assert torch.equal(task.represent(x), Representation(features=4, points=9).represent(x))
    assert not torch.equal(task.represent(x), Representation(features=4, network_seed=1).represent(x))


def test_a_series_follows_its_recurrence():
    task = AutoRegression(features=4, points=12, noise=0.0)
    prompts = draw(task)
    assert torch.equal(prompts.targets[:, :-1], prompts.tokens[:, task.lags :])
    # Asked at x_t for x_{t+1}: what one is asked for is where the next is asked.
    assert torch.equal(task.asked(prompts.tokens)[:, 1:], prompts.targets[:, :-1])
    assert task.baselines(prompts)["oracle"][6:].max() < 1e-4


def test_signals_keep_their_size():
    """Mean squares: of a series' noise-free steps 1, of a two-layer network's values that of x (E relu² is half), of
    the last layer of leaky-ReLU networks that of the first."""
    series = draw(AutoRegression(features=16, points=6, noise=0.3), 256).truth
    assert series.square().mean().item() == pytest.approx(1.0, rel=0.1)
    assert series[:, -1].square().mean().item() == pytest.approx(series[:, 0].square().mean().item(), rel=0.2)
    values = draw(ReluNetwork(features=8, points=4, hidden=40), 2048).truth
    assert values.square().mean().item() == pytest.approx(8.0, rel=0.1)
    chains = draw(ChainOfThought(features=16, points=4, depth=3), 512).truth
    assert chains[:, 2::3].square().mean().item() == pytest.approx(1.0, rel=0.15)
    fixed = Representation(features=64, points=4)
    prompts, states = draw(fixed, 2048), fixed.represent(torch.randn(1000, 64))
    assert states.square().mean().item() == pytest.approx(1.0, rel=0.3)
    assert prompts.truth.square().mean().item() == pytest.approx(states.square().mean().item(), rel=0.15)


def test_a_chain_shows_every_layer_of_one_network():
    task = ChainOfThought(features=3, points=6, depth=2)
    prompts = draw(task, 4)
    chains = prompts.tokens.unflatten(1, (6, 3))
    assert torch.equal(prompts.targets.unflatten(1, (6, 2)), chains[:, :, 1:])
    assert torch.equal(task.asked(prompts.tokens).unflatten(1, (6, 2)), chains[:, :, :-1])
    # leaky ReLU undone, the first layer is linear in x: six chains, three unknown rows
    undone = torch.where(chains[:, :, 1] > 0, chains[:, :, 1], chains[:, :, 1] / 0.01).double()
    fit = torch.linalg.lstsq(chains[:, :, 0].double(), undone)
    assert (chains[:, :, 0].double() @ fit.solution - undone).abs().max() < 1e-3


def test_a_tree_has_at_most_as_many_values_as_leaves():
    values = draw(DecisionTree(features=4, points=60, depth=2), 8).truth.squeeze(-1)
    assert all(len(row.unique()) <= 4 for row in values)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_the_best_ridge_knows_the_noise_and_the_prior(factor):
    """Bayes: any other penalty costs more, for linear functions and for a series that follows one."""
    task = Linear(features=4, points=9, noise=0.5, prior=3.0)
    prompts, ridge = draw(task, 2048), task.predictors()["ridge"]
    assert isinstance(ridge, RidgeRegression)
    curves = []
    for one in (ridge, RidgeRegression(factor * ridge.ridge)):
        answers = predict_at(one, prompts.tokens[:, 0::2, 1:].double(), prompts.targets[..., 0].double(), range(1, 9))
        curves.append((answers - prompts.truth[:, 1:, 0]).square().mean())
    assert curves[0] < curves[1]
    series = AutoRegression(features=8, points=24, noise=0.5)
    wrong, drawn = dataclasses.replace(series, noise=0.5 * factor**0.5), draw(series, 256)
    assert series.baselines(drawn)["oracle"].sum() < wrong.baselines(drawn)["oracle"].sum()


def test_a_tree_asks_for_signs():
    task, xs = DecisionTree(features=4), torch.randn(8, 200, 4)
    values, larger = (task.values(torch.Generator().manual_seed(0), factor * xs) for factor in (1, 3))
    assert torch.equal(values, larger) and (task.values(torch.Generator().manual_seed(0), -xs) != values).any()


def test_nothing_that_evaluation_asks_is_drawn_in_training():
    task = Linear(features=2, points=3)
    held_out = task.held_out_prompts(5, 8).tokens
    steps = [task.sample(at_step(torch.Generator(), 5, step), 8).tokens for step in range(50)]
    assert not any(torch.isin(held_out[held_out != 0], tokens).any() for tokens in steps)
