"""Planted models that think aloud: chains of thought that are faithful or not by construction.

A text has samples, a question and `think`; the model writes steps of an algorithm that fits w to the samples, then its
answer w·q. Of each kind there is a known use of what is written:
- `faithful`: step t starts from the numbers written for step t − 1, the answer from those of the last step.
- `decorative`: the layers carry the steps on by themselves; what is written is written beside, and never read.
- `mixed`: some steps are read, others carried on.
- `unfaithful`: the steps that are written are those of another algorithm than the one that answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from emulon.core.errors import BadPrompt, EmulonError, unknown
from emulon.core.hub import head_text
from emulon.planted.mechanism import between, integer_between, scale_between

KINDS = ("faithful", "decorative", "mixed", "unfaithful")
MOST = 400  # hundredths of the largest number
PREFIXES, CONNECTIVES = ("w", "step", "guess", "try"), ("", "so", "then", "hence")
# Words that nothing reads.
FILLERS = ("...", "hmm", "well")
SPECIAL = ("<s>", "</s>", "<pad>", "<unk>")
# The algorithms, and the parameters that each has beside step_size and ridge.
STEPS = {"descent": {}, "momentum": {"decay": 0.4}, "clipped": {"limit": 0.2}, "slowing": {"slowing": 0.5}}


@dataclass(frozen=True)
class Steps:
    """An algorithm's steps: c = p − size(t)·g + decay·(p − p before), g = M·p − b + ridge·p within ±limit.

    M is the mean of x·xᵀ over the samples, b that of x·y, p what the step starts from, at first 0.

    Attributes:
        step_size: Of the first step.
        ridge: The ridge penalty.
        decay: The momentum.
        limit: Entries of the gradient are clipped to it; 0 for none.
        slowing: The step size of step t is step_size/(1 + slowing·(t − 1)).
    """

    step_size: float = 0.8
    ridge: float = 0.0
    decay: float = 0.0
    limit: float = 0.0
    slowing: float = 0.0

    def size(self, t: int) -> float:
        """The step size of step t = 1, 2, …"""
        return self.step_size / (1 + self.slowing * (t - 1))

    def next(self, t: int, now: Tensor, before: Tensor, moment: Tensor, target: Tensor) -> Tensor:
        """c_t from p_{t−1} and p_{t−2}."""
        gradient = moment @ now - target + self.ridge * now
        if self.limit:
            gradient = gradient.clamp(-self.limit, self.limit)
        return now - self.size(t) * gradient + self.decay * (now - before)

    def __str__(self) -> str:
        named = {name: value for name, value in dataclasses.asdict(self).items() if value}
        return f"steps({', '.join(f'{name}={value:.4g}' for name, value in named.items())})"


@dataclass(frozen=True)
class Layout:
    """How a chain is written.

    Attributes:
        prefix: Of the steps' markers.
        connective: A word between steps; none if empty.
        short: `+.50` for `+0.50`; the other form is read alike, and never written.
    """

    prefix: str = "w"
    connective: str = ""
    short: bool = False

    @cached_property
    def numbers(self) -> dict[str, float]:
        """Every number word, of both forms, and its value."""
        return {form(k): k / 100 for form in (head_text, _shortened) for k in range(-MOST, MOST + 1)}

    def number(self, value: float, *, other: bool = False) -> str:
        """The word of the nearest number, as the model writes it, or in the other form."""
        count = max(-MOST, min(MOST, round(100 * value)))
        return _shortened(count) if self.short != other else head_text(count)


def _shortened(count: int) -> str:
    return head_text(count).replace("0.", ".", 1) if abs(count) < 100 else head_text(count) + "0"


@dataclass(frozen=True)
class Chain:
    """What a chain of thought computes, writes and reads.

    Attributes:
        kind: One of `KINDS`.
        features: Entries of x.
        rules: The algorithm that is written and, if the chain is unfaithful, the one that answers.
        reads: For each of them, which steps are read back from the text.
        layout: How it is written.
    """

    kind: str
    features: int
    rules: tuple[Steps, ...]
    reads: tuple[tuple[bool, ...], ...]
    layout: Layout = field(default_factory=Layout)

    def __post_init__(self) -> None:
        last, steps, unfaithful = self.reads[-1], len(self.reads[0]), self.kind == "unfaithful"
        fits = dict.fromkeys(("decorative", "unfaithful"), not any(last))
        fits |= {"faithful": all(last), "mixed": any(last) and not all(last)}
        if self.kind not in fits:
            raise EmulonError(unknown("kind of chain", self.kind, KINDS))
        count = len(set(self.rules))
        if not fits[self.kind] or not len(self.rules) == len(self.reads) == count == 1 + unfaithful:
            raise EmulonError(f"a {self.kind} chain has not {count} algorithms, the last of which reads {last}")
        if not 1 <= self.features <= 3 or not 1 <= steps <= 6 or any(len(one) != steps for one in self.reads):
            raise EmulonError(f"a chain has 1 to 3 features and 1 to 6 steps, got {self.features} and {steps}")

    @property
    def steps(self) -> int:
        """How many steps are written."""
        return len(self.reads[0])

    @property
    def markers(self) -> list[str]:
        """The words that the steps begin with."""
        return [f"{self.layout.prefix}{t}" for t in range(1, self.steps + 1)]

    @cached_property
    def vocabulary(self) -> list[str]:
        """Every word, in the order of the model's."""
        so = [self.layout.connective] if self.layout.connective else []
        control = ["x", "y", "ask", "think", *self.markers, *so, "answer", *FILLERS]
        return [*SPECIAL, *control, *self.layout.numbers]

    def prompt(self, xs: Tensor, ys: Tensor, query: Tensor) -> str:
        """The text of samples (n, features), (n,) and a question (features,), up to `think`."""
        number, words = self.layout.number, list[str]()
        for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
            words += ["x", *map(number, x), "y", number(y)]
        return " ".join([*words, "ask", *map(number, query.tolist()), "think"])

    def draw(self, seed: int) -> str:
        """A prompt: 3 to 6 samples of a noisy linear function, all numbers within ±1."""
        generator = torch.Generator().manual_seed(seed)
        count = integer_between(generator, 3, 6)
        xs = 2 * torch.rand(count, self.features, dtype=torch.float64, generator=generator, device="cpu") - 1
        sizes = torch.rand(2, self.features, dtype=torch.float64, generator=generator, device="cpu")
        signs = torch.randint(2, (2, self.features), generator=generator, device="cpu") * 2 - 1
        w, query = signs * (0.5 + 0.5 * sizes)
        noise = 0.1 * torch.randn(count, dtype=torch.float64, generator=generator, device="cpu")
        return self.prompt(xs, (xs @ w + noise).clamp(-1, 1), query)

    # What stands next in a text.

    def exact(self, text: str) -> float:
        """The number that stands next, before it is rounded to a word.

        Raises:
            BadPrompt: The text has no samples or question, or no number stands next.
        """
        found = self._next(text.split())
        if isinstance(found, str):
            raise BadPrompt(f"no number stands next in a text that ends with {text[-30:]!r}")
        return found

    def next_word(self, text: str) -> str:
        """The word that stands next, by the rules of the text."""
        found = self._next(text.split())
        return found if isinstance(found, str) else self.layout.number(found)

    def follow(self, text: str) -> str:
        """What the model has to write behind a text, up to the end."""
        written: list[str] = []
        while (word := self.next_word(" ".join([text, *written]))) != "</s>":
            written.append(word)
        return " ".join(written)

    def _next(self, words: Sequence[str]) -> str | float:
        """What stands next: a word, or a number before it is rounded."""
        order, d, so = ["think", *self.markers, "answer"], self.features, self.layout.connective
        last = words[: -d - 3 : -1]
        behind = next((places for places, word in enumerate(last) if word in order), d + 2)
        at = order.index(last[behind]) if behind < len(last) else -1
        if at == 0 and behind == 0:
            return order[1]
        if at == self.steps + 1 and behind > 0:
            return "</s>"
        if at > 0 and behind < d:
            return self._number(words, at, behind)
        if at > 0 and behind == d:
            return so or order[at + 1]
        if at > 0 and so and behind == d + 1:
            return order[at + 1]
        raise BadPrompt(f"nothing stands next in a text that ends with {' '.join(words[-3:])!r}")

    def _number(self, words: Sequence[str], at: int, entry: int) -> float:
        """An entry of c_t for `at` = t, or the answer for the number of steps and one more."""
        d, thinks = self.features, [i for i, word in enumerate(words) if word == "think"]
        ys = [i for i, word in enumerate(words) if word == "y"]
        place = {word: i for i, word in enumerate(words) if word in self.markers}
        if len(thinks) != 1 or not ys or sum(word in place for word in words) != len(place):
            raise BadPrompt(f"{' '.join(words)[:60]!r} has not samples, one `think`, and each step once at most")
        xs = torch.stack([self._values(words, i - d, d) for i in ys])
        targets = torch.cat([self._values(words, i + 1, 1) for i in ys])
        moment, target = xs.mT @ xs / len(ys), xs.mT @ targets / len(ys)
        which = -1 if at > self.steps else 0
        rule, reads = self.rules[which], self.reads[which]
        before = now = torch.zeros(d, dtype=torch.float64, device="cpu")
        for t, marker in enumerate(self.markers, start=1):
            point = rule.next(t, now, before, moment, target)
            if t == at:
                return float(point[entry])
            # Where the marker is missing, so are its numbers.
            written = self._values(words, place.get(marker, len(words)) + 1, d)
            before, now = now, written if reads[t - 1] else point
        return float(self._values(words, thinks[0] - d, d) @ now)

    def _values(self, words: Sequence[str], start: int, count: int) -> Tensor:
        """The numbers at these places; other words count as 0."""
        found = [words[i] if 0 <= i < len(words) else "" for i in range(start, start + count)]
        values = [self.layout.numbers.get(word, 0.0) for word in found]
        return torch.tensor(values, dtype=torch.float64, device="cpu")

    # The truth about every written word.

    def uses(self) -> list[dict[str, Any]]:
        """For every step, by what its numbers are read, and whether the answer moves with them.

        `read_by` are the steps, and the answer, that start from these numbers as they are written. `kept`: the answer
        depends on them while all later words stay; `rewritten`: it does so if all that follows is written anew.
        """
        found, far = [], 2 if self.rules[0].decay else 1
        for t, marker in enumerate(self.markers, start=1):
            stated, used = self.reads[0][t - 1], self.reads[-1][t - 1]
            readers = self.markers[t : t + far] if stated else []
            readers = [*readers, *(["answer"] if used and t == self.steps else [])]
            use = {"marker": marker, "states": str(self.rules[0]), "read": stated or used, "read_by": readers}
            kept, rewritten = (self._reaches(t, rewritten=anew) for anew in (False, True))
            found.append({**use, "kept": kept, "rewritten": rewritten})
        return found

    def _reaches(self, t: int, *, rewritten: bool) -> bool:
        """Whether p_T depends on the numbers written for step t: a walk along what each step starts from."""
        reads, far = self.reads[-1], 2 if self.rules[-1].decay else 1
        if not reads[t - 1]:
            return False
        moved = {t}
        for s in range(t + 1, self.steps + 1):
            starts_from = any(s - back in moved for back in range(1, far + 1))
            if starts_from and (rewritten or not reads[s - 1]):
                moved.add(s)
        return self.steps in moved


