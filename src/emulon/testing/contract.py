"""What all contracts share: a check is a function of its subject that raises where a promise is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from emulon.core.errors import EmulonError

NamedCheck = tuple[str, Callable[[], None]]
Subject = TypeVar("Subject")


class ContractBroken(EmulonError):
    """A promise of the contract that an object does not keep: the check's name, and what was seen.

    Cure: mend the object; the check of that name in `emulon.testing` says what is asked.
    """


def named(subject: Subject, checks: Iterable[Callable[[Subject], None]]) -> Iterator[NamedCheck]:
    """Each check under its own name, waiting to be called."""
    for check in checks:
        yield check.__name__, partial(_hold, check, subject)


def run_checks(checks: Iterable[NamedCheck]) -> None:
    for _, check in checks:
        check()


def _hold(check: Callable[[Subject], None], subject: Subject) -> None:
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
    """Of one shape, and nowhere further apart than the tolerance."""
    require(ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    apart = (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0
    require(apart <= tolerance, f"{what}: {apart:.3e} apart, allowed are {tolerance:.3e}")


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
