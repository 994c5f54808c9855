"""How answers are scored: what a file keeps of them, the key, and a score for every question."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from emulon.core.errors import BadShape
from emulon.planted.benchmark.answers import Answers
from emulon.planted.benchmark.questions import CANDIDATES, NONE, Choice, Key, Place, Questions
from emulon.planted.benchmark.subject import Subject

# By name: description, and chance level where that is one number.
MEASURES = {
    "where": ("streams and tokens between the best place and the nearest true one", None),
    "found": ("share of quantities whose best place is true", None),
    "what": ("share of places whose quantity is chosen from four", 0.25),
    "circuit": ("area under the ROC curve over heads and MLPs that ŷ depends on", 0.5),
    "which": ("share of algorithms named", 1 / 7),
    "refused": ("share of algorithms outside the candidates that are recognised as such", 1 / 7),
    "allowed": ("share of right algorithms not ruled out", None),
    "power": ("share of wrong algorithms ruled out", None),
    "coverage": ("share of parameters inside their 95 % interval", None),
}

# Scores closer than this, relative to the range of a method's scores, are ties.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Named:
    """An answer to "which algorithm", as `Which`."""

    name: str
    possible: tuple[str, ...]
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Given:
    """What is scored of a method's answers to one model, as a file keeps it; None for questions without an answer."""

    where: tuple[Place, ...] | None = None  # the best stream and token of every quantity
    what: tuple[tuple[int, ...], ...] | None = None  # by place, the quantities with the best score, several if they tie
    heads: tuple[tuple[float, ...], ...] | None = None  # by block and head, from 0 (least of all) to 1; −1 for NaN
    mlps: tuple[float, ...] | None = None
    which: Named | None = None


def given(answers: Answers, subject: Subject, asked: tuple[Choice, ...]) -> Given:
    """What is scored of a method's answers; raises BadShape where one has the wrong shape."""
    where = what = heads = mlps = which = None
    streams, tokens = subject.blocks + 1, subject.prompts.shape[1]
    if answers.places is not None:
        places = _like(answers.places, (len(subject.quantities), streams, tokens), "places")
        where = tuple(divmod(int(one.argmax()), tokens) for one in places)
        scored = [(places[list(choices), stream, token], choices) for stream, token, choices in asked]
        what = tuple(
            tuple(one for one, at in zip(choices, each, strict=True) if at == each.max()) for each, choices in scored
        )
    if answers.heads is not None and answers.mlps is not None:
        own = _like(answers.heads, (subject.blocks, subject.heads), "heads").flatten()
        every = torch.cat([own, _like(answers.mlps, (subject.blocks,), "mlps")])
        finite = every[every > -NOTHING]
        least, most = (finite.min(), finite.max()) if len(finite) else (every.min(), every.max())
        relative = torch.where(every > -NOTHING, (every - least) / (most - least).clamp(min=1e-300), -1.0)
        rows = relative.split([subject.heads] * subject.blocks + [subject.blocks])
        *heads, mlps = (tuple(round(one, 9) for one in row.tolist()) for row in rows)
    if answers.which is not None:
        name, interval = answers.which.name, answers.which.interval
        ends = None if interval is None else (float(interval[0]), float(interval[1]))
        which = Named(name, tuple(sorted(answers.which.possible | {name})), ends)
    return Given(where, what, None if heads is None else tuple(heads), mlps, which)


def grade(one: Given, key: Key) -> dict[str, float]:
    """Scores by the names of `MEASURES`; raises BadShape where there are more or fewer answers than questions."""
    out: dict[str, float] = {}
    if one.where is not None and one.what is not None:
        _as_many(len(one.where), len(key.held), "quantities")
        _as_many(len(one.what), len(key.right), "places")
        distances = [
            min(abs(stream - s) + abs(token - t) for s, t in held)
            for (stream, token), held in zip(one.where, key.held, strict=True)
        ]
        out["where"], out["found"] = _mean(distances), _mean([distance == 0 for distance in distances])
        # A tie is right by chance.
        out["what"] = _mean(
            [(right in best) / max(len(best), 1) for best, right in zip(one.what, key.right, strict=True)]
        )
    if one.heads is not None and one.mlps is not None:
        scored = [*(value for row in one.heads for value in row), *one.mlps]
        used = [*(value for row in key.heads for value in row), *key.mlps]
        _as_many(len(scored), len(used), "components")
        scores = torch.tensor(scored, dtype=torch.float64, device="cpu")
        out["circuit"] = area(scores, torch.tensor(used, dtype=torch.bool, device="cpu"))
    if one.which is not None:
        which, others = one.which, [name for name in CANDIDATES if name != key.kind]
        out["which"] = float(which.name == key.kind)
        out["refused"] = out["which"] if key.kind == NONE else math.nan
        out["allowed"] = float(key.kind in which.possible)
        out["power"] = sum(name not in which.possible for name in others) / len(others)
        out["coverage"] = math.nan
        if key.parameter is not None and which.name == key.kind and which.interval is not None:
            out["coverage"] = float(which.interval[0] <= key.parameter <= which.interval[1])
    return out


def score(answers: Answers, questions: Questions) -> dict[str, float]:
    """Score a method's answers to one model.

    Args:
        answers: What the method returned.
        questions: What it was asked.
    Returns:
        Scores by the names of `MEASURES`, for the questions that were answered.
    Raises:
        BadShape: An answer has the wrong shape.
    """
    return grade(given(answers, questions.subject, questions.asked), questions.key)


def area(scored: Float[Tensor, " components"], used: Bool[Tensor, " components"]) -> float:
    """P(a used component scores above an unused one), ties counted half.

    Differences below a millionth of the range are ties: a dead head scores exactly zero and a used head whose output
    happens to be constant scores a rounding error, which is no evidence.
    """
    if used.all() or not used.any():
        return math.nan
    difference = scored[used][:, None] - scored[~used]
    least = ROUNDING * (scored.max() - scored.min())
    return ((difference > least).double() + 0.5 * (difference.abs() <= least)).mean().item()


def _mean(values: list[float] | list[int] | list[bool]) -> float:
    return sum(values) / len(values) if values else math.nan


def _as_many(count: int, wanted: int, what: str) -> None:
    if count != wanted:
        raise BadShape(f"answers are about {count} {what} of {wanted}")


# Where a score is NaN.
NOTHING = 1e300


def _like(scored: Tensor, wanted: tuple[int, ...], name: str) -> Tensor:
    """The scores in float64, NaN lowest; refused if their shape is wrong."""
    if scored.shape != wanted:
        raise BadShape(f"{name} has shape {tuple(scored.shape)}, wanted {wanted}")
    return scored.detach().double().nan_to_num(nan=-NOTHING)