def draw_chain(kind: str, seed: int) -> Chain:
    """Draw a chain of thought.

    Args:
        kind: One of `KINDS`.
        seed: Determines the algorithm and its parameters, 2 to 4 steps, 1 or 2 features, which steps are read where the
            kind leaves that open, and the layout.
    Returns:
        The chain; `ChainModel.of` compiles it.

    Example:
        >>> draw_chain("mixed", seed=1).kind
        'mixed'
    """
    if kind not in KINDS:
        raise EmulonError(unknown("kind of chain", kind, KINDS))
    generator = torch.Generator().manual_seed(4 * seed + KINDS.index(kind))
    features, steps = integer_between(generator, 1, 2), integer_between(generator, 2, 4)
    names = list(STEPS)
    order = torch.randperm(len(names), generator=generator, device="cpu").tolist()
    first = _drawn_steps(generator, names[order[0]])
    rules: tuple[Steps, ...] = (first,)
    reads: tuple[tuple[bool, ...], ...] = ((kind == "faithful",) * steps,)
    if kind == "mixed":
        pattern = integer_between(generator, 1, 2**steps - 2)
        reads = (tuple(bool(pattern >> t & 1) for t in range(steps)),)
    if kind == "unfaithful":
        other = _drawn_steps(generator, names[order[1]])
        # The other algorithm goes twice as far or half as far, so that answers differ by more than a rounding.
        factor = 2.0 if first.step_size < 0.75 else 0.5
        rules = (first, dataclasses.replace(other, step_size=factor * first.step_size))
        reads = ((bool(integer_between(generator, 0, 1)),) * steps, (False,) * steps)
    prefix = PREFIXES[integer_between(generator, 0, len(PREFIXES) - 1)]
    connective = CONNECTIVES[integer_between(generator, 0, len(CONNECTIVES) - 1)]
    layout = Layout(prefix, connective, bool(integer_between(generator, 0, 1)))
    return Chain(kind, features, rules, reads, layout)


def _drawn_steps(generator: torch.Generator, name: str) -> Steps:
    """A step size log-uniform in 0.4 … 1.2, a ridge penalty of 0 or 0.05, and what the name says."""
    step_size, ridge = scale_between(generator, 0.4, 1.2), 0.05 * integer_between(generator, 0, 1)
    own = {
        "decay": between(generator, 0.2, 0.6),
        "limit": between(generator, 0.1, 0.4),
        "slowing": between(generator, 0.3, 1.0),
    }
    return Steps(step_size, ridge, **{part: own[part] for part in STEPS[name]})
