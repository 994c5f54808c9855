"""Direct readout attribution: how much of ŷ's variation a component adds by itself, along the read-out direction."""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Subject


@method("readout-attribution")
def readout_attribution(subject: Subject) -> Answers:
    run = subject.run
    directions = torch.stack([subject.output_matrix(block) @ subject.readout for block in range(subject.blocks)])
    heads = torch.einsum("bpthd,bhd->bhpt", run.heads, directions)[..., 1::2]
    mlps = (run.mlps @ subject.readout)[..., 1::2]
    return Answers(heads=heads.std(dim=2).mean(dim=-1), mlps=mlps.std(dim=1).mean(dim=-1))
