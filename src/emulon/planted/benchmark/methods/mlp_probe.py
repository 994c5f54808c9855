"""MLP probe: a hidden layer of random ReLUs beside the stream itself, and ridge regression on both.

Only the last layer is fitted, in closed form, so that a probe at every place costs no training run.
"""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.methods.linear_probe import features, probe, standard
from emulon.planted.benchmark.subject import Subject

HIDDEN = 48


@method("mlp-probe")
def mlp_probe(subject: Subject) -> Answers:
    generator = torch.Generator().manual_seed(subject.seed)
    inputs = features(subject)
    width = inputs.shape[-1]
    inward = torch.randn(width, HIDDEN, dtype=inputs.dtype, generator=generator, device="cpu") / width**0.5
    shift = torch.randn(HIDDEN, dtype=inputs.dtype, generator=generator, device="cpu")
    hidden = standard(torch.relu(inputs @ inward + shift))
    return Answers(places=probe(torch.cat([inputs, hidden], dim=-1), subject.quantities))
