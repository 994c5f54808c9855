"""Trained learners are asked like anything else: their task, as many examples as they read, and their hidden states."""

import pytest

from emulon.identification import hidden_states, identify, linear_probe, over_training
from emulon.identification.loading import load_subject
from emulon.tasks import Linear
from emulon.training import NoRun, RunFolder, TrainConfig, train

TINY = TrainConfig.of(
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


def test_a_learners_states_hold_the_inputs_at_once_and_others_points_never(run):
    subject = load_subject(str(run))
    xs, ys = subject.task.held_out(0, 512, 6).pairs
    hidden = hidden_states(subject.thing, xs, ys)
    assert hidden.states.shape == (2, 512, 11, 16) and hidden.tokens[:4] == ("x1", "y1", "x2", "y2")
    scores = linear_probe(hidden, xs[:, 2])
    assert scores.first_layer("x3") == 0 and scores.score[:, hidden.position("x2")].max() < 0.1
    assert scores.control.abs().max() < 0.3


def test_a_run_is_identified_at_every_checkpoint_it_kept(tmp_path):
    train(TINY.changed(checkpoint_every=1, keep_checkpoints=3), tmp_path / "run")
    phases = over_training(tmp_path / "run", Linear(2, noise=0.5), datasets=16)
    assert [(phase.axis, phase.place) for phase in phases] == [("steps", 2), ("steps", 3), ("steps", 4)]
    left = [phase.identification["ols"].unexplained.value for phase in phases]
    assert len(set(left)) == 3, "the checkpoints are not those of one learner three times"
    now = identify(load_subject(str(tmp_path / "run")).thing, Linear(2, noise=0.5), datasets=16)
    assert phases[-1].identification == now
    RunFolder(tmp_path / "empty").begin(TINY)
    with pytest.raises(NoRun, match="--keep-checkpoints 0"):
        over_training(tmp_path / "empty", Linear(2, noise=0.5))
