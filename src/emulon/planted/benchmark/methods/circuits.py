"""Circuit discovery: which heads and MLPs does ŷ depend on?"""

from __future__ import annotations

import torch

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Change, Subject

# Prompts used by activation patching, which runs the model once per component, and by attribution patching.
PATCHED, ATTRIBUTED = 8, 32


@method("activation-patching")
def activation_patching(subject: Subject) -> Answers:
    """Replace a component's output by its output on another prompt; the score is the change of ŷ (root mean square)."""
    few = subject.few(PATCHED)
    other = few.other_run
    heads = [Change(b, h, other.heads[b, :, :, h]) for b in range(few.blocks) for h in range(few.heads)]
    mlps = [Change(b, None, other.mlps[b]) for b in range(few.blocks)]
    moved = (few.with_changes([*heads, *mlps]) - few.run.answers).square().mean(dim=(1, 2)).sqrt()
    of_heads, of_mlps = torch.split(moved, [len(heads), len(mlps)])
    return Answers(heads=of_heads.unflatten(0, (few.blocks, few.heads)), mlps=of_mlps)


@method("attribution-patching")
def attribution_patching(subject: Subject) -> Answers:
    """Activation patching to first order, (other − own)·∂ŷ/∂output, for all components in one backward pass.

    Nanda 2023; Syed et al. 2023.
    """
    few = subject.few(ATTRIBUTED)
    own, other, slopes = few.run, few.other_run, few.slopes
    heads = ((other.heads - own.heads) * slopes.heads).sum(dim=(2, 4)).abs().mean(dim=1)
    mlps = ((other.mlps - own.mlps) * slopes.mlps).sum(dim=(2, 3)).abs().mean(dim=1)
    return Answers(heads=heads, mlps=mlps)


@method("readout-attribution")
def readout_attribution(subject: Subject) -> Answers:
    """Direct readout attribution: the variation of what a component adds along the readout direction."""
    run = subject.run
    directions = torch.stack([subject.output_matrix(block) @ subject.readout for block in range(subject.blocks)])
    heads = torch.einsum("bpthd,bhd->bhpt", run.heads, directions)[..., 1::2]
    mlps = (run.mlps @ subject.readout)[..., 1::2]
    return Answers(heads=heads.std(dim=2).mean(dim=-1), mlps=mlps.std(dim=1).mean(dim=-1))
