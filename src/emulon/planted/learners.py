"""The registered mechanisms: each class has its program and its exact algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from emulon.core.errors import EmulonError
from emulon.machine.instruction import Invariant, Register
from emulon.machine.programs.examples import Examples, average_rounds, copied, mixed, switched, weighed
from emulon.machine.programs.ridge import elimination_steps
from emulon.machine.programs.sgd import clipped_rounds, descent_steps, momentum_rounds, sgd_rounds, step_gain
from emulon.planted.mechanism import (
    MECHANISMS,
    NORM,
    SHORT,
    SIZES,
    TARGET,
    BoundedLinear,
    Draws,
    Mechanism,
    between,
    integer_between,
    scale_between,
    scale_or_zero,
)
from emulon.tasks.task import uniform

# Sherman–Morrison starts at P = I/λ, so λ cannot be zero.
LEAST_RIDGE = 1e-6


def one_by_one(xs: Tensor, ys: Tensor, step: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """ŷ_i = w·x_i, where w becomes step(w, x_i, w·x_i − y_i) after every example, from w = 0."""
    w, answers = torch.zeros_like(xs[..., 0, :]), []
    for x, y in zip(xs.unbind(-2), ys.unbind(-1), strict=True):
        answers.append((w * x).sum(-1))
        w = step(w, x, (answers[-1] - y).unsqueeze(-1))
    return torch.stack(answers, dim=-1)


def on_examples_so_far(xs: Tensor, ys: Tensor, fitted: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """ŷ_i = w·x_i, where w is fitted(x, y), a column, on the examples before x_i."""
    fits = [fitted(xs[..., :i, :], ys[..., :i, None])[..., 0] for i in range(xs.shape[-2])]
    return torch.stack([(w * x).sum(-1) for w, x in zip(fits, xs.unbind(-2), strict=True)], dim=-1)


@dataclass(frozen=True)
class Sgd(Mechanism, name="sgd"):
    """w ← w − α(x(w·x − y) + 2λw) on one example after the other, from w = 0.

    Drawn: α log-uniform in 0.1 … 1, λ zero or log-uniform in 0.01 … 0.1, with equal probability.
    """

    step_size: float = 0.5
    ridge: float = 0.0
    draws: ClassVar[Draws] = {"ridge": (scale_or_zero, 0.01, 0.1), **SIZES, "step_size": (scale_between, 0.1, 1.0)}

    @property
    def max_norm(self) -> float:
        return descent_norm(self.samples - 1, step_gain(self.step_size, self.ridge, NORM), self.step_size)

    def add(self, examples: Examples) -> Register:
        return sgd_rounds(examples, self.step_size, ridge=self.ridge)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        return one_by_one(xs, ys, lambda w, x, off: w - self.step_size * (x * off + 2 * self.ridge * w))


@dataclass(frozen=True)
class BatchDescent(Mechanism, name="batch descent"):
    """`steps` steps w ← w − α(mean x(w·x − y) + 2λw) over all examples so far, from w = 0.

    Drawn: α log-uniform in 0.2 … 2, 1 to 4 steps, λ zero or log-uniform in 0.01 … 0.1, with equal probability.
    """

    step_size: float = 1.0
    steps: int = 2
    ridge: float = 0.0
    draws: ClassVar[Draws] = {
        "ridge": (scale_or_zero, 0.01, 0.1),
        "step_size": (scale_between, 0.2, 2.0),
        "steps": (integer_between, 1, 4),
        **SIZES,
    }

    @property
    def max_norm(self) -> float:
        return descent_norm(self.steps, step_gain(self.step_size, self.ridge, NORM), self.step_size)

    def add(self, examples: Examples) -> Register:
        return descent_steps(examples, self.step_size, self.steps, ridge=self.ridge)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        def fitted(x: Tensor, y: Tensor) -> Tensor:
            w = torch.zeros_like(xs[..., 0, :, None])
            for _ in range(self.steps):
                w = w - self.step_size * (x.mT @ (x @ w - y) / max(x.shape[-2], 1) + 2 * self.ridge * w)
            return w

        return on_examples_so_far(xs, ys, fitted)


@dataclass(frozen=True)
class Ridge(Mechanism, name="ridge"):
    """The ridge solution on the examples so far, by Sherman–Morrison updates. Drawn: λ log-uniform in 0.2 … 2."""

    ridge: float = 0.5
    draws: ClassVar[Draws] = {**SIZES, "ridge": (scale_between, 0.2, 2.0)}

    @property
    def entries(self) -> int:
        return self.features * (self.features + 1) // 2

    def least(self, parameter: str) -> float:
        return LEAST_RIDGE if parameter == "ridge" else super().least(parameter)

    @property
    def max_norm(self) -> float:
        return math.sqrt(self.samples) * TARGET / (2 * math.sqrt(self.ridge))

    def add(self, examples: Examples) -> Register:
        return elimination_steps(examples, self.ridge)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        penalty = self.ridge * torch.eye(xs.shape[-1], dtype=xs.dtype, device="cpu")
        return on_examples_so_far(xs, ys, lambda x, y: torch.linalg.solve(x.mT @ x + penalty, x.mT @ y))


@dataclass(frozen=True)
class MovingAverage(Mechanism, name="moving average"):
    """ŷ ← γŷ + (1 − γ)y from 0; x is not used. Drawn: γ uniform in 0.2 … 0.9."""

    decay: float = 0.7
    draws: ClassVar[Draws] = {**SIZES, "decay": (between, 0.2, 0.9)}

    def add(self, examples: Examples) -> Register:
        return average_rounds(examples, self.decay)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        answers = [torch.zeros_like(ys[..., 0])]
        for y in ys[..., :-1].unbind(-1):
            answers.append(self.decay * answers[-1] + (1 - self.decay) * y)
        return torch.stack(answers, dim=-1)


@dataclass(frozen=True)
class Momentum(Mechanism, name="momentum"):
    """v ← μv + x(w·x − y), w ← w − αv on one example after the other, from zero.

    Drawn: α log-uniform in 0.1 … 0.5, μ uniform in 0.2 … 0.8; 3 to 5 samples.
    """

    step_size: float = 0.3
    decay: float = 0.5
    draws: ClassVar[Draws] = {**SHORT, "step_size": (scale_between, 0.1, 0.5), "decay": (between, 0.2, 0.8)}

    @property
    def max_norm(self) -> float:
        w = v = 0.0
        for _ in range(self.samples - 1):
            v = self.decay * v + NORM * (NORM * w + TARGET)
            w = w + self.step_size * v
        return w

    def add(self, examples: Examples) -> Register:
        return momentum_rounds(examples, self.step_size, self.decay)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        v = torch.zeros_like(xs[..., 0, :])

        def step(w: Tensor, x: Tensor, off: Tensor) -> Tensor:
            nonlocal v
            v = self.decay * v + x * off
            return w - self.step_size * v

        return one_by_one(xs, ys, step)


@dataclass(frozen=True)
class ClippedSgd(Mechanism, name="clipped sgd"):
    """w ← w − α·x·clip(w·x − y, ±c) on one example after the other, from w = 0: SGD on Huber's loss.

    Drawn: α log-uniform in 0.2 … 1, c uniform in 0.1 … 0.5.
    """

    step_size: float = 0.5
    limit: float = 0.3
    draws: ClassVar[Draws] = {"step_size": (scale_between, 0.2, 1.0), "limit": (between, 0.1, 0.5), **SIZES}

    @property
    def max_norm(self) -> float:
        return (self.samples - 1) * self.step_size * NORM * self.limit

    def add(self, examples: Examples) -> Register:
        return clipped_rounds(examples, self.step_size, self.limit)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        return one_by_one(xs, ys, lambda w, x, off: w - self.step_size * x * off.clamp(-self.limit, self.limit))


@dataclass(frozen=True)
class LeastSquares(Ridge, name="least squares"):
    """Ridge regression with a small λ, near least squares; the exact algorithm has the same λ.

    Drawn: λ log-uniform in 0.01 … 0.03.
    """

    ridge: float = 0.02
    draws: ClassVar[Draws] = {**SIZES, "ridge": (scale_between, 0.01, 0.03)}


@dataclass(frozen=True)
class LastValue(Mechanism, name="last value"):
    """ŷ is the previous target; x is not used. Only sizes are drawn."""

    def add(self, examples: Examples) -> Register:
        return copied(examples)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        return torch.nn.functional.pad(ys[..., :-1], (1, 0))


@dataclass(frozen=True)
class NearestAverage(Mechanism, name="nearest average"):
    """ŷ is the mean of the targets so far with weights e^{s·x·x_j}: softmax attention over examples.

    For large s it is close to the nearest neighbour. Drawn: s log-uniform in 1 … 16."""

    sharp: float = 4.0
    draws: ClassVar[Draws] = {**SIZES, "sharp": (scale_between, 1.0, 16.0)}

    def add(self, examples: Examples) -> Register:
        return weighed(examples, self.sharp)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        past = torch.ones(xs.shape[-2], xs.shape[-2], dtype=torch.bool, device="cpu").tril(-1)
        scores = (self.sharp * xs @ xs.mT).masked_fill(~past, -torch.inf)
        weights = torch.softmax(scores, dim=-1).nan_to_num(nan=0.0)
        return (weights @ ys.unsqueeze(-1)).squeeze(-1)


# Parts of drawn mixtures and switches: mechanisms with short programs.
PARTS: tuple[type[Mechanism], ...] = (Sgd, ClippedSgd, MovingAverage, LastValue, NearestAverage)


@dataclass(frozen=True)
class _Pair(Mechanism):
    """Two mechanisms in one stream, both with the sizes of the pair; `read` is the number of features they read."""

    first: Mechanism = field(default_factory=Sgd)
    second: Mechanism = field(default_factory=LastValue)
    draws: ClassVar[Draws] = {}
    switches: ClassVar[int] = 0  # entries of x that neither reads

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("first", "second"):
            part = getattr(self, name)
            if isinstance(part, _Pair):
                raise EmulonError(f"{self.name} takes two plain mechanisms, and its {name} is {part.name}")
            object.__setattr__(self, name, replace(part, features=self.read, samples=self.samples))

    @property
    def read(self) -> int:
        """Entries of x that the mechanisms read."""
        return self.features - self.switches

    @property
    def entries(self) -> int:
        return self.first.entries + self.second.entries

    @property
    def max_norm(self) -> float:
        return max(self.first.max_norm, self.second.max_norm)

    def both(self, examples: Examples) -> tuple[Register, Register]:
        """Append both; their registers' names begin with a and b. Returns the two answers."""
        a, b = (replace(examples, prefix=f"{examples.prefix}{letter} ") for letter in "ab")
        return self.first.add(a), self.second.add(b)

    def answers(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, Tensor]:
        return self.first.algorithm(xs, ys), self.second.algorithm(xs, ys)

    @classmethod
    def drawn(cls, generator: torch.Generator) -> Mechanism:
        order = torch.randperm(len(PARTS), generator=generator, device="cpu")[:2].tolist()
        first, second = (PARTS[i].drawn(generator) for i in order)
        features, _, samples = (integer_between(generator, *ends) for ends in ((1, 3), (3, 6), (3, 5)))
        own = {name: draw(generator, low, high) for name, (draw, low, high) in cls.draws.items()}
        return cls(features + cls.switches, samples, first, second, **own)


