"""Where a quantity is, causally: distributed alignment search."""

from __future__ import annotations

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.benchmark.answers import Answers, library, method
from emulon.planted.benchmark.methods.probes import features, probe, ridge, standard
from emulon.planted.benchmark.subject import Subject

# Places per quantity at which interchanges are run.
TRIED = 3


@method("das")
def distributed_alignment(subject: Subject) -> Answers:
    """Distributed alignment search (Geiger et al. 2023), interchanges run by its package `pyvene`.

    An interchange replaces, in an orthonormal subspace of the stream at one place, what is there by what is there on
    another prompt; the score is the share of the foretold change of ŷ that comes out. Differs from the published form
    in the subspace, that of the linear probe instead of one trained by gradient descent, and in the places: the `TRIED`
    best for each quantity, by the probe's R² times r² between the changes of Σŷ to first order and the foretold ones.
    All other places have that product, and those tried have 1 more than their share.
    """
    pyvene = library("pyvene", "pyvene")
    few = subject.few(subject.swapped.shape[1])
    streams, slopes = few.run.streams, few.slopes.streams
    moved = streams.roll(-1, dims=1) - streams
    scores, bases = probe(features(subject), subject.quantities).clamp(min=0.0), subspaces(subject)
    tried = []
    for index, (basis, foretold) in enumerate(zip(bases, subject.swapped - few.run.answers, strict=True)):
        along = torch.einsum("sptw,stwe->stpe", moved, basis) * torch.einsum("sptw,stwe->stpe", slopes, basis)
        first_order, wanted = along.sum(dim=-1).double(), foretold.sum(dim=1)[:, None]
        scores[index] *= (standard(first_order[..., None]).mT @ standard(wanted))[..., 0, 0].square() / len(wanted) ** 2
        tried += [
            (index, *divmod(one, scores.shape[2])) for one in scores[index].flatten().topk(TRIED).indices.tolist()
        ]
    swap = _Interchange(pyvene, few)
    for index, stream, token in tried:
        wanted = subject.swapped[index]
        left = (swap(stream, token, bases[index][stream, token]) - wanted).square().sum()
        scores[index, stream, token] = 1 + (1 - left / (few.run.answers - wanted).square().sum()).clamp(min=0.0)
    return Answers(places=scores)


def subspaces(subject: Subject) -> list[Float[Tensor, "streams tokens width size"]]:
    """By quantity, an orthonormal basis of the directions in which the linear probe reads it, at every place."""
    if not subject.quantities:
        return []
    streams = subject.run.streams.double().transpose(1, 2)
    weights = ridge(standard(streams), torch.cat([standard(one) for one in subject.quantities], dim=1))
    deviation = streams.std(dim=2)[..., None]
    read = torch.where(deviation > 0, weights / deviation.clamp(min=1e-300), 0.0)
    sizes = [one.shape[1] for one in subject.quantities]
    return [torch.linalg.qr(part).Q.to(subject.prompts) for part in read.split(sizes, dim=-1)]


class _Interchange:
    """Interchanges with the next prompt, by pyvene; it removes a model's hooks, so that it works on a copy."""

    def __init__(self, pyvene: Any, few: Subject) -> None:
        self.pyvene, self.few, self.model = pyvene, few, copy.deepcopy(few.model)
        self.made: dict[tuple[int, int], Any] = {}

    def __call__(self, stream: int, token: int, basis: Float[Tensor, "width size"]) -> Float[Tensor, "prompts samples"]:
        """ŷ after what is in this subspace is replaced by what is there on the next prompt."""
        part = (stream - 1, "block_output") if stream else (0, "block_input")
        if (stream, basis.shape[1]) not in self.made:
            one = self.pyvene.RepresentationConfig(*part, "pos", 1, low_rank_dimension=basis.shape[1])
            config = self.pyvene.IntervenableConfig([one], self.pyvene.LowRankRotatedSpaceIntervention)
            self.made[stream, basis.shape[1]] = self.pyvene.IntervenableModel(config, self.model)
        intervenable = self.made[stream, basis.shape[1]]
        ((key, intervention),) = intervenable.interventions.items()
        source = self.few.run.streams[stream, :, token : token + 1].roll(-1, dims=0)
        with torch.no_grad():
            intervention.to(basis.dtype).rotate_layer.weight = basis
            _, changed = intervenable(
                {"inputs_embeds": self.few.prompts},
                source_representations={key: source},
                unit_locations={"base": token},
            )
        return self.few.answers(changed.last_hidden_state)
