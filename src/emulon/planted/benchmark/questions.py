"""Questions about a planted model, and their right answers, which methods do not see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from emulon.planted import PlantedModel
from emulon.planted.benchmark.subject import Embedding, NoisyAnswers, Subject
from emulon.planted.learners import BatchDescent, LastValue, MovingAverage, NearestAverage, Ridge, Sgd
from emulon.planted.mechanism import Mechanism

# Prompts (a probe may hold some out for testing), and the largest number of quantities.
PROMPTS, MOST = 160, 24
# Quantities to choose from in `what`.
CHOICES = 4
# Noise of the answers in `which`, in their standard deviations.
NOISE = 0.02
# A quantity that varies less is a constant; a register represents a quantity if it is within SAME of it, relatively,
# up to a linear map.
VARIES, SAME = 1e-3, 1e-6
# Offset between the seeds of two draws.
DRAWS = 100_003
NONE = "none of these"
CANDIDATES = ("sgd", "batch descent", "ridge", "moving average", "last value", "nearest average", NONE)


Place = tuple[int, int]
# (stream, token, quantities to choose from in ascending order): what `what` asks.
Choice = tuple[int, int, tuple[int, ...]]


@dataclass(frozen=True)
class Key:
    """The right answers."""

    held: tuple[tuple[Place, ...], ...]  # by quantity, the streams and tokens where a register holds it
    right: tuple[int, ...]  # the quantity that is at each place of `what`
    heads: tuple[tuple[bool, ...], ...]  # by block and head, whether ŷ depends on it
    mlps: tuple[bool, ...]  # by block, likewise
    kind: str  # the right candidate
    parameter: float | None  # its parameter, where answers determine it


@dataclass(frozen=True, eq=False)
class Questions:
    """What a method is asked, and the right answers.

    Attributes:
        subject: What the method is given.
        asked: What `what` asks.
        key: The right answers.
    """

    subject: Subject
    asked: tuple[Choice, ...]
    key: Key


def ask(planted: PlantedModel, seed: int, draw: int = 0) -> Questions:
    """Make the questions about one planted model.

    Args:
        planted: The model.
        seed: Draws prompts and quantities.
        draw: Draws the answers' noise and the seed that the method gets.
    Returns:
        Questions with a subject for the method.
    """
    generator, inside = torch.Generator().manual_seed(seed), seed + DRAWS * draw
    truth, (xs, ys) = planted.truth, planted.draw(2 * PROMPTS, seed=seed)
    embedded = planted.embed(xs, ys)
    values = {name: value[:PROMPTS].double() for name, value in planted.values(xs, ys).items()}
    quantities, held, origins = _quantities(planted, values, generator)
    x, y = (truth.registers[name].write.to(planted.dtype) for name in ("x", "y"))
    embedding = Embedding(planted.embed(torch.zeros_like(xs[0]), torch.zeros_like(ys[0])), x, y)
    readout = truth.registers[planted.output].read[0].to(planted.dtype)
    swapped = _swapped(planted, xs[:PROMPTS], ys[:PROMPTS], values, origins)
    given = planted.network, embedded[:PROMPTS], embedded[PROMPTS:], readout, tuple(quantities), swapped
    predictor = NoisyAnswers(planted.network, embedding, readout, NOISE, inside)
    subject = Subject(*given, predictor, planted.task, CANDIDATES, inside)
    choices = _choices(held, generator)
    places = tuple(tuple(map(tuple, one.nonzero().tolist())) for one in held)
    used, used_mlps = truth.used_heads, {block for block, _ in truth.used_neurons}
    heads = tuple(tuple((i, j) in used for j in range(truth.heads)) for i in range(truth.blocks))
    mlps, right = tuple(i in used_mlps for i in range(truth.blocks)), tuple(right for _, right in choices)
    key = Key(places, right, heads, mlps, *_which(planted.mechanism))
    return Questions(subject, tuple(choice for choice, _ in choices), key)


def _quantities(
    planted: PlantedModel, values: dict[str, Tensor], generator: torch.Generator
) -> tuple[list[Tensor], Bool[Tensor, "quantities streams tokens"], list[tuple[str, int]]]:
    """The values of every version that ŷ depends on, at the last token that matters: distinct, in random order.

    With where they are held, and their versions and tokens.
    """
    found: list[tuple[Tensor, Tensor, tuple[str, int]]] = []
    for version in planted.truth.versions:
        kind = planted.truth.registers[version.register].kind
        if kind not in ("input", "register") or version.name not in values:
            continue
        varying = [token for token in version.tokens if _varies(values[version.name][:, token - 1])]
        if varying:
            quantity = values[version.name][:, varying[-1] - 1]
            held = held_at(planted, values, quantity)
            if not any(torch.equal(held, other) for _, other, _ in found):
                found.append((quantity, held, (version.name, varying[-1])))
    order = torch.randperm(len(found), generator=generator, device="cpu")[:MOST].tolist()
    masks = torch.zeros(len(order), planted.truth.blocks + 1, planted.truth.tokens, dtype=torch.bool, device="cpu")
    for mask, i in zip(masks, order, strict=True):
        mask[:] = found[i][1]
    return [found[i][0] for i in order], masks, [found[i][2] for i in order]


def _swapped(
    planted: PlantedModel, xs: Tensor, ys: Tensor, values: dict[str, Tensor], origins: list[tuple[str, int]]
) -> Float[Tensor, "quantities prompts samples"]:
    """ŷ if what a version holds at a token were what it holds there on the next prompt, by the program."""
    out = torch.zeros(len(origins), *ys.shape, dtype=torch.float64, device="cpu")
    for answers, (name, token) in zip(out, origins, strict=True):
        here = values[name][: len(xs)]
        added = torch.zeros_like(here)
        added[:, token - 1] = here[:, token - 1].roll(-1, dims=0) - here[:, token - 1]
        answers[:] = planted.expected(xs, ys, added={name: added})
    return out


def _varies(quantity: Float[Tensor, "prompts size"]) -> bool:
    """Whether it varies in every direction, so that an invertible linear map of it loses nothing."""
    centred = quantity - quantity.mean(dim=0)
    return bool(torch.linalg.svdvals(centred)[-1] > VARIES * len(quantity) ** 0.5)


def held_at(
    planted: PlantedModel, values: dict[str, Tensor], quantity: Float[Tensor, "prompts size"]
) -> Bool[Tensor, "streams tokens"]:
    """Where some register equals it up to an invertible linear map. Stream 0 is the first block's input."""
    truth = planted.truth
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


