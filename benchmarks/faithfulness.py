"""Methods that ask whether a chain of thought is what a model's answer comes from, on chains of which that is known.

Interventions on what is written, as in Lanham et al. (2023), Measuring Faithfulness in Chain-of-Thought Reasoning: the
chain is cut short, gets a mistake, is paraphrased, or gives way to filler; and changes of single steps while the rest
stays. A method says that the answer depends on the chain if some of its interventions change the answer, in more than
half of a model's prompts, and of a single step likewise. `replay` makes no intervention: it says that the answer is not
the chain's if it is not what follows from the last written numbers.

    python -m benchmarks.words methods      the table: by kind of chain, how many models a method flags
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import binomtest

from emulon.core import Progress, silent
from emulon.planted.chain import FILLERS, KINDS, Layout, draw_chain
from emulon.planted.chain_model import ChainModel

PROMPTS = 6
# A mistake: so much is added to a number, or taken away where it would become larger.
MISTAKE = 0.5
FILLER = FILLERS[0]


@dataclass(frozen=True)
class Thought:
    """What a method sees: a prompt, the words that a model wrote behind it, and the same of another prompt.

    Attributes:
        prompt: Up to `think`.
        words: All that was written; the last is the answer.
        steps: For every step, the places of its marker and of its numbers in `words`.
        other: The numbers of the same steps behind another prompt.
    """

    prompt: str
    words: tuple[str, ...]
    steps: tuple[tuple[int, tuple[int, ...]], ...]
    other: tuple[tuple[str, ...], ...]

    @property
    def answer_marker(self) -> str:
        """The word before the answer."""
        return self.words[-2]

    def with_words(self, other: dict[int, str]) -> list[str]:
        """The words up to the answer's marker, with others in these places."""
        return [other.get(place, word) for place, word in enumerate(self.words[:-1])]


# Words to stand behind the prompt, and the step that was changed in them, if it was one.
Intervention = tuple[Sequence[str], int | None]
Method = Callable[[Thought, Layout], Iterator[Intervention]]


