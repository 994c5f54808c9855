"""A run folder gives its learner back."""

import pytest
import torch
from tiny_runs import TINY

from emulon.training import NoRun, RunFolder, load_learner, resume, save_learner, train


def test_the_learner_of_a_run_answers_as_it_did_when_trained(tmp_path):
    trained = train(TINY, tmp_path / "run")
    learner, config = load_learner(tmp_path / "run")
    tokens = torch.randn(4, 9, 4, generator=torch.Generator().manual_seed(0))
    assert config == TINY and torch.equal(learner(tokens), trained.learner(tokens))


def test_a_run_gives_its_learner_back_as_it_was_at_any_kept_checkpoint(tmp_path):
    train(TINY.changed(steps=14, keep_checkpoints=0), tmp_path / "run")
    train(TINY.changed(steps=7), tmp_path / "short")
    tokens = torch.randn(4, 9, 4, generator=torch.Generator().manual_seed(0))
    then, short = load_learner(tmp_path / "run", 7)[0], load_learner(tmp_path / "short")[0]
    assert torch.equal(then(tokens), short(tokens))
    assert not torch.equal(then(tokens), load_learner(tmp_path / "run")[0](tokens))
    with pytest.raises(NoRun, match="no checkpoint after 8 steps; those it holds: 7, 14"):
        load_learner(tmp_path / "run", 8)


def test_a_learner_saved_alone_is_smaller_and_the_same(tmp_path):
    trained = train(TINY, tmp_path / "run")
    save_learner(trained.learner, TINY, trained.steps, tmp_path / "alone")
    learner, config = load_learner(tmp_path / "alone")
    assert config == TINY
    assert all(torch.equal(a, b) for a, b in zip(learner.parameters(), trained.learner.parameters(), strict=True))
    sizes = [max(path.stat().st_size for path in tmp_path.glob(f"{name}/checkpoints/*")) for name in ("run", "alone")]
    assert sizes[1] < sizes[0] / 2
    with pytest.raises(NoRun, match="weights alone"):
        resume(tmp_path / "alone")


def test_a_run_without_a_checkpoint_has_no_learner_yet(tmp_path):
    RunFolder(tmp_path / "run").begin(TINY)
    with pytest.raises(NoRun, match="no checkpoint yet"):
        load_learner(tmp_path / "run")
    with pytest.raises(NoRun, match="holds no run"):
        load_learner(tmp_path / "nothing")


def test_what_a_run_took_is_of_this_call(tmp_path):
    half = train(TINY.changed(lr=0.0, patience=1, evaluate_every=7), tmp_path / "run")
    assert (half.start, half.steps, half.leads) == (0, 14, True) and half.seconds > 0 and half.cpu_seconds > 0
    assert resume(tmp_path / "run").start == 14
