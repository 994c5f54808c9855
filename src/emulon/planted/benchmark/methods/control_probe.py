"""Probe with a control task (Hewitt and Liang 2019): what the linear probe finds beyond what it would find of anything.

The control is random functions of the prompt: a place that gives these away gives anything away. The score is the
difference in R², their selectivity.
"""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.methods.linear_probe import features, probe
from emulon.planted.benchmark.subject import Subject

CONTROLS = 16


@method("control-probe")
def control_probe(subject: Subject) -> Answers:
    generator = torch.Generator().manual_seed(subject.seed)
    inputs = features(subject)
    # What each token was given, turned at random and wrapped: as random as a table, and the same for the same numbers.
    given = inputs[0].movedim(0, 1).flatten(1)
    angles = given @ torch.randn(given.shape[1], CONTROLS, dtype=given.dtype, generator=generator, device="cpu")
    controls = (torch.cos(angles / given.shape[1] ** 0.5),)
    return Answers(places=probe(inputs, subject.quantities) - probe(inputs, controls).clamp(min=0.0))
