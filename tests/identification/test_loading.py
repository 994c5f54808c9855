"""Names on a command line become what they name: runs, programs, functions, and the tasks that suit them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import emulon
from emulon.algorithms import LeastSquares, RidgeRegression
from emulon.core.errors import EmulonError
from emulon.core.predictor import NotAPredictor
from emulon.identification import hidden_states, identify, linear_probe, over_training, squared_prediction_difference
from emulon.identification.loading import LOADERS, Loader, load_predictor, load_subject
from emulon.models import Standard
from emulon.tasks import Linear, RegressionTask
from emulon.training import NoRun, RunFolder, TrainConfig, save_learner, train
from reproduce.algoformer.tasks import AutoRegression

CONFIG = TrainConfig.of(
    **{"features": 2, "points": 6, "noise": 0.5, "width": 16, "heads": 2, "layers": 1, "steps": 4, "batch": 8},
    **{"evaluation_batch": 16, "device": "cpu", "quiet": True},
)
RUN = Path(__file__).parents[2] / "results" / "learners" / "small_learner"
XS, YS = Linear(3, noise=0.3).held_out(0, 6, 9).pairs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(CONFIG, folder)
    return folder


def test_a_kept_learner_predicts_after_importing_emulon_alone():
    code = f"import emulon; print(type(emulon.load_predictor({str(RUN)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "Standard\n", done.stderr
    assert emulon.load_predictor is load_predictor


def test_a_run_folder_is_a_subject_with_its_own_task_and_length(run):
    subject = load_subject(str(run))
    assert subject.task == Linear(2, 6, noise=0.5) and isinstance(subject.thing, Standard)
    assert identify(subject.thing, subject.task, datasets=32).counts == (1, 2, 3, 4, 5)
    assert load_subject(str(run), "linear:features=2").task == Linear(2)
    same = {"a": load_predictor(run), "b": subject.thing, "task": subject.task, "datasets": 8}
    assert squared_prediction_difference(**same).overall.value == 0
    assert squared_prediction_difference(**same, points=4).counts == (1, 2, 3)


def test_targets_are_loaded_by_what_they_are(tmp_path):
    assert isinstance(load_predictor("emulon.algorithms:LeastSquares"), LeastSquares)
    source = tmp_path / "own.py"
    source.write_text("def mean(xs, ys, x_query):\n    return ys.mean(-1)\nlater = 3\n")
    assert torch.equal(load_predictor(f"{source}:mean").predict(XS, YS, XS[:, 0]), YS.mean(-1))
    with pytest.raises(NotAPredictor, match="does not predict"):
        load_predictor(f"{source}:later")


def test_a_loader_makes_more_kinds_of_folders_readable(tmp_path, monkeypatch):
    monkeypatch.setattr("emulon.identification.loading.LOADERS", known := list(LOADERS))
    (tmp_path / "mine.json").write_text("{}")
    with pytest.raises(NotAPredictor):
        load_predictor(tmp_path)
    known.append(Loader(lambda path: (path / "mine.json").exists(), lambda path: RidgeRegression(2.0)))
    assert load_predictor(tmp_path) == RidgeRegression(2.0)


def test_a_learner_of_more_than_a_number_has_no_task_to_be_identified_on(tmp_path):
    assert not issubclass(AutoRegression, RegressionTask)
    config = TrainConfig.of(task="auto_regression", features=2, points=4, width=8, heads=2, layers=1, device="cpu")
    save_learner(config.make_learner(config.make_task()), config, 0, tmp_path / "run")
    with pytest.raises(EmulonError, match="AutoRegression does not ask for a y"):
        load_subject(str(tmp_path / "run"))
    assert load_subject(str(tmp_path / "run"), "linear:features=3").task == Linear(3)


def test_a_learners_states_hold_the_inputs_at_once_and_others_points_never(run):
    subject = load_subject(str(run))
    xs, ys = subject.task.held_out(0, 512, 6).pairs
    hidden = hidden_states(subject.thing, xs, ys)
    assert hidden.states.shape == (2, 512, 11, 16) and hidden.tokens[:4] == ("x1", "y1", "x2", "y2")
    scores = linear_probe(hidden, xs[:, 2])
    assert scores.first_layer("x3") == 0 and scores.score[:, hidden.tokens.index("x2")].max() < 0.1
    assert scores.control.abs().max() < 0.3


def test_a_run_is_identified_at_every_checkpoint_it_kept(tmp_path):
    train(CONFIG.changed(checkpoint_every=1, keep_checkpoints=3), tmp_path / "run")
    phases = over_training(tmp_path / "run", Linear(2, noise=0.5), datasets=16)
    assert [(phase.axis, phase.place) for phase in phases] == [("steps", 2), ("steps", 3), ("steps", 4)]
    left = [phase.identification["ols"].unexplained.value for phase in phases]
    assert len(set(left)) == 3, "the checkpoints are not those of one learner three times"
    now = identify(load_subject(str(tmp_path / "run")).thing, Linear(2, noise=0.5), datasets=16)
    assert phases[-1].identification == now
    RunFolder(tmp_path / "empty").begin(CONFIG)
    with pytest.raises(NoRun, match="--keep-checkpoints 0"):
        over_training(tmp_path / "empty", Linear(2, noise=0.5))