@dataclass(frozen=True)
class Mixture(_Pair, name="mixture"):
    """share·first + (1 − share)·second.

    Drawn: two of sgd, clipped sgd, moving average, last value, nearest average with their own distributions; 3 to 5
    samples, share uniform in 0.2 … 0.8.
    """

    share: float = 0.5
    draws: ClassVar[Draws] = {"share": (between, 0.2, 0.8)}

    def add(self, examples: Examples) -> Register:
        return mixed(examples, *self.both(examples), self.share)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        first, second = self.answers(xs, ys)
        return self.share * first + (1 - self.share) * second


@dataclass(frozen=True)
class Switch(_Pair, name="switch"):
    """`first` where the first feature of the first example is positive, `second` where it is negative.

    Within 1/(2·sharp) of zero the two are mixed.

    Drawn: two of the mechanisms that mixtures draw; 3 to 5 samples, sharp log-uniform in 4 … 16.
    """

    sharp: float = 8.0
    draws: ClassVar[Draws] = {"sharp": (scale_between, 4.0, 16.0)}

    def add(self, examples: Examples) -> Register:
        return switched(examples, *self.both(examples), self.sharp)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        first, second = self.answers(xs, ys)
        gate = (self.sharp * xs[..., 0, :1]).clamp(-0.5, 0.5) + 0.5
        return gate * first + (1 - gate) * second


