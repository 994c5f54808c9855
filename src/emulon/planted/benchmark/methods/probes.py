"""Where a quantity is: probes of the residual stream, lenses and a sparse autoencoder."""

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
# Latents of the autoencoder, how many of them are active, and its training.
LATENTS, ACTIVE, TRAINING, ROWS, RATE = 128, 16, 120, 256, 1e-2


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


@method("logit-lens")
def logit_lens(subject: Subject) -> Answers:
    """The logit lens (nostalgebraist 2020): the final norm and the readout on every stream.

    There is one logit, ŷ; a place is as good for a quantity as their squared correlation.
    """
    norm = subject.model.get_submodule(subject.architecture.norm)
    with torch.no_grad():
        read = norm(subject.run.streams) @ subject.readout
    return Answers(places=best_correlation(read.double().transpose(1, 2)[..., None], subject))


@method("tuned-lens")
def tuned_lens(subject: Subject) -> Answers:
    """The tuned lens (Belrose et al. 2023): an affine map of every stream, the same for all tokens, before the readout.

    Fitted to ŷ by ridge regression, where the published form minimises a KL divergence of next-token distributions.
    """
    streams = subject.run.streams.double()
    fitted = streams[:, :, 1::2].flatten(1, 2)
    rows = standard(fitted)
    wanted = standard(subject.run.answers.double().flatten()[:, None])
    maps = ridge(rows, wanted)
    # In the units of the rows it was fitted to; shifts do not change a correlation.
    scale = fitted.std(dim=1)[:, :, None]
    read = streams.flatten(1, 2) @ torch.where(scale > 0, maps / scale.clamp(min=1e-300), 0.0)
    return Answers(places=best_correlation(read.unflatten(1, streams.shape[1:3]).transpose(1, 2), subject))


@method("sae")
def sparse_autoencoder(subject: Subject) -> Answers:
    """A top-k sparse autoencoder (Gao et al. 2024) of this model's streams, one for all layers (Lawson et al. 2024).

    A place is as good for a quantity as the squared correlation of the best latent there. SAELens cannot be installed
    beside TransformerLens 4, which this library supports, so that the autoencoder is written out here.
    """
    generator = torch.Generator().manual_seed(subject.seed)
    streams = subject.features.float()
    rows = streams.flatten(0, 2)
    width = rows.shape[1]
    outward = torch.nn.functional.normalize(torch.randn(LATENTS, width, generator=generator, device="cpu"), dim=1)
    inward, shift = outward.T.clone().requires_grad_(), torch.zeros(LATENTS, requires_grad=True, device="cpu")
    outward = outward.requires_grad_()
    optimizer = torch.optim.Adam([inward, outward, shift], lr=RATE)
    with torch.enable_grad():
        for _ in range(TRAINING):
            batch = rows[torch.randint(len(rows), (ROWS,), generator=generator, device="cpu")]
            loss = (latents(batch, inward, shift) @ outward - batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                outward.copy_(torch.nn.functional.normalize(outward, dim=1))
    with torch.no_grad():
        return Answers(places=best_correlation(latents(streams, inward, shift), subject))


def latents(rows: Float[Tensor, "... width"], inward: Tensor, shift: Tensor) -> Float[Tensor, "... latents"]:
    """The largest `ACTIVE` latents, where positive; all others are zero."""
    top = (rows @ inward + shift).topk(ACTIVE, dim=-1)
    return torch.zeros(*rows.shape[:-1], LATENTS, device="cpu").scatter(-1, top.indices, top.values.relu())
