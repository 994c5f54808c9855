"""A task can be written in a line, and whoever writes a class has a task."""

import pytest
import torch

from emulon.core.errors import EmulonError
from emulon.core.names import Registry
from emulon.tasks import Linear, SparseLinear, Task, read_task, stream_seed, task_options


def test_held_out_sparse_functions_have_their_weights_and_their_noise():
    xs, ys = SparseLinear(features=4, points=9, noise=0.3, nonzero=2).held_out(3, 50, 12).pairs
    # a line through the points has two weights and noise 0.3 around it
    weights = torch.linalg.lstsq(xs, ys.unsqueeze(-1)).solution
    left = (ys - (xs @ weights).squeeze(-1)).square().sum(dim=1).mean().item() / (12 - 4)
    assert left == pytest.approx(0.3**2, rel=0.3)
    assert (weights.abs() > 0.5).sum() < 0.6 * weights.numel()


def test_tasks_are_read_from_a_line_with_every_option_of_their_class():
    assert read_task("linear") == Linear(8)
    assert read_task("linear:features=3,noise=0.5,prior=2") == Linear(3, noise=0.5, prior=2.0)
    assert read_task("sparse:features=6,nonzero=2") == SparseLinear(features=6, nonzero=2)
    assert read_task("linear:noise=0.5", features=3, points=5) == Linear(3, 5, noise=0.5)
    with pytest.raises(EmulonError, match="noise is given twice"):
        read_task("linear:noise=0.5", noise=0.1)
    with pytest.raises(EmulonError, match="the task linear has no 'lags'; it takes features, points, noise, prior"):
        read_task("linear", lags=2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("liner", "there is no task 'liner'; did you mean linear"),
        ("linear:colour=3", "cannot read 'colour=3' in the task linear; it takes features, noise, prior"),
        ("linear:noise=loud", "cannot read 'noise=loud'"),
        ("linear:points=3", "cannot read 'points=3'"),
        ("linear:features=0", "features must be 1 or more"),
        ("linear:noise=-1", "noise must be 0 or more"),
        ("linear:noise=nan", "noise must be 0 or more"),
        ("linear:prior=0", "prior > 0"),
    ],
)
def test_what_makes_no_task_is_refused(text, reason):
    with pytest.raises(EmulonError, match=reason):
        read_task(text)


def test_a_class_with_a_name_is_a_task_like_the_others(monkeypatch):
    monkeypatch.setattr("emulon.tasks.task.TASKS", known := Registry("task"))

    class Own(Linear, name="own"):
        pass

    class Nameless(Linear):
        def inputs(self, generator, batch, points, dtype=torch.float32):
            return 3 + super().inputs(generator, batch, points, dtype)

    assert known["own"] is Own and Nameless not in known.values()
    assert task_options("own") == ("features", "points", "noise", "prior") and isinstance(read_task("own"), Task)
    assert torch.equal(Nameless(2).held_out(0, 4, 5).xs, 3 + Own(2).held_out(0, 4, 5).xs)


def test_a_task_says_what_it_is():
    assert str(Linear(5, noise=0.5)) == "linear functions of 5 features, noise 0.5, prior 1"


def test_stream_seeds_are_spread_and_positive():
    seeds = {stream_seed(seed, step) for seed in range(30) for step in range(-1, 30)}
    assert len(seeds) == 30 * 31 and all(0 <= seed < 2**63 for seed in seeds)
