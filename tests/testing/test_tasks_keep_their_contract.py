"""Tasks are functions of their generators, of the declared sizes, and never train on held-out data."""

import dataclasses
import re

import pytest
import torch

import reproduce.algoformer  # noqa: F401 (registers three more)
from emulon.core.errors import EmulonError
from emulon.tasks import TASKS, RegressionTask, at_step, deinterleave, read_task

BATCH, SEED = 6, 5


def small(name):
    noise = {"noise": 0.25} if "noise" in TASKS[name].__dataclass_fields__ else {}
    return TASKS[name](features=4, points=7, **noise)


# Those over text need a corpus, and keep what of the contract is about them in tests/reproduce/test_text_tasks.py.
EVERY = {name: small(name) for name, task in TASKS.items() if not task.reads_words}
REGRESSIONS = {name: task for name, task in EVERY.items() if isinstance(task, RegressionTask)}
every = pytest.mark.parametrize("task", EVERY.values(), ids=EVERY)
regressions = pytest.mark.parametrize("task", REGRESSIONS.values(), ids=REGRESSIONS)


def drawn(task, seed=SEED, step=2, live=None):
    return task.sample(at_step(torch.Generator(), seed, step), BATCH, live)


def parts(batch):
    return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}


def assert_same(ours, theirs):
    for name, part in parts(ours).items():
        other = parts(theirs)[name]
        assert part.dtype == other.dtype and torch.equal(part, other), name


@every
def test_a_batch_is_a_function_of_its_generator_and_another_at_other_seeds_and_steps(task):
    generator = torch.Generator()
    for step in range(3):  # whatever was drawn before
        later = task.sample(at_step(generator, SEED, step), BATCH)
    assert_same(later, drawn(task))
    batches = [drawn(task, *where).tokens for where in ((0, 0), (0, 1), (1, 0), (1, -1))]
    assert not any(torch.equal(one, other) for i, one in enumerate(batches) for other in batches[:i])


@every
def test_sizes_are_as_declared(task):
    prompts = drawn(task)
    assert prompts.tokens.shape == (BATCH, task.tokens, task.width_in)
    asked = task.asked(torch.zeros(BATCH, task.tokens, task.width_out)).shape
    assert prompts.targets.shape == prompts.truth.shape == asked
    assert all(part.isfinite().all() for part in parts(prompts).values())
    curves, length = task.baselines(prompts), len(task.curve(prompts.truth.square()))
    assert "zero" in curves
    for name, curve in curves.items():
        assert curve.shape == (length,) and curve.isfinite().all(), name


@every
def test_dead_features_are_not_shown(task):
    """`live` of ones changes nothing, and what it sets to zero no size; without a curriculum any `live` is refused."""
    live = torch.ones(task.features)
    try:
        whole = drawn(task, live=live)
    except EmulonError as error:
        assert "\n" not in str(error)
        return
    assert_same(whole, drawn(task))
    live[task.features // 2 :] = 0.0
    some = drawn(task, live=live)
    assert not torch.equal(some.tokens, whole.tokens)
    for name, part in parts(some).items():
        assert part.shape == parts(whole)[name].shape and part.isfinite().all(), name
    if isinstance(task, RegressionTask):
        assert not deinterleave(some.tokens)[0][..., task.features // 2 :].any()


def written(value):
    if isinstance(value, tuple):
        return "/".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize("name", EVERY)
def test_options_are_read_back_from_a_line_and_refused_where_they_make_no_sense(name):
    task = EVERY[name]
    options = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    line = ",".join(f"{option}={written(value)}" for option, value in options.items() if option != "points")
    assert read_task(f"{name}:{line}", points=task.points) == task
    for option, value in options.items():
        bad = [0, -1] if option in ("features", "points") else [-1.0, float("nan")] if type(value) is float else []
        for one in bad:
            with pytest.raises(EmulonError, match=rf"\A[^\n]*{re.escape(option)}[^\n]*\Z"):
                dataclasses.replace(task, **{option: one})


@regressions
def test_datasets_have_the_points_and_the_dtype_asked_for(task):
    for dtype in (torch.float32, torch.float64):
        points = task.points + 3
        batch = task.datasets(torch.Generator().manual_seed(SEED), BATCH, points=points, dtype=dtype)
        assert batch.xs.shape == (BATCH, points, task.features)
        assert all(part.shape[:2] == (BATCH, points) and part.dtype == dtype for part in parts(batch).values())
    assert task.datasets(torch.Generator(), BATCH).xs.dtype == torch.float32


@regressions
def test_prompts_are_made_of_the_datasets(task):
    """The same stream as datasets and as prompts: x₁, y₁, …, and the last y is nowhere to be read."""
    data, prompts = task.datasets(at_step(torch.Generator(), SEED, 2), BATCH), drawn(task)
    xs, answered = deinterleave(prompts.tokens)
    assert torch.equal(xs, data.xs) and torch.equal(answered, data.ys[:, :-1])
    assert torch.equal(prompts.targets[..., 0], data.ys) and torch.equal(prompts.truth[..., 0], data.truth)


@regressions
def test_truth_has_no_noise(task):
    """Xs and truth do not change with `noise`; where the noise is zero, targets are the truth."""
    if "noise" not in task.__dataclass_fields__:
        return
    quiet, loud = (dataclasses.replace(task, noise=noise) for noise in (0.0, 2.0))
    data = [one.datasets(torch.Generator().manual_seed(SEED), BATCH) for one in (quiet, loud)]
    assert torch.equal(data[0].truth, data[1].truth) and torch.equal(data[0].xs, data[1].xs)
    if not torch.as_tensor(quiet.noise_scale(torch.Generator(), BATCH)).any():
        assert torch.equal(data[0].ys, data[0].truth) and not torch.equal(data[1].ys, data[1].truth)


@regressions
def test_held_out_data_are_a_function_of_the_seed_and_in_no_training_batch(task):
    """In float64 on the CPU; training with the same seed does not draw them, at any dtype."""
    held = task.held_out(SEED, BATCH, task.points)
    assert_same(held, task.held_out(SEED, BATCH, task.points))
    assert held.xs.dtype == torch.float64 and held.xs.device.type == "cpu"
    assert not torch.equal(held.ys, task.held_out(SEED + 1, BATCH, task.points).ys)
    for step in (-1, 0, 1, 2):  # -1 is the evaluation's
        for dtype in (torch.float32, torch.float64):
            seen = task.datasets(at_step(torch.Generator(), SEED, step), BATCH, dtype=dtype).xs
            assert not torch.equal(held.xs.to(dtype), seen), step
