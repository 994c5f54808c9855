"""Every refusal has one class, one line, and says what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches


class EmulonError(ValueError):
    """Base of all refusals, so that a caller can catch them together."""


class BadShape(EmulonError):
    """A tensor's shape does not fit the construction it was given to.

    Cure: the message names the tensor, its shape and the one that is wanted; tensors are (..., tokens, features).
    """


class OutOfDomain(EmulonError):
    """Data outside the bounds a construction was built for, or not finite.

    Cure: rescale the data, or build for a wider domain; `Domain.of(x, y)` measures one that fits.
    """


class ToleranceTooTight(EmulonError):
    """The tolerance is below `smallest`, the least that the dtype, or the number of heads, allows.

    Cure: ask for the tolerance that the message names, or take a wider dtype.

    `advice` is what else would help, as it continues the sentence: ", or use float64".
    """

    def __init__(self, what: str, tolerance: float, smallest: float, advice: str = "") -> None:
        super().__init__(too_tight(what, tolerance, smallest) + advice)
        self.smallest = smallest
        self.advice = advice


class BadExpression(EmulonError):
    """A function that cannot be read, or is not finite on its interval.

    Cure: write it in t, as the message says, and choose an interval on which it is finite.
    """


class BadProgram(EmulonError):
    """A register program that reads what was never written, loses or overlaps writes, or leaves its domain.

    Cure: look at the instruction that the message names; `print(program)` numbers them.
    """


class BadPrompt(EmulonError):
    """A text that is no prompt of the text language, or no transcript of it.

    Cure: look at the word that the message names; `emulon llama prompt` writes texts that can be read.
    """


class BadNetwork(EmulonError):
    """A network with a part that is not compiled, or that is not ready to be: training mode, a shape that cannot be.

    Cure: the message names the part by its place in the network; replace it, or call `.eval()`.
    """


class NotCertified(EmulonError):
    """An observed error above the certified bound: a bug in emulon, please report it.

    Cure: nothing of yours: send the message, with the data if you can.
    """


class WorkFailed(EmulonError):
    """Work that had to stop half-way, through no fault of the request; what is kept is said.

    Cure: do what the message says about what is kept, and start the command again.
    """


class BadConfig(EmulonError):
    """A configuration with an unknown key, an impossible value, or from another version.

    Cure: correct the key or value that the message names; `emulon train --help` lists them all.
    """


class TrainingDiverged(EmulonError):
    """The loss, or a weight, is no longer finite.

    Cure: lower the rate (`--lr`, `--muon-lr`) or clip lower, and resume from the last checkpoint.
    """


class OutOfMemory(EmulonError):
    """The batch does not fit the device.

    Cure: a smaller `--batch`, fewer points, or a narrower model.
    """


class NoRun(EmulonError):
    """A folder that holds no run, or one that already holds another.

    Cure: name the folder of a run (it has a config.json in it), or another folder for a new one.
    """


class CannotWrite(EmulonError):
    """A file or folder that could not be written: what it was, why, and what to do.

    Cure: free disk space, or name a folder that you may write to.
    """


def too_tight(what: str, tolerance: float, smallest: float) -> str:
    """The message for a tolerance that cannot be kept, in refusals and warnings alike."""
    if math.isinf(smallest):
        return f"{what} can promise nothing, not {tolerance:.1e}; is it finite and smooth there?"
    # Rounded up, so that the figure read off the message is accepted.
    return f"{what} can promise {smallest * 1.05:.1e}, not {tolerance:.1e}; loosen it"


def nearest(word: str, known: Iterable[str]) -> str:
    """The suffix of a refusal, `; did you mean ridge?`, or an empty string if no name is close."""
    close = get_close_matches(word, list(known), n=4, cutoff=0.5)
    # Of those equally near the one that begins as the word does: --otu is --out, not --tau.
    best = max(close, key=lambda name: _likeness(word, name), default="")
    return f"; did you mean {best}?" if best else ""


def _likeness(word: str, name: str) -> tuple[float, int]:
    shared = next((i for i, pair in enumerate(zip(word, name, strict=False)) if pair[0] != pair[1]), len(name))
    return SequenceMatcher(a=name, b=word).ratio(), shared


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """The message for an unknown name, with the closest known name or all of them."""
    names = sorted(known)
    hint = nearest(word, names) or f"; choose from {', '.join(names)}"
    return f"there is no {kind} {word!r}{hint}"
