"""Activation patching: a component's output is taken from another prompt; the score is how far ŷ moves."""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Change, Subject

# Prompts that are patched.
FEW = 8


@method("activation-patching")
def activation_patching(subject: Subject) -> Answers:
    few = subject.few(FEW)
    other = few.other_run
    heads = [Change(b, h, other.heads[b, :, :, h]) for b in range(few.blocks) for h in range(few.heads)]
    mlps = [Change(b, None, other.mlps[b]) for b in range(few.blocks)]
    moved = (few.with_changes([*heads, *mlps]) - few.run.answers).square().mean(dim=(1, 2)).sqrt()
    of_heads, of_mlps = torch.split(moved, [len(heads), len(mlps)])
    return Answers(heads=of_heads.unflatten(0, (few.blocks, few.heads)), mlps=of_mlps)
