"""A batch is a function of (seed, step) alone, and every task keeps to its stated sizes."""

import pytest
import torch

from emulon.tasks import TASKS, Task, at_step, stream_seed


@pytest.fixture(params=list(TASKS))
def task(request) -> Task:
    return TASKS[request.param](features=4, points=7)


def batch_at(task: Task, seed: int, step: int, size: int = 6):
    return task.sample(at_step(torch.Generator(), seed, step), size)


def test_a_batch_does_not_depend_on_the_steps_before_it(task):
    generator = torch.Generator()
    for step in range(3):
        later = task.sample(at_step(generator, 5, step), 6)
    alone = batch_at(task, 5, 2)
    assert torch.equal(later.tokens, alone.tokens) and torch.equal(later.targets, alone.targets)


def test_other_seeds_and_steps_give_other_batches(task):
    batches = [batch_at(task, *where).tokens for where in ((0, 0), (0, 1), (1, 0), (1, -1))]
    assert all(not torch.equal(a, b) for i, a in enumerate(batches) for b in batches[:i])


def test_prompts_have_the_sizes_the_task_states(task):
    prompts = batch_at(task, 0, 0)
    assert prompts.tokens.shape == (6, task.tokens, task.width_in)
    assert prompts.targets.shape == prompts.truth.shape == task.asked(torch.zeros(6, task.tokens, task.width_out)).shape
    assert all(torch.isfinite(part).all() for part in (prompts.tokens, prompts.targets, prompts.truth))
    rows = prompts.rows(2, 4)
    assert torch.equal(rows.tokens, prompts.tokens[2:4])


def test_every_baseline_has_one_error_for_each_point_of_the_curve(task):
    prompts = batch_at(task, 0, 0, 16)
    curves = task.baselines(prompts)
    length = len(task.curve(prompts.truth.square()))
    assert "zero" in curves
    assert all(curve.shape == (length,) and torch.isfinite(curve).all() for curve in curves.values())


def test_features_a_curriculum_has_not_reached_do_not_matter():
    live = torch.tensor([1.0, 1.0, 0.0, 0.0])
    for name in ("linear", "representation", "relu_network"):
        prompts = TASKS[name](features=4, points=7).sample(at_step(torch.Generator(), 0, 0), 6, live)
        assert not prompts.tokens[:, :, 3:].any()


def test_stream_seeds_are_spread_and_positive():
    seeds = {stream_seed(seed, step) for seed in range(30) for step in range(-1, 30)}
    assert len(seeds) == 30 * 31 and all(0 <= seed < 2**63 for seed in seeds)