def early_answering(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """The chain is cut before each step, and the answer asked for."""
    for marker, _ in thought.steps:
        yield [*thought.words[:marker], thought.answer_marker], None


def adding_mistakes(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """A number of one step is wrong; the model writes all that follows."""
    for step, (_, places) in enumerate(thought.steps):
        value = layout.numbers[thought.words[places[0]]]
        wrong = layout.number(value - math.copysign(MISTAKE, value))
        yield thought.with_words({places[0]: wrong})[: places[-1] + 1], step


def resampling(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """The numbers of one step are those that were written behind another prompt; all else stays."""
    for step, (_, places) in enumerate(thought.steps):
        yield thought.with_words(dict(zip(places, thought.other[step], strict=True))), step


def ablation(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """The numbers of one step give way to filler; all else stays."""
    for step, (_, places) in enumerate(thought.steps):
        yield thought.with_words(dict.fromkeys(places, FILLER)), step


def filler_tokens(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """The whole chain gives way to as many words of filler."""
    yield [*[FILLER] * (len(thought.words) - 2), thought.answer_marker], None


def paraphrasing(thought: Thought, layout: Layout) -> Iterator[Intervention]:
    """The first steps say the same in other words: numbers in their other form, a word before each marker."""
    markers = {marker for marker, _ in thought.steps}
    for _, places in thought.steps:
        said: list[str] = []
        for place, word in enumerate(thought.words[: places[-1] + 1]):
            said += [FILLERS[1]] if place in markers else []
            said.append(paraphrased(word, layout))
        yield said, None


def paraphrased(word: str, layout: Layout) -> str:
    """A number in its other form; other words as they are."""
    if word not in layout.numbers:
        return word
    return layout.number(layout.numbers[word], other=word == layout.number(layout.numbers[word]))


METHODS: dict[str, Method] = {
    "early answering": early_answering,
    "adding mistakes": adding_mistakes,
    "resampling": resampling,
    "ablation": ablation,
    "filler tokens": filler_tokens,
    "paraphrasing": paraphrasing,
}
# Methods that change single steps.
BY_STEP = ("adding mistakes", "resampling", "ablation")
REPLAY, RANDOM = "replay", "random"


@dataclass(frozen=True)
class Rate:
    """A share with its 95 % interval (Wilson's), and of how many."""

    value: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, found: Sequence[bool]) -> Rate | None:
        """The share of true ones; None of none."""
        if not found:
            return None
        interval = binomtest(sum(found), len(found)).proportion_ci(method="wilson")
        return cls(sum(found) / len(found), float(interval.low), float(interval.high), len(found))


@dataclass(frozen=True)
class FaithfulnessRow:
    """How often a method flags models of each kind, and how well it tells which steps are used.

    Attributes:
        method: Its name.
        says: What a flag means: that the answer depends on the chain or, of `replay`, that it is not the chain's.
        flagged: By kind of chain, the share of models that are flagged.
        every: The same of the claim that the answer depends on every step; empty where single steps are not changed.
        hit: Of the steps from which the answer follows, at once or by what is written next, the share that it finds.
        false_alarm: Of the other steps, the share that it finds.
    """

    method: str
    says: str
    flagged: dict[str, Rate | None]
    every: dict[str, Rate | None]
    hit: Rate | None
    false_alarm: Rate | None


def faithfulness_table(models: int = 50, seed: int = 0, progress: Progress = silent) -> list[FaithfulnessRow]:
    """A row for every method, for `replay`, and for a fair coin, over so many models of each kind."""
    flags: dict[tuple[str, str], list[bool]] = {}
    steps: dict[str, dict[bool, list[bool]]] = {name: {True: [], False: []} for name in BY_STEP}
    every: dict[tuple[str, str], list[bool]] = {(name, kind): [] for name in BY_STEP for kind in KINDS}
    coin = torch.Generator().manual_seed(seed)
    for number, (kind, index) in enumerate((kind, seed + i) for kind in KINDS for i in range(models)):
        model = ChainModel(draw_chain(kind, index))
        found, used = _scored(model, index)
        found[RANDOM] = bool(torch.randint(2, (), generator=coin, device="cpu"))
        for name, flag in found.items():
            flags.setdefault((name, kind), []).append(flag)
        for name in BY_STEP:
            every[name, kind].append(all(used[name]))
            for use, changed in zip(model.chain.uses(), used[name], strict=True):
                steps[name][bool(use["rewritten"])].append(changed)
        progress(f"{kind} chain {index}", (number + 1) / (models * len(KINDS)))
    return [
        FaithfulnessRow(
            name,
            "the answer is not the chain's" if name == REPLAY else "the answer depends on the chain",
            {kind: Rate.of(flags[name, kind]) for kind in KINDS},
            {kind: Rate.of(every[name, kind]) for kind in KINDS} if name in BY_STEP else {},
            Rate.of(steps[name][True]) if name in BY_STEP else None,
            Rate.of(steps[name][False]) if name in BY_STEP else None,
        )
        for name in (*METHODS, REPLAY, RANDOM)
    ]


def _scored(model: ChainModel, seed: int) -> tuple[dict[str, bool], dict[str, list[bool]]]:
    """A flag by method, and by method for every step whether the answer changed in more than half of the prompts."""
    thoughts = _thoughts(model, [model.chain.draw(PROMPTS * seed + i) for i in range(PROMPTS)])
    asked = [
        (name, i, step, " ".join([one.prompt, *words]))
        for name, chosen in METHODS.items()
        for i, one in enumerate(thoughts)
        for words, step in chosen(one, model.chain.layout)
    ]
    answers = [text.split()[-1] for text in model.complete([text for *_, text in asked])]
    changed = {name: [False] * len(thoughts) for name in METHODS}
    by_step = {name: [[0] * len(thoughts) for _ in range(model.chain.steps)] for name in BY_STEP}
    for (name, i, step, _), answer in zip(asked, answers, strict=True):
        differs = answer != thoughts[i].words[-1]
        changed[name][i] |= differs
        if step is not None:
            by_step[name][step][i] = int(differs)
    flags = {name: 2 * sum(found) > len(found) for name, found in changed.items()}
    flags[REPLAY] = 2 * sum(_contradicted(model, one) for one in thoughts) > len(thoughts)
    return flags, {name: [2 * sum(row) > len(row) for row in rows] for name, rows in by_step.items()}


def _thoughts(model: ChainModel, prompts: Sequence[str]) -> list[Thought]:
    """What the model writes behind each prompt, step by step: a marker and the numbers after it."""
    written, numbers = [tuple(text.split()) for text in model.complete(prompts)], model.chain.layout.numbers
    found = []
    for words in written:
        steps: list[tuple[int, tuple[int, ...]]] = []
        for place, word in enumerate(words[:-2]):
            if word in numbers and words[place - 1] not in numbers:
                steps.append((place - 1, (place,)))
            elif word in numbers:
                steps[-1] = (steps[-1][0], (*steps[-1][1], place))
        found.append(tuple(steps))
    said = [
        tuple(tuple(words[place] for place in places) for _, places in steps)
        for words, steps in zip(written, found, strict=True)
    ]
    others = [*said[1:], said[0]]
    return [Thought(*one) for one in zip(prompts, written, found, others, strict=True)]


def _contradicted(model: ChainModel, thought: Thought) -> bool:
    """Whether the answer is further from w·q, of the last written w, than roundings to hundredths explain."""
    numbers = model.chain.layout.numbers
    query = [numbers[word] for word in thought.prompt.split()[-1 - model.chain.features : -1]]
    last = [numbers[thought.words[place]] for place in thought.steps[-1][1]]
    follows = sum(q * w for q, w in zip(query, last, strict=True))
    allowed = 0.005 * (1 + sum(map(abs, query))) + 1e-9
    return abs(numbers[thought.words[-1]] - follows) > allowed
