"""Trained learners are asked like anything else: their task, as many examples as they read, and their hidden states."""

import dataclasses

import pytest
import torch

from emulon.errors import EmulonError
from emulon.interrogate import (
    LearnerTask,
    LinearTask,
    as_task,
    depth_sweep,
    hidden_states,
    identify,
    linear_probe,
    load_subject,
    read_task,
    squared_prediction_difference,
    trainer,
)
from emulon.models import Standard
from emulon.predictor import load_predictor
from emulon.tasks import AutoRegression, Linear, Representation, SparseLinear, at_step
from emulon.training import TrainConfig, train

TINY = TrainConfig(
    features=2,
    points=6,
    noise=0.5,
    width=16,
    heads=2,
    layers=1,
    steps=4,
    batch=8,
    evaluation_batch=16,
    device="cpu",
    quiet=True,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(TINY, folder)
    return folder


def test_a_linear_task_is_drawn_in_float64_and_others_are_what_the_learner_saw():
    assert as_task(Linear(3, 9, noise=0.5, prior=2.0)) == LinearTask(3, 0.5, 2.0)
    task = SparseLinear(features=4, points=9, noise=0.3, nonzero=2)
    adapted = as_task(task)
    xs, ys = adapted.sample(3, 50, 12)
    assert adapted == LearnerTask(task) and adapted.features == 4
    assert xs.shape == (50, 12, 4) and ys.shape == (50, 12) and xs.dtype == torch.float64
    assert torch.equal(adapted.sample(3, 50, 12)[1], ys) and not torch.equal(adapted.sample(4, 50, 12)[1], ys)
    # a line through the points has two weights and noise 0.3 around it
    weights = torch.linalg.lstsq(xs, ys.unsqueeze(-1)).solution
    left = (ys - (xs @ weights).squeeze(-1)).square().sum(dim=1).mean().item() / (12 - 4)
    assert left == pytest.approx(0.3**2, rel=0.3)
    assert (weights.abs() > 0.5).sum() < 0.6 * weights.numel()


def test_what_is_asked_is_in_no_training_batch_and_not_in_the_evaluation():
    task = Representation(features=3, points=5)
    xs, _ = LearnerTask(task).sample(0, 4, 5)
    for step in (-1, 0, 1, 2):
        seen = task.sample(at_step(torch.Generator(), 0, step), 4).tokens[:, 0::2, 1:]
        assert not torch.equal(xs, seen.double())


def test_tasks_that_ask_for_more_than_a_number_are_refused():
    with pytest.raises(EmulonError, match="AutoRegression does not ask for a y"):
        as_task(AutoRegression())


def test_tasks_are_read_from_a_line():
    assert read_task("linear") == LinearTask()
    assert read_task("linear:features=3,noise=0.5,prior=2") == LinearTask(3, 0.5, 2.0)
    assert read_task("sparse:features=6,nonzero=2") == LearnerTask(SparseLinear(features=6, nonzero=2))


def test_a_run_folder_is_a_subject_with_its_own_task_and_length(run):
    subject = load_subject(str(run))
    assert subject.task == LinearTask(2, 0.5) and isinstance(subject.thing, Standard)
    found = identify(subject.thing, subject.task, datasets=32)
    assert found.counts == (1, 2, 3, 4, 5)
    assert load_subject(str(run), "linear:features=2").task == LinearTask(2)
    curve = squared_prediction_difference(load_predictor(run), subject.thing, subject.task, datasets=8)
    assert curve.overall.value == 0
    few = squared_prediction_difference(load_predictor(run), subject.thing, subject.task, datasets=8, points=4)
    assert few.counts == (1, 2, 3)


def test_a_learners_states_hold_the_inputs_at_once_and_others_points_never(run):
    subject = load_subject(str(run))
    xs, ys = subject.task.sample(0, 512, 6)
    hidden = hidden_states(subject.thing, xs, ys)
    assert hidden.states.shape == (2, 512, 11, 16) and hidden.tokens[:4] == ("x1", "y1", "x2", "y2")
    scores = linear_probe(hidden, xs[:, 2])
    assert scores.first_layer("x3") == 0 and scores.score[:, hidden.position("x2")].max() < 0.1
    assert scores.control.abs().max() < 0.3


def test_a_depth_sweep_trains_every_depth_and_goes_on_where_it_stopped(tmp_path):
    make = trainer(TINY, tmp_path)
    phases = depth_sweep(make, [2, 1], LinearTask(2, 0.5), datasets=16)
    assert [phase.depth for phase in phases] == [1, 2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["depth-01", "depth-02"]
    assert len(make(2).decoder.blocks) == 2
    again = depth_sweep(make, [1, 2], LinearTask(2, 0.5), datasets=16)
    assert [phase.as_numbers() for phase in again] == [phase.as_numbers() for phase in phases]
    assert make(2).read_out.weight.equal(trainer(dataclasses.replace(TINY, seed=5), tmp_path)(2).read_out.weight)
    with pytest.raises(EmulonError, match="at least 1"):
        depth_sweep(make, [0], LinearTask(2))