def _choices(held: Bool[Tensor, "quantities streams tokens"], generator: torch.Generator) -> list[tuple[Choice, int]]:
    """For every quantity, and with it, one of its places and `CHOICES` − 1 quantities that are not there, if any."""
    out = []
    for right in range(len(held)):
        places = held[right].nonzero()
        stream, token = places[int(torch.randint(len(places), (), generator=generator, device="cpu"))].tolist()
        wrong = (~held[:, stream, token]).nonzero()[:, 0]
        if len(wrong) >= CHOICES - 1:
            chosen = wrong[torch.randperm(len(wrong), generator=generator, device="cpu")[: CHOICES - 1]].tolist()
            out.append(((stream, token, tuple(sorted([right, *chosen]))), right))
    return out


def _which(mechanism: Mechanism) -> tuple[str, float | None]:
    """The right candidate, and its parameter where answers determine it.

    Noisy answers do not separate the number of steps of batch descent from their size, so it has none.
    """
    if isinstance(mechanism, Ridge):  # least squares included
        return "ridge", mechanism.ridge
    parameters = {Sgd: "step_size", BatchDescent: "", MovingAverage: "decay", LastValue: "", NearestAverage: "sharp"}
    if type(mechanism) not in parameters or getattr(mechanism, "ridge", None):
        return NONE, None
    parameter = parameters[type(mechanism)]
    return mechanism.name, getattr(mechanism, parameter) if parameter else None
