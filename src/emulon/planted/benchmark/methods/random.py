"""Guessing: what every score is worth by chance."""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, Which, method
from emulon.planted.benchmark.subject import Subject


@method("random")
def random(subject: Subject) -> Answers:
    generator = torch.Generator().manual_seed(subject.seed)
    streams, tokens = subject.blocks + 1, subject.prompts.shape[1]
    places = torch.rand(len(subject.quantities), streams, tokens, generator=generator, device="cpu")
    heads = torch.rand(subject.blocks, subject.heads, generator=generator, device="cpu")
    named = subject.candidates[int(torch.randint(len(subject.candidates), (), generator=generator, device="cpu"))]
    low, high = torch.rand(2, generator=generator, device="cpu").sort().values.tolist()
    which = Which(named, frozenset({named}), (low, high))
    return Answers(places, heads, torch.rand(subject.blocks, generator=generator, device="cpu"), which)
