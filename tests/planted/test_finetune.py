"""Training from a planted model: it starts where the planted model is, keeps off the pads, and promises nothing."""

import math

import pytest
import torch

from emulon import planted
from emulon.planted.finetune import finetuned
from emulon.planted.mechanism import BoundedLinear

pytest.importorskip("transformers", reason="planted models are GPT2Models (pip install 'emulon[hf]')")


def test_training_starts_at_the_planted_model_and_leaves_pads_alone() -> None:
    start = planted.obfuscate(planted.plant("batch descent", samples=3), seed=1, only=("rotated",))
    xs, ys = start.draw(8, seed=1)
    first, last = finetuned(start, BoundedLinear(2, 3, noise=0.5), rate=1e-5, at=(0, 3), batch=8)
    assert (first.step, last.step) == (0, 3) and torch.equal(first.model(xs, ys), start(xs, ys))
    assert (last.model(xs, ys) - start(xs, ys)).abs().max() > start.certificate.bound
    assert last.model.certificate.bound == math.inf and not last.model.certificate.proved
    pads = start.truth.registers["pad"].write.abs().sum(dim=0) > 0
    for name, part in last.model.state.items():
        same = part == start.state[name]
        if name.endswith(("c_attn.weight", "c_fc.weight")):
            assert same[pads].all() and not same.all()
        elif name.endswith("c_proj.weight"):
            assert same[:, pads].all()
        else:
            assert same.all()


def test_training_is_a_function_of_its_seed() -> None:
    start = planted.plant("last value", samples=2)
    runs = [list(finetuned(start, start.task, rate=1e-6, at=(2,), batch=4, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0][0].loss == runs[1][0].loss != runs[2][0].loss
