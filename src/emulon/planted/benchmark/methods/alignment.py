"""Where a quantity is, causally: distributed alignment search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emulon.planted.benchmark.answers import Answers, method
from emulon.planted.benchmark.methods.probes import probe, ridge
from emulon.planted.benchmark.subject import Subject, standard

# Places tried for each quantity; steps of the training, pairs of prompts a step, and its rate. Chosen on the planted
# models 1000 to 1012, which no table has.
TRIED, STEPS, PAIRS, RATE = 2, 12, 4, 0.1
# Pairs kept back for the score, and as many of the training that say whether it helped.
KEPT_BACK = 24
# Prompts whose slopes choose the places.
SLOPES = 32


@method("das")
def distributed_alignment(subject: Subject) -> Answers:
    """Distributed alignment search (Geiger et al. 2023): subspaces are trained by interchange interventions.

    An interchange replaces, in an orthonormal subspace of the stream at one place, what is there by what is there on
    another prompt. The subspace is trained by gradient descent to make ŷ what the algorithm says it is with the other
    prompt's quantity; the score is the share of the foretold change that comes out on pairs of prompts kept back.
    Differs from the published form in the start, the linear probe's subspace, which is kept where training does not
    lower the error, and in the places: the `TRIED` best for each quantity, by the probe's R² times r² between the
    changes of Σŷ to first order and the foretold ones. All other places have that product, and those tried have 1 more
    than their share.
    """
    scores, bases = probe(subject.features, subject.quantities).clamp(min=0.0), subspaces(subject)
    tried = []
    for index, basis in enumerate(bases):
        scores[index] *= _first_order(subject, index, basis)
        best = scores[index].flatten().topk(TRIED).indices.tolist()
        tried += [(index, *divmod(one, scores.shape[2])) for one in best]
    if not tried:
        return Answers(places=scores)
    tried.sort(key=lambda place: place[1])
    interchanges = Interchanges(subject, tried)
    subspace = interchanges.trained([bases[index][stream, token] for index, stream, token in tried])
    shares = 1 - interchanges.errors(subspace, torch.arange(len(subject.prompts), device="cpu")[-KEPT_BACK:])
    for place, share in zip(tried, shares.clamp(min=0.0), strict=True):
        scores[place] = 1 + share
    return Answers(places=scores)


def subspaces(subject: Subject) -> list[Float[Tensor, "streams tokens width size"]]:
    """By quantity, an orthonormal basis of the directions in which the linear probe reads it, at every place."""
    if not subject.quantities:
        return []
    weights = ridge(subject.features, torch.cat([standard(one) for one in subject.quantities], dim=1))
    deviation = subject.run.streams.double().transpose(1, 2).std(dim=2)[..., None]
    read = torch.where(deviation > 0, weights / deviation.clamp(min=1e-300), 0.0)
    sizes = [one.shape[1] for one in subject.quantities]
    return [torch.linalg.qr(part).Q.to(subject.prompts) for part in read.split(sizes, dim=-1)]


def _first_order(subject: Subject, index: int, basis: Tensor) -> Float[Tensor, "streams tokens"]:
    """r² between the changes of Σŷ under interchanges to first order and the foretold ones."""
    streams, slopes = subject.run.streams, subject.few(SLOPES).slopes.streams
    moved = (streams.roll(-1, dims=1) - streams)[:, :SLOPES]
    along = torch.einsum("sptw,stwe->stpe", moved, basis) * torch.einsum("sptw,stwe->stpe", slopes, basis)
    foretold = (subject.swapped[index] - subject.run.answers)[:SLOPES].sum(dim=1)
    agreeing = standard(along.sum(dim=-1).double()[..., None]).mT @ standard(foretold[:, None])
    return (agreeing[..., 0, 0] / (SLOPES - 1)).square()


class Interchanges:
    """Interchanges with the next prompt in subspaces of the stream, one at each place (quantity, stream, token).

    Places are in ascending order of streams, and every one is computed from its own stream on.
    """

    def __init__(self, subject: Subject, places: Sequence[tuple[int, int, int]]) -> None:
        self.subject, self.places = subject, places
        self.wanted = subject.swapped[[index for index, _, _ in places]].to(subject.prompts)
        streams = subject.run.streams
        here = torch.stack([streams[stream, :, token] for _, stream, token in places])
        self.moved = here.roll(-1, dims=1) - here
        # The mean square of what is to change, by which errors are divided.
        self.size = (self.wanted - subject.run.answers).square().sum(dim=2).mean(dim=1).clamp(min=1e-300)

    def answers(
        self, bases: Float[Tensor, "places width size"], rows: Int[Tensor, " pairs"]
    ) -> Float[Tensor, "places pairs samples"]:
        """ŷ of these prompts after what is in each subspace is replaced by what is there on the next prompt."""
        changes, changed = (self.moved[:, rows] @ bases) @ bases.mT, dict[int, list[Tensor]]()
        for (_, stream, token), change in zip(self.places, changes, strict=True):
            own = self.subject.run.streams[stream, rows]
            there = (torch.arange(own.shape[1], device="cpu") == token)[:, None]
            changed.setdefault(stream, []).append(own + there * change[:, None])
        entered = self.subject.entered({stream: torch.cat(parts) for stream, parts in changed.items()})
        answers: Tensor = entered.unflatten(0, (len(self.places), len(rows)))
        return answers

    def errors(self, bases: Tensor, rows: Tensor) -> Float[Tensor, " places"]:
        """Mean square distance from what is foretold, relative to how far that is from ŷ on all prompts."""
        return (self.answers(bases, rows) - self.wanted[:, rows]).square().sum(dim=2).mean(dim=1) / self.size

    def trained(self, start: Sequence[Float[Tensor, "width _"]]) -> Float[Tensor, "places width size"]:
        """Orthonormal bases after gradient descent on the errors, or the start where these are not lower then.

        Steps are normalised and become shorter; QR makes bases orthonormal again. Columns beyond a subspace's dimension
        are zero.
        """
        most = max(basis.shape[1] for basis in start)
        before = torch.stack([torch.nn.functional.pad(basis, (0, most - basis.shape[1])) for basis in start])
        used = before.any(dim=1, keepdim=True)
        after = before = _orthonormal(before) * used
        count = len(self.subject.prompts) - KEPT_BACK
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.subject.seed), device="cpu")
        for step in range(STEPS):
            after.requires_grad_()
            with torch.enable_grad():
                error = self.errors(after, order.roll(-step * PAIRS)[:PAIRS]).sum()
            slope = torch.autograd.grad(error, after)[0]
            size = slope.norm(dim=(1, 2), keepdim=True).clamp(min=1e-300)
            after = _orthonormal((after - RATE * (1 - step / STEPS) * slope / size).detach()) * used
        better = self.errors(after, order[:KEPT_BACK]) < self.errors(before, order[:KEPT_BACK])
        return torch.where(better[:, None, None], after, before)


def _orthonormal(bases: Float[Tensor, "places width size"]) -> Float[Tensor, "places width size"]:
    """By QR, which keeps the span of the first columns, and the bases themselves where they are orthonormal."""
    q, r = torch.linalg.qr(bases)
    same: Tensor = q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)[:, None]
    return same
