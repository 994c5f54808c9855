"""Remark 4.1: the emulators of a head keep its permutation equivariance."""

from __future__ import annotations

from typing import Any

import torch

from emulon.constructions import HeadInEmbedding, HeadInTokens
from emulon.report.figure import Figure, Panel, Series
from reproduce.bounded import largest, normal
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

MODULES: dict[str, tuple[type[HeadInEmbedding] | type[HeadInTokens], dict[str, Any]]] = {
    "weights in the embedding, paper's": (HeadInEmbedding, {"grid": "paper", "heads": 40}),
    "weights in the embedding, ours": (HeadInEmbedding, {"points": 17}),
    "weights as tokens, paper's": (HeadInTokens, {"grid": "paper", "points": 65}),
    "weights as tokens, ours": (HeadInTokens, {"points": 17}),
}
# What reordering sums may change, relative to the largest output.
ROUNDING = 1e-11


def run(setting: Setting) -> Numbers:
    """|module(πx) − π·module(x)| over the largest output, the worst of some permutations; and what π itself changes."""
    tokens, features, width = (setting.sizes[key] for key in ("tokens", "features", "width"))
    draw = torch.Generator().manual_seed(setting.seed)
    x = normal(draw, tokens, features)
    weights = [normal(draw, width, features) / features for _ in range(3)]
    reach = 1.01 * max((x.abs() @ w.abs().mT).max().item() for w in weights)
    orders = [torch.randperm(tokens, generator=draw) for _ in range(setting.sizes["permutations"])]
    numbers: Numbers = {}
    for done, (name, (construct, options)) in enumerate(MODULES.items()):
        setting.report_progress(name, done / len(MODULES))
        module = construct(tokens, features, width, reach, **options)
        plain = module(x, *weights)
        size = plain.abs().max().item()
        numbers[name] = {
            "difference": max(largest(module(x[order], *weights), plain[order]) for order in orders) / size,
            "moved": max(largest(plain[order], plain) for order in orders) / size,
        }
    return numbers


def judge(numbers: Numbers) -> Verdict:
    worst = max(numbers, key=lambda name: numbers[name]["difference"])
    moved = min(each["moved"] for each in numbers.values())
    difference = numbers[worst]["difference"]
    ours = f"permuting before and after differ by at most {difference:.0e} of the output ({worst})"
    reason = f"rounding alone ({ROUNDING:.0e} allowed), where the permutations move outputs by {moved:.1g} or more"
    return Verdict.that(difference <= ROUNDING < moved, ours, reason)


def figure(numbers: Numbers) -> Figure:
    names = [name.replace(", ", ",\n").replace(" in ", "\nin ").replace(" as ", "\nas ") for name in numbers]
    labels = {"difference": "permuted before against after", "moved": "permuted against not"}
    series = [
        Series(label, names, [max(each[key], 1e-17) for each in numbers.values()], "bars")
        for key, label in labels.items()
    ]
    return Figure([Panel("", "relative difference", series, log_y=True)])


CLAIM = Claim(
    name="emulation-remark-4.1",
    source="Hu et al. 2025, Remark 4.1",
    statement="The emulators of a head are permutation equivariant, as the head is.",
    theirs="“an identical change in the order of the columns”",
    scales={"small": Scale(0.1, {"tokens": 10, "features": 3, "width": 2, "permutations": 20})},
    run=run,
    judge=judge,
    figure=figure,
    differs="The remark is about Theorem 4.1's construction; Theorem 4.2's is asked, too.",
)
