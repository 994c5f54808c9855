"""Attribution patching: activation patching to first order, (other − own)·∂ŷ/∂output, for all components by one
backward pass (Nanda 2023; Syed et al. 2023)."""

from __future__ import annotations

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Subject

FEW = 32


@method("attribution-patching")
def attribution_patching(subject: Subject) -> Answers:
    few = subject.few(FEW)
    own, other, slopes = few.run, few.other_run, few.slopes
    heads = ((other.heads - own.heads) * slopes.heads).sum(dim=(2, 4)).abs().mean(dim=1)
    mlps = ((other.mlps - own.mlps) * slopes.mlps).sum(dim=(2, 3)).abs().mean(dim=1)
    return Answers(heads=heads, mlps=mlps)
