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
from emulon.identification import identify, squared_prediction_difference
from emulon.identification.loading import LOADERS, Loader, load_predictor, load_subject
from emulon.models import Standard
from emulon.tasks import Linear, RegressionTask
from emulon.training import TrainConfig, save_learner
from reproduce.algoformer.tasks import AutoRegression

RUN = Path(__file__).parents[2] / "results" / "learners" / "small_learner"
XS, YS = Linear(3, noise=0.3).held_out(0, 6, 9).pairs


@pytest.fixture
def run(tmp_path):
    config = TrainConfig.of(features=2, points=6, noise=0.5, width=16, heads=2, layers=1, device="cpu")
    save_learner(config.make_learner(config.make_task()), config, 0, tmp_path / "run")
    return tmp_path / "run"


def test_a_kept_learner_predicts_after_importing_emulon_alone():
    code = f"import emulon; print(type(emulon.load_predictor({str(RUN)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "Standard\n", done.stderr
    assert emulon.load_predictor is load_predictor


def test_a_run_folder_is_a_subject_with_its_own_task_and_length(run):
    subject = load_subject(str(run))
    assert subject.task == Linear(2, 6, noise=0.5) and isinstance(subject.thing, Standard)
    found = identify(subject.thing, subject.task, datasets=32)
    assert found.counts == (1, 2, 3, 4, 5)
    assert load_subject(str(run), "linear:features=2").task == Linear(2)
    curve = squared_prediction_difference(load_predictor(run), subject.thing, subject.task, datasets=8)
    assert curve.overall.value == 0
    few = squared_prediction_difference(load_predictor(run), subject.thing, subject.task, datasets=8, points=4)
    assert few.counts == (1, 2, 3)


def test_targets_are_loaded_by_what_they_are(tmp_path):
    assert isinstance(load_predictor("emulon.algorithms:LeastSquares"), LeastSquares)
    source = tmp_path / "own.py"
    source.write_text("def mean(xs, ys, x_query):\n    return ys.mean(-1)\nlater = 3\n")
    assert torch.equal(load_predictor(f"{source}:mean").predict(XS, YS, XS[:, 0]), YS.mean(-1))
    for target, reason in {
        "ridge": "neither a run folder",
        str(tmp_path): "folder that nothing",
        str(source): "file that nothing",
        f"{source}:later": "does not predict",
        f"{source}:missing": "cannot be loaded",
        "emulon.nowhere:f": "cannot be loaded",
        ":f": "neither a run folder",
    }.items():
        with pytest.raises(NotAPredictor, match=reason):
            load_predictor(target)


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
