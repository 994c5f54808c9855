"""The questions about a specimen, with their right answers: what is asked goes to the method, the rest stays here."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from emulon.planted import Specimen
from emulon.planted.benchmark.subject import NoisyAnswers, Subject
from emulon.planted.learners import BatchDescent, LastValue, MovingAverage, NearestAverage, Ridge, Sgd
from emulon.planted.mechanism import Mechanism

# Prompts, of which a probe may keep some to be tested on, and quantities that are asked for at most.
PROMPTS, MOST = 160, 24
# Of so many quantities one is to be chosen for a place.
CHOICES = 4
# Noise of the answers that `which` is asked on, in their standard deviations.
NOISE = 0.02
# A quantity that varies less is a constant, and a register within this of it, up to a linear map, holds it.
VARIES, SAME = 1e-3, 1e-6
# Seeds of one draw are so far from those of the next.
DRAWS = 100_003
NONE = "none of these"
CANDIDATES = ("sgd", "batch descent", "ridge", "moving average", "last value", "nearest average", NONE)


@dataclass(frozen=True, eq=False)
class Questions:
    """`subject` is for the method.

    `held`: whether a register holds the quantity there, up to an invertible linear map. `places`: (stream, token,
    quantities to choose from); the first of these stands there, the others do not. `used_heads` and `used_mlps`: what ŷ
    depends on. `kind` is the right candidate; `parameter` its parameter where answers determine it.
    """

    subject: Subject
    held: Bool[Tensor, "quantities streams tokens"]
    places: tuple[tuple[int, int, tuple[int, ...]], ...]
    used_heads: Bool[Tensor, "blocks heads"]
    used_mlps: Bool[Tensor, " blocks"]
    kind: str
    parameter: float | None


def ask(specimen: Specimen, seed: int, draw: int = 0) -> Questions:
    """A function of the specimen and the seed; `draw` is for what is random in a method, and in the answers."""
    generator, inside = torch.Generator().manual_seed(seed), seed + DRAWS * draw
    truth, (xs, ys) = specimen.truth, specimen.draw(2 * PROMPTS, seed=seed)
    embedded = specimen.embed(xs, ys)
    values = {name: value[:PROMPTS].double() for name, value in specimen.values(xs, ys).items()}
    quantities, held = _quantities(specimen, values, generator)
    heads = torch.zeros(truth.blocks, truth.heads, dtype=torch.bool, device="cpu")
    mlps = torch.zeros(truth.blocks, dtype=torch.bool, device="cpu")
    for block, head in truth.used_heads:
        heads[block, head] = True
    for block, _ in truth.used_neurons:
        mlps[block] = True
    subject = Subject(
        specimen.model,
        embedded[:PROMPTS],
        embedded[PROMPTS:],
        truth.registers[specimen.output].read[0].to(specimen.dtype),
        tuple(quantities),
        NoisyAnswers(specimen, NOISE, inside),
        specimen.task,
        CANDIDATES,
        inside,
    )
    return Questions(subject, held, _places(held, generator), heads, mlps, *_which(specimen.mechanism))


def _quantities(
    specimen: Specimen, values: dict[str, Tensor], generator: torch.Generator
) -> tuple[list[Tensor], Tensor]:
    """Of every version that ŷ depends on, what it is at the last token where ŷ does; none twice, in random order."""
    found: list[tuple[Tensor, Tensor]] = []
    for version in specimen.truth.versions:
        kind = specimen.truth.registers[version.register].kind
        if kind not in ("input", "register") or version.name not in values:
            continue
        varying = [token for token in version.tokens if _varies(values[version.name][:, token - 1])]
        if varying:
            quantity = values[version.name][:, varying[-1] - 1]
            held = held_at(specimen, values, quantity)
            if not any(torch.equal(held, other) for _, other in found):
                found.append((quantity, held))
    order = torch.randperm(len(found), generator=generator, device="cpu")[:MOST].tolist()
    streams, tokens = specimen.truth.blocks + 1, specimen.truth.tokens
    masks = [found[i][1] for i in order]
    return [found[i][0] for i in order], torch.stack(masks) if masks else torch.zeros(
        0, streams, tokens, device="cpu"
    ).bool()


def _varies(quantity: Float[Tensor, "prompts size"]) -> bool:
    """In every direction: else a linear map of it would lose something."""
    centred = quantity - quantity.mean(dim=0)
    return bool(torch.linalg.svdvals(centred)[-1] > VARIES * len(quantity) ** 0.5)


def held_at(
    specimen: Specimen, values: dict[str, Tensor], quantity: Float[Tensor, "prompts size"]
) -> Bool[Tensor, "streams tokens"]:
    """Where some register has it, up to an invertible linear map. Stream 0 is what the first block sees."""
    truth = specimen.truth
    held = torch.zeros(truth.blocks + 1, truth.tokens, dtype=torch.bool, device="cpu")
    wanted = quantity - quantity.mean(dim=0)
    for version in truth.versions:
        value = values.get(version.name)
        if value is None or value.shape[-1] != quantity.shape[-1]:
            continue
        known = (value - value.mean(dim=0)).movedim(1, 0)
        left = wanted - known @ (torch.linalg.pinv(known) @ wanted)
        same = left.square().sum(dim=(1, 2)) <= SAME**2 * wanted.square().sum()
        for layer in version.layers:
            held[layer + 1, 1:] |= same
    return held


def _places(
    held: Bool[Tensor, "quantities streams tokens"], generator: torch.Generator
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """For every quantity one of its places, with others that are not there; none where too few are not."""
    out = []
    for right in range(len(held)):
        places = held[right].nonzero()
        stream, token = places[int(torch.randint(len(places), (), generator=generator, device="cpu"))].tolist()
        wrong = (~held[:, stream, token]).nonzero()[:, 0]
        if len(wrong) >= CHOICES - 1:
            chosen = wrong[torch.randperm(len(wrong), generator=generator, device="cpu")[: CHOICES - 1]].tolist()
            out.append((stream, token, (right, *chosen)))
    return tuple(out)


def _which(mechanism: Mechanism) -> tuple[str, float | None]:
    """The candidate that it is, and the parameter that answers determine. The number of steps and their size are not
    told apart by noisy answers, so batch descent has no such parameter."""
    if isinstance(mechanism, Sgd) and mechanism.ridge == 0:
        return "sgd", mechanism.step_size
    if isinstance(mechanism, BatchDescent) and mechanism.ridge == 0:
        return "batch descent", None
    if isinstance(mechanism, Ridge):  # least squares is one, too
        return "ridge", mechanism.ridge
    if isinstance(mechanism, MovingAverage):
        return "moving average", mechanism.decay
    if isinstance(mechanism, NearestAverage):
        return "nearest average", mechanism.sharp
    return ("last value", None) if isinstance(mechanism, LastValue) else (NONE, None)
