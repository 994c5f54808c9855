"""The built-in methods: `identify` from answers alone, guesses, circuit discovery, probes. Importing registers them."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.identification import REFERENCES, Prefixes, Reference, identify
from emulon.identification.references import ContinuousParameter
from emulon.planted.benchmark.answers import Answers, Which, method
from emulon.planted.benchmark.subject import Change, Subject

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


# Ridge penalty of the probe, for features of variance 1; a third of the prompts is held out.
RIDGE = 1e-4
# A direction that varies less than this, relative to its size, is rounding.
ROUNDING = 1e-9
# Random functions of the control task, and random ReLUs of the MLP probe.
CONTROLS, HIDDEN = 16, 48


@method("linear-probe")
def linear_probe(subject: Subject) -> Answers:
    """Ridge regression from the stream to a quantity."""
    return Answers(places=probe(features(subject), subject.quantities))


@method("mlp-probe")
def mlp_probe(subject: Subject) -> Answers:
    """Ridge regression from the stream and a hidden layer of random ReLUs.

    Only the last layer is fitted, in closed form, so that a probe at every place needs no training run.
    """
    generator = torch.Generator().manual_seed(subject.seed)
    inputs = features(subject)
    width = inputs.shape[-1]
    inward = torch.randn(width, HIDDEN, dtype=inputs.dtype, generator=generator, device="cpu") / width**0.5
    shift = torch.randn(HIDDEN, dtype=inputs.dtype, generator=generator, device="cpu")
    hidden = standard(torch.relu(inputs @ inward + shift))
    return Answers(places=probe(torch.cat([inputs, hidden], dim=-1), subject.quantities))


@method("control-probe")
def control_probe(subject: Subject) -> Answers:
    """Selectivity (Hewitt and Liang 2019): the linear probe's R² minus its R² on a control task.

    The control task is random functions of the prompt; a place where these are found gives away any function.
    """
    generator = torch.Generator().manual_seed(subject.seed)
    inputs = features(subject)
    # cos of random projections of the embeddings: as random as a table, and equal for equal prompts.
    given = inputs[0].movedim(0, 1).flatten(1)
    angles = given @ torch.randn(given.shape[1], CONTROLS, dtype=given.dtype, generator=generator, device="cpu")
    controls = (torch.cos(angles / given.shape[1] ** 0.5),)
    return Answers(places=probe(inputs, subject.quantities) - probe(inputs, controls).clamp(min=0.0))


@method("coordinate-probe")
def coordinate_probe(subject: Subject) -> Answers:
    """The r² of the best single coordinate, as when looking for an interpretable neuron."""
    inputs = features(subject)
    count = inputs.shape[2] - 1
    found = [
        (inputs.mT @ standard(one) / count).square().amax(dim=-2).mean(dim=-1).round(decimals=3)
        for one in subject.quantities
    ]
    return Answers(places=torch.stack(found) if found else inputs.new_zeros(0, *inputs.shape[:2]))


def features(subject: Subject) -> Float[Tensor, "streams tokens prompts width"]:
    """The streams, every direction scaled to variance 1 over prompts."""
    return standard(subject.run.streams.double().transpose(1, 2))


def standard(values: Float[Tensor, "... prompts width"]) -> Float[Tensor, "... prompts width"]:
    """Mean 0 and variance 1 over prompts; directions that hold only rounding become 0."""
    centred = values - values.mean(dim=-2, keepdim=True)
    size, deviation = values.abs().amax(dim=-2, keepdim=True), centred.std(dim=-2, keepdim=True)
    return torch.where(deviation > ROUNDING * size, centred / deviation.clamp(min=1e-300), 0.0)


def probe(
    inputs: Float[Tensor, "streams tokens prompts width"], quantities: tuple[Float[Tensor, "prompts _"], ...]
) -> Float[Tensor, "quantities streams tokens"]:
    """R² of every quantity at every place, averaged over the quantity's entries."""
    if not quantities:
        return inputs.new_zeros(0, *inputs.shape[:2])
    targets = torch.cat([standard(one) for one in quantities], dim=1)
    kept = inputs.shape[2] * 2 // 3
    x, y = inputs[..., :kept, :], targets[:kept]
    gram = x.mT @ x + RIDGE * kept * torch.eye(x.shape[-1], dtype=x.dtype, device="cpu")
    weights = torch.cholesky_solve(x.mT @ y, torch.linalg.cholesky(gram))
    off, spread = inputs[..., kept:, :] @ weights - targets[kept:], targets[kept:] - targets[kept:].mean(dim=0)
    fit = 1 - off.square().sum(dim=-2) / spread.square().sum(dim=0)
    parts = fit.split([one.shape[1] for one in quantities], dim=-1)
    # Rounded to three digits, so that of equally good places the first wins: later ones may be copies.
    return torch.stack([part.mean(dim=-1) for part in parts]).round(decimals=3)
