"""What goes wrong is said in one line, and the last good checkpoint is kept."""

import json
import resource

import pytest
import torch
from tiny_runs import TINY, assert_identical, checkpoints, final_state

from emulon import cli
from emulon.core.errors import CannotWrite
from emulon.models import Learner
from emulon.training import OutOfMemory, RunFolder, TrainingDiverged, TrainStep, resume, train


def at_call(count: int, real, accident):
    """`real`, except that its `count`-th call has the accident."""
    calls = iter(range(10**9))
    return lambda *args, **kwargs: accident() if next(calls) == count else real(*args, **kwargs)


def test_a_loss_that_is_not_a_number_stops_the_run_and_keeps_the_last_good_weights(tmp_path, monkeypatch):
    real = Learner.loss
    monkeypatch.setattr(Learner, "loss", at_call(30, real, lambda: TINY_LEARNER_NAN()))
    with pytest.raises(TrainingDiverged, match=r"step 31; the last good checkpoint is .*000000028"):
        train(TINY, tmp_path / "run")
    assert all(torch.isfinite(tensor).all() for tensor in final_state(tmp_path / "run").values())


def TINY_LEARNER_NAN() -> torch.Tensor:
    return torch.tensor(float("nan"), requires_grad=True)


def test_weights_that_overflow_are_not_checkpointed_and_the_command_ends_with_code_1(tmp_path, capsys):
    RunFolder(tmp_path / "run").begin(TINY.changed(lr=1e30, log_every=1000, evaluate_every=1000))
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 1
    assert "smaller --lr" in capsys.readouterr().err and not checkpoints(tmp_path / "run" / "checkpoints")


def test_a_write_the_system_cuts_short_stops_the_run_and_it_resumes_to_the_same_weights(tmp_path, monkeypatch):
    """A real refusal, half a line into metrics.jsonl: from step 30 on no file may grow beyond 1500 bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def no_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))

    with monkeypatch.context() as patched:
        patched.setattr(TrainStep, "synchronise", at_call(34, TrainStep.synchronise, no_room))
        try:
            with pytest.raises(CannotWrite, match=r"metrics\.jsonl could not be written: File too large"):
                train(TINY, tmp_path / "run")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kept = checkpoints(tmp_path / "run" / "checkpoints")
    assert kept[-1].stem == "step-000000028"
    assert resume(tmp_path / "run").steps == TINY.schedule.steps
    train(TINY, tmp_path / "whole")
    assert_identical(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


def test_a_batch_that_really_does_not_fit_is_refused_in_one_line(tmp_path, capsys):
    args = ["standard", "--features", "3", "--points", "4", "--width", "8", "--heads", "1", "--layers", "1"]
    args += ["--steps", "3", "--device", "cpu", "--quiet"]
    for flag in ("--batch", "--evaluation-batch"):
        run = tmp_path / flag
        assert cli.main(["train", *args, flag, str(10**13), "--out", str(run)]) == 1
        said = capsys.readouterr().err
        assert "does not fit the memory; there was no checkpoint yet" in said and said.count("\n") == 1


def test_a_checkpoint_of_another_learner_is_refused(tmp_path, capsys):
    train(TINY.changed(steps=7), tmp_path / "run")
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model": {"width": 32, "heads": 2, "layers": 1}}))
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "is not of the learner in config.json" in capsys.readouterr().err


def test_a_checkpoint_that_cannot_be_read_names_the_one_before(tmp_path, capsys):
    train(TINY.changed(steps=14), tmp_path / "run")
    newest = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "delete it to resume from the one before" in capsys.readouterr().err
    newest.unlink()
    assert resume(tmp_path / "run").start == 7


def test_out_of_memory_says_what_to_make_smaller(tmp_path, monkeypatch):
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")

    def burst():
        raise error

    monkeypatch.setattr(Learner, "loss", at_call(10, Learner.loss, burst))
    with pytest.raises(OutOfMemory, match=r"batch of 8, .*000000007.*Start a new run with smaller ones"):
        train(TINY, tmp_path / "run")
    error = RuntimeError("a bug")  # and nothing else is disguised
    monkeypatch.setattr(Learner, "loss", at_call(10, Learner.loss, burst))
    with pytest.raises(RuntimeError, match="a bug"):
        train(TINY, tmp_path / "other")
