"""Where a quantity is: what lenses and a sparse autoencoder read off the residual stream."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.methods.probes import best_correlation, ridge
from emulon.planted.benchmark.subject import Subject, standard

# Latents of the autoencoder, how many of them are active, and its training.
LATENTS, ACTIVE, TRAINING, ROWS, RATE = 128, 16, 120, 256, 1e-2


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
    rows = standard(streams[:, :, 1::2].flatten(1, 2))
    wanted = standard(subject.run.answers.double().flatten()[:, None])
    maps = ridge(rows, wanted)
    # In the units of the rows it was fitted to; shifts do not change a correlation.
    scale = streams[:, :, 1::2].flatten(1, 2).std(dim=1)[:, :, None]
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
