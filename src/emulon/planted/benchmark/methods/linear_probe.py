"""Linear probe: ridge regression from the stream at a place to a quantity; the score is R² on prompts kept apart."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.subject import Subject

# Ridge of the probe, for features of variance 1; a third of the prompts is for testing.
RIDGE = 1e-4
# A direction that varies less than this, relative to its size, is rounding.
ROUNDING = 1e-9


@method("linear-probe")
def linear_probe(subject: Subject) -> Answers:
    return Answers(places=probe(features(subject), subject.quantities))


def features(subject: Subject) -> Float[Tensor, "streams tokens prompts width"]:
    """The streams, every direction of variance 1 over prompts."""
    return standard(subject.run.streams.double().transpose(1, 2))


def standard(values: Float[Tensor, "... prompts width"]) -> Float[Tensor, "... prompts width"]:
    centred = values - values.mean(dim=-2, keepdim=True)
    size, deviation = values.abs().amax(dim=-2, keepdim=True), centred.std(dim=-2, keepdim=True)
    return torch.where(deviation > ROUNDING * size, centred / deviation.clamp(min=1e-300), 0.0)


def probe(
    inputs: Float[Tensor, "streams tokens prompts width"], quantities: tuple[Float[Tensor, "prompts _"], ...]
) -> Float[Tensor, "quantities streams tokens"]:
    """R² of every quantity at every place, its entries taken together."""
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
    # To three digits: of places that are as good the first is taken, for what is later may be a copy.
    return torch.stack([part.mean(dim=-1) for part in parts]).round(decimals=3)