# The first entry of x that asks for the first mechanism of a choice; its negative asks for the second.
ASKED = 0.5


@dataclass(frozen=True)
class Named(BoundedLinear):
    """Data of a choice: the first entry of every x is ±`ASKED`, and the rest as in `BoundedLinear`, but shorter."""

    def inputs(self, generator: torch.Generator, batch: int, points: int, dtype: torch.dtype = torch.float32) -> Tensor:
        rest = BoundedLinear(self.features - 1, self.points).inputs(generator, batch, points, dtype)
        asked = uniform(generator, batch, points, 1, dtype=dtype).round().mul(2).sub(1) * ASKED
        return torch.cat([asked, math.sqrt(1 - ASKED**2) * rest], dim=-1)


@dataclass(frozen=True)
class Choice(_Pair, name="choice"):
    """The first entry of x is a switch: where it is ½, `first` answers at this x, where it is −½, `second`.

    Both read the other entries alone. Models of words (`tokenized`) have words for the switch, the mechanisms' names.
    Drawn: two of the mechanisms that mixtures draw, 2 to 4 features; never drawn by `drawn_mechanism`.
    """

    features: int = 3
    switches = 1

    @property
    def entries(self) -> int:
        return super().entries + self.features

    @property
    def task(self) -> BoundedLinear:
        return Named(self.features, self.samples)

    @property
    def switch(self) -> dict[str, float]:
        first, second = (part.name.replace(" ", "-") for part in (self.first, self.second))
        return {first: ASKED, f"{second}'" if first == second else second: -ASKED}

    def add(self, examples: Examples) -> Register:
        x, rest = examples.own_x(), examples.register("rest", self.read)
        every = torch.eye(self.features, dtype=torch.float64, device="cpu")
        within = Invariant("a part of x", low=-NORM, high=NORM, norm=NORM)
        examples.program.aff(rest, x.map(every[1:], (self.read, 1), "x[1:]"), invariant=within)
        seen = replace(examples, x=rest, domain=replace(examples.domain, features=self.read))
        return switched(examples, *self.both(seen), 1 / ASKED, own=True)

    def algorithm(self, xs: Tensor, ys: Tensor) -> Tensor:
        first, second = self.answers(xs[..., 1:], ys)
        gate = (xs[..., 0] / ASKED).clamp(-0.5, 0.5) + 0.5
        return gate * first + (1 - gate) * second


def drawn_mechanism(seed: int) -> Mechanism:
    """Draw a mechanism: each kind but choices is equally likely, parameters are as its docstring says.

    Args:
        seed: Determines the mechanism.
    Returns:
        The mechanism.

    Example:
        >>> drawn_mechanism(5) == drawn_mechanism(5)
        True
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = [kind for kind in MECHANISMS.values() if kind is not Choice]
    return kinds[integer_between(generator, 0, len(kinds) - 1)].drawn(generator)


def descent_norm(steps: int, gain: float, step_size: float) -> float:
    """Bound on ‖w‖ after steps that multiply it by at most `gain` and add at most α‖x‖|y|."""
    try:
        return sum(gain**i for i in range(steps)) * step_size * NORM * TARGET
    except OverflowError:
        return math.inf  # refused by Domain
