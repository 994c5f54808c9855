"""What all contracts share: checks are functions of a subject that raise where it breaks the contract."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import TypeVar

import torch
from torch import Tensor

from emulon.core.errors import EmulonError

NamedCheck = tuple[str, Callable[[], None]]
Checked = TypeVar("Checked")


class ContractBroken(EmulonError):
    """A check that an object fails: the check's name, and what was seen.

    Cure: mend the object; the check of that name in `emulon.testing` says what is asked.
    """


def named(subject: Checked, checks: Iterable[Callable[[Checked], None]]) -> Iterator[NamedCheck]:
    """Each check under its own name, waiting to be called."""
    for check in checks:
        yield check.__name__, partial(_hold, check, subject)


def run_checks(checks: Iterable[NamedCheck]) -> None:
    for _, check in checks:
        check()


def _hold(check: Callable[[Checked], None], subject: Checked) -> None:
    """Whatever goes wrong in a check is its failure, and is reported under its name."""
    try:
        check(subject)
    except Exception as error:
        kind = "" if isinstance(error, ContractBroken) else f"{type(error).__name__}: "
        raise ContractBroken(f"{check.__name__}: {kind}{error}") from error


def require(held: bool, seen: str) -> None:
    """Not `assert`, which `python -O` would leave out."""
    if not held:
        raise ContractBroken(seen)


def require_agreement(ours: Tensor, theirs: Tensor, tolerance: float, what: str) -> None:
    """Equal shapes, and nowhere a larger difference than the tolerance."""
    require(ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    distance = (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0
    require(distance <= tolerance, f"{what}: {distance:.3e} apart, allowed are {tolerance:.3e}")


def require_same_bits(ours: Tensor, theirs: Tensor, what: str) -> None:
    require(ours.dtype == theirs.dtype and torch.equal(ours, theirs), f"{what}: not the same bits")


def require_refusal(call: Callable[[], object], what: str, *words: str) -> None:
    """The call raises one of emulon's own errors, in one line that has each of these words."""
    try:
        call()
    except EmulonError as error:
        line = str(error)
        require("\n" not in line, f"{what} is refused in more than one line: {line!r}")
        for word in words:
            require(word in line, f"{what} is refused without naming {word}: {line!r}")
        return
    except Exception as error:
        raise ContractBroken(f"{what} ends in {type(error).__name__} ({error}), not in a refusal") from error
    raise ContractBroken(f"{what} is not refused")


class TensorFunction(ABC):
    """A subject that maps named tensors with leading batch dimensions to one tensor with the same."""

    @property
    @abstractmethod
    def parts(self) -> dict[str, Tensor]:
        """Inputs of one batch, made anew: what one call writes into them must not reach the next check."""

    @property
    @abstractmethod
    def batch(self) -> tuple[int, ...]:
        """Their leading dimensions."""

    @abstractmethod
    def call(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The answer to these inputs."""

    @abstractmethod
    def tolerance(self, answer: Tensor) -> float:
        """The largest difference between two evaluations of the same inputs."""


def repeated_calls_give_the_same_bits(subject: TensorFunction) -> None:
    require_same_bits(subject.call(subject.parts), subject.call(subject.parts), "two calls with the same inputs")


def inputs_are_left_alone(subject: TensorFunction) -> None:
    """Nothing is written into the arguments."""
    given = subject.parts
    before = {name: part.clone() for name, part in given.items()}
    subject.call(given)
    for name, part in given.items():
        require_same_bits(part, before[name], f"{name} before and after a call")


def leading_dimensions_are_batches(subject: TensorFunction) -> None:
    """A batch of any shape is the loop over its elements."""
    parts, batch = subject.parts, subject.batch
    together = subject.call(parts)
    shape = tuple(together.shape)
    require(shape[: len(batch)] == batch, f"a batch {batch} gives an output of shape {shape}")
    for place in product(*map(range, batch)):
        alone = subject.call({name: part[place] for name, part in parts.items()})
        require_agreement(together[place], alone, subject.tolerance(together), f"element {place} alone")
    if len(batch) == 1 and batch[0] % 2 == 0:
        folded = subject.call({name: part.unflatten(0, (2, -1)) for name, part in parts.items()})
        require_agreement(folded.flatten(0, 1), together, subject.tolerance(together), "two leading dimensions")


COMMON = (repeated_calls_give_the_same_bits, inputs_are_left_alone, leading_dimensions_are_batches)
