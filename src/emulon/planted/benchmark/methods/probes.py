"""Where a quantity is: probes of the residual stream."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Subject, standard

# Ridge penalty of the probe, for features of variance 1; a third of the prompts is held out.
RIDGE = 1e-4
# Random functions of the control task, and random ReLUs of the MLP probe.
CONTROLS, HIDDEN = 16, 48


@method("linear-probe")
def linear_probe(subject: Subject) -> Answers:
    """Ridge regression from the stream to a quantity."""
    return Answers(places=probe(subject.features, subject.quantities))


@method("mlp-probe")
def mlp_probe(subject: Subject) -> Answers:
    """Ridge regression from the stream and a hidden layer of random ReLUs.

    Only the last layer is fitted, in closed form, so that a probe at every place needs no training run.
    """
    generator = torch.Generator().manual_seed(subject.seed)
    inputs = subject.features
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
    inputs = subject.features
    # cos of random projections of the embeddings: as random as a table, and equal for equal prompts.
    given = inputs[0].movedim(0, 1).flatten(1)
    angles = given @ torch.randn(given.shape[1], CONTROLS, dtype=given.dtype, generator=generator, device="cpu")
    found = probe(inputs, (*subject.quantities, torch.cos(angles / given.shape[1] ** 0.5)))
    return Answers(places=found[:-1] - found[-1].clamp(min=0.0))


@method("coordinate-probe")
def coordinate_probe(subject: Subject) -> Answers:
    """The r² of the best single coordinate, as when looking for an interpretable neuron."""
    return Answers(places=best_correlation(subject.features, subject))


def ridge(
    x: Float[Tensor, "*places rows width"], y: Float[Tensor, "*_ rows size"]
) -> Float[Tensor, "*places width size"]:
    """The weights of a ridge regression of y on x, columns of both scaled to variance 1."""
    gram = x.mT @ x + RIDGE * x.shape[-2] * torch.eye(x.shape[-1], dtype=x.dtype, device="cpu")
    return torch.cholesky_solve(x.mT @ y, torch.linalg.cholesky(gram))


def probe(
    inputs: Float[Tensor, "streams tokens prompts width"], quantities: tuple[Float[Tensor, "prompts _"], ...]
) -> Float[Tensor, "quantities streams tokens"]:
    """R² of every quantity at every place, averaged over the quantity's entries."""
    if not quantities:
        return inputs.new_zeros(0, *inputs.shape[:2])
    targets = torch.cat([standard(one) for one in quantities], dim=1)
    kept = inputs.shape[2] * 2 // 3
    x, y = inputs[..., :kept, :], targets[:kept]
    weights = ridge(x, y)
    off, spread = inputs[..., kept:, :] @ weights - targets[kept:], targets[kept:] - targets[kept:].mean(dim=0)
    fit = 1 - off.square().sum(dim=-2) / spread.square().sum(dim=0)
    parts = fit.split([one.shape[1] for one in quantities], dim=-1)
    # Rounded to three digits, so that of equally good places the first wins: later ones may be copies.
    return torch.stack([part.mean(dim=-1) for part in parts]).round(decimals=3)


def best_correlation(
    read: Float[Tensor, "streams tokens prompts readings"], subject: Subject
) -> Float[Tensor, "quantities streams tokens"]:
    """The largest r² of a reading with each entry of a quantity, averaged over its entries; to three digits."""
    read = standard(read)
    count = read.shape[2] - 1
    found = [
        (read.mT @ standard(one).to(read) / count).square().amax(dim=-2).mean(dim=-1).round(decimals=3)
        for one in subject.quantities
    ]
    return torch.stack(found) if found else read.new_zeros(0, *read.shape[:2])
