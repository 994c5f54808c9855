"""A run folder gives its learner back; a checkpoint is what was written, or a refusal."""

import random

import pytest
import torch
from safetensors.torch import save_file
from tiny_runs import TINY

from emulon.training import NoRun, RunFolder, load_learner, resume, save_learner, train
from emulon.training.run_folder import read_checkpoint, write_checkpoint


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


TENSORS = {
    "weights/w": torch.linspace(-1, 1, 12).reshape(3, 4),
    "weights/half": torch.ones(5, dtype=torch.bfloat16),
    "optimiser/count": torch.tensor(7),
    "optimiser/none": torch.zeros(0, 3),
}


def test_a_checkpoint_reads_back_as_written(tmp_path):
    write_checkpoint(tmp_path, 9, TENSORS, {"patience": "{}"})
    step, tensors, notes = read_checkpoint(tmp_path)
    assert step == 9 and notes == {"patience": "{}"} and tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_no_flipped_bit_is_read_as_other_weights(tmp_path):
    where = write_checkpoint(tmp_path, 9, TENSORS, {"patience": "{}"})
    content, draw = where.read_bytes(), random.Random(0)
    for at in draw.sample(range(8 * len(content)), 400):
        flipped = bytearray(content)
        flipped[at // 8] ^= 1 << at % 8
        where.write_bytes(flipped)
        with pytest.raises(NoRun, match="delete it to resume from the one before") as caught:
            read_checkpoint(tmp_path)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_older_than_checksums_is_still_read(tmp_path):
    save_file(TENSORS, tmp_path / "step-000000009.safetensors", {"step": "9"})
    step, tensors, notes = read_checkpoint(tmp_path)
    assert (step, notes) == (9, {}) and torch.equal(tensors["weights/w"], TENSORS["weights/w"])
