"""A run killed anywhere ends, once resumed, where it would have ended."""

import os
import pickle
import random
import signal
import time
from statistics import fmean

import pytest
import torch
from tiny_runs import FAST, TINY, assert_identical, checkpoints, final_state, in_a_process

from emulon.training import NoRun, RunFolder, load_learner, resume, train
from emulon.training.fit import Stopped


def test_killed_with_signal_9_and_resumed_the_weights_are_bit_identical(tmp_path):
    long = FAST.changed(steps=200)  # Muon for the matrices, Adam for the rest
    process = in_a_process(f"train(FAST.changed(steps=200), {str(tmp_path / 'killed')!r})")
    wanted = random.SystemRandom().randint(1, 15) * 7
    while process.poll() is None:
        found = checkpoints(tmp_path / "killed" / "checkpoints")
        if found and int(found[-1].stem[5:]) >= wanted:
            break
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "the run was over before it could be killed"
    resume(tmp_path / "killed")
    train(long, tmp_path / "whole")
    assert_identical(final_state(tmp_path / "killed"), final_state(tmp_path / "whole"))
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


def test_a_run_that_is_asked_to_stop_writes_a_checkpoint_and_says_how_to_go_on(tmp_path):
    folder = tmp_path / "stopped run"
    config = FAST.changed(steps=200, checkpoint_every=1000)
    words = f"['train', '--resume', {str(folder)!r}]"
    RunFolder(folder).begin(config)
    process = in_a_process(f"from emulon.cli import main\nraise SystemExit(main({words}))")
    while process.poll() is None and not (folder / "metrics.jsonl").exists():
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, error
    [step] = RunFolder(folder).kept_steps()
    assert 0 < step < 200
    assert f"stopped after step {step} of 200; go on with: emulon train --resume '{folder}'\n" in error
    resume(folder)
    train(config, tmp_path / "whole")
    assert_identical(final_state(folder), final_state(tmp_path / "whole"))
    assert losses(folder) == losses(tmp_path / "whole")


def losses(folder):
    return [(line["step"], line.get("loss"), line.get("error")) for line in RunFolder(folder).metrics()]


def test_a_stop_can_be_told_to_another_process():
    """What cannot be read breaks a pool, which ends its other processes before they have written a checkpoint."""
    told = pickle.loads(pickle.dumps(Stopped("stopped after step 3", signal.SIGTERM)))
    assert str(told) == "stopped after step 3" and told.signal == signal.SIGTERM


def test_a_run_killed_before_its_first_checkpoint_starts_again(tmp_path):
    RunFolder(tmp_path / "early").begin(TINY)
    (tmp_path / "early" / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "loss": 3.0}\n{"kind": "tr')
    (tmp_path / "early" / "checkpoints" / ".step-000000007.safetensors.99").write_bytes(b"half")
    resume(tmp_path / "early")
    train(TINY, tmp_path / "whole")
    assert_identical(final_state(tmp_path / "early"), final_state(tmp_path / "whole"))
    assert losses(tmp_path / "early") == losses(tmp_path / "whole")


def test_early_stopping_resumes_with_its_patience(tmp_path):
    hopeless = TINY.changed(lr=0.0, patience=2, evaluate_every=10)
    ended = train(hopeless, tmp_path / "run")
    assert (ended.start, ended.steps) == (0, 30) and ended.seconds > 0 and ended.cpu_seconds > 0
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert newest.stem == "step-000000030"
    assert resume(tmp_path / "run").start == 30  # over is over
    newest.unlink()
    assert resume(tmp_path / "run").steps == 30


def test_a_run_that_may_stop_early_ends_with_its_best_weights(tmp_path):
    restless = TINY.changed(lr=0.3, patience=4, evaluate_every=5, checkpoint_every=5, steps=40)
    ended = train(restless, tmp_path / "run")
    errors = [fmean(each["curve"]) for each in ended.history]
    assert fmean(ended.curve) == min(errors) < errors[-1]
    learner, _ = load_learner(tmp_path / "run")
    assert torch.equal(learner.position, ended.learner.position)
    assert not torch.equal(load_learner(tmp_path / "run", ended.steps)[0].position, learner.position)
    checkpoints(tmp_path / "run" / "checkpoints")[-1].unlink()
    assert resume(tmp_path / "run").curve == ended.curve


def test_the_newest_two_checkpoints_are_kept_or_all_and_a_finished_run_resumes_to_itself(tmp_path):
    first = train(TINY, tmp_path / "run")
    assert RunFolder(tmp_path / "run").kept_steps() == [56, 60]
    assert resume(tmp_path / "run").curve == first.curve
    train(TINY.changed(steps=21, keep_checkpoints=0), tmp_path / "all")
    assert RunFolder(tmp_path / "all").kept_steps() == [7, 14, 21]


def test_folders_that_hold_no_run_or_another_are_refused(tmp_path):
    with pytest.raises(NoRun, match="--out"):
        resume(tmp_path)
    RunFolder(tmp_path / "run").begin(TINY)
    with pytest.raises(NoRun, match="--resume"):
        train(TINY, tmp_path / "run")
