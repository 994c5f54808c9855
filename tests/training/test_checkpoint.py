"""Checkpoints: what was written is what is read, or a refusal."""

import random

import pytest
import torch
from safetensors.torch import save_file

from emulon.core.errors import NoRun
from emulon.training.run_folder import read_checkpoint, write_checkpoint

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
