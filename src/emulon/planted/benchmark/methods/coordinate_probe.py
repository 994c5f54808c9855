"""Coordinate probe: the best single coordinate of the stream, as one looks for a neuron that means something; its r².

It believes that quantities stand along the axes. In a plain specimen they do.
"""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.methods.linear_probe import features, standard
from emulon.planted.benchmark.subject import Subject


@method("coordinate-probe")
def coordinate_probe(subject: Subject) -> Answers:
    inputs = features(subject)
    count = inputs.shape[2] - 1
    found = [
        (inputs.mT @ standard(one) / count).square().amax(dim=-2).mean(dim=-1).round(decimals=3)
        for one in subject.quantities
    ]
    return Answers(places=torch.stack(found) if found else inputs.new_zeros(0, *inputs.shape[:2]))
