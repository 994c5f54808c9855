"""Which algorithm: `identify`, from answers alone, and random guesses at every question."""

from __future__ import annotations

import torch
from torch import Tensor

from emulon.identification import REFERENCES, Prefixes, Reference, identify
from emulon.identification.references import ContinuousParameter
from emulon.planted.benchmark.answers import Answers, Which, method
from emulon.planted.benchmark.subject import Subject

DATASETS = 128


def moving_average(prefixes: Prefixes, integers: Tensor, continuous: Tensor) -> Tensor:
    """Reference: ŷ ← γŷ + (1 − γ)y."""
    answer = torch.zeros(len(continuous), prefixes.datasets, dtype=torch.float64, device="cpu")
    out = []
    for y in prefixes.ys[:, : prefixes.counts[-1]].unbind(dim=1):
        answer = continuous[:, None] * answer + (1 - continuous[:, None]) * y
        out.append(answer)
    return torch.stack([out[n - 1] for n in prefixes.counts], dim=-1)


def softmax_average(prefixes: Prefixes, integers: Tensor, continuous: Tensor) -> Tensor:
    """Reference: the mean of targets with weights e^{s·x·x_j}."""
    out = []
    for n in prefixes.counts:
        alike = (prefixes.xs[:, :n] @ prefixes.xs[:, n].unsqueeze(-1)).squeeze(-1)
        out.append(((continuous[:, None, None] * alike).softmax(dim=-1) * prefixes.ys[:, :n]).sum(dim=-1))
    return torch.stack(out, dim=-1)


def _one(prefixes: Prefixes) -> float:
    return 1.0


# The references of `identify` and two that only planted models need; then the candidates' names for references.
REFERENCES_HERE = (
    *REFERENCES.values(),
    Reference("moving average", "moving average", moving_average, None, ContinuousParameter("decay", 0.01, 1.0, _one)),
    Reference("softmax average", "neighbours", softmax_average, None, ContinuousParameter("sharp", 0.1, 1e2, _one)),
)
CANDIDATE_OF = {
    "sgd": "sgd",
    "gradient descent": "batch descent",
    "ridge": "ridge",
    "moving average": "moving average",
    "previous target": "last value",
    "softmax average": "nearest average",
}


@method("identify")
def identified(subject: Subject) -> Answers:
    """The nearest reference algorithm, with the interval of its fitted parameter."""
    found = identify(subject.predictor, subject.task, references=REFERENCES_HERE, datasets=DATASETS, seed=subject.seed)
    other = subject.candidates[-1]
    named = CANDIDATE_OF.get(found.algorithm, other)
    possible = {CANDIDATE_OF.get(name, other) for name in (found.algorithm, *found.ties)} if found.near else {other}
    ends = None if found.interval is None else (found.interval.low, found.interval.high)
    return Answers(which=Which(named, frozenset(possible), ends))


@method("random")
def random(subject: Subject) -> Answers:
    """Random guesses: the chance level of every score."""
    generator = torch.Generator().manual_seed(subject.seed)
    streams, tokens = subject.blocks + 1, subject.prompts.shape[1]
    places = torch.rand(len(subject.quantities), streams, tokens, generator=generator, device="cpu")
    heads = torch.rand(subject.blocks, subject.heads, generator=generator, device="cpu")
    named = subject.candidates[int(torch.randint(len(subject.candidates), (), generator=generator, device="cpu"))]
    low, high = torch.rand(2, generator=generator, device="cpu").sort().values.tolist()
    which = Which(named, frozenset({named}), (low, high))
    return Answers(places, heads, torch.rand(subject.blocks, generator=generator, device="cpu"), which)
