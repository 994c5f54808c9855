"""Training from a specimen: it starts where the specimen is, keeps off the pads, and promises nothing."""

import math

import pytest
import torch

from emulon import planted as specimens
from emulon.planted.finetune import finetuned
from emulon.planted.task import BoundedLinear

pytest.importorskip("transformers", reason="specimens are GPT2Models (pip install 'emulon[hf]')")


def test_training_starts_at_the_specimen_and_leaves_pads_alone() -> None:
    start = specimens.disguise(specimens.specimen_named("batch descent", samples=3), seed=1, only=("turned",))
    xs, ys = start.draw(8, seed=1)
    first, last = finetuned(start, BoundedLinear(2, 3, noise=0.5), rate=1e-5, at=(0, 3), batch=8)
    assert (first.step, last.step) == (0, 3) and torch.equal(first.specimen(xs, ys), start(xs, ys))
    assert (last.specimen(xs, ys) - start(xs, ys)).abs().max() > start.certificate.bound
    assert last.specimen.certificate.bound == math.inf and not last.specimen.certificate.proved
    pads = start.truth.registers["pad"].write.abs().sum(dim=0) > 0
    for name, part in last.specimen.state.items():
        same = part == start.state[name]
        if name.endswith(("c_attn.weight", "c_fc.weight")):
            assert same[pads].all() and not same.all()
        elif name.endswith("c_proj.weight"):
            assert same[:, pads].all()
        else:
            assert same.all()


def test_training_is_a_function_of_its_seed() -> None:
    start = specimens.specimen_named("last value", samples=2)
    runs = [list(finetuned(start, start.task, rate=1e-6, at=(2,), batch=4, seed=seed)) for seed in (0, 0, 1)]
    assert runs[0][0].loss == runs[1][0].loss != runs[2][0].loss
