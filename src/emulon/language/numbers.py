"""Numbers as text: three words each, `+0.32 -488 +484` for 0.32 − 0.00488 + 0.00000484.

The first word counts hundredths, the second hundred-thousandths, the third hundred-millionths. `encode` writes groups
that are balanced, −500 to 500, so that a reader finds the nearest multiple at every stage; `decode` takes all groups
from −999 to 999: a writer that rounds one group to a neighbour mends it in the next.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from emulon.core.errors import EmulonError, OutOfDomain
from emulon.core.tokenizer import head_text

# Hundred-millionths in 1.
UNITS = 10**8
HIGHEST_HEAD, HIGHEST_GROUP = 1999, 999
LARGEST = HIGHEST_HEAD / 100
HEAD = re.compile(r"[+-]1?[0-9]\.[0-9][0-9]")
GROUP = re.compile(r"[+-][0-9]{3}")


def group_text(group: int) -> str:
    """The second or third word of a number: `-488` for −488."""
    return f"{group:+04d}"


def to_units(value: float | Fraction) -> int:
    """The number in hundred-millionths, rounded to the nearest one, ties to even.

    Raises:
        OutOfDomain: It is not finite, or above `LARGEST` in absolute value.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise OutOfDomain(f"{value} cannot be written as a number; remove it from the data")
    exact = Fraction(value)
    if abs(exact) > LARGEST:
        raise OutOfDomain(f"{float(value):.6g} cannot be written: numbers are at most {LARGEST}; rescale the data")
    return round(exact * UNITS)


def encode(value: float | Fraction) -> tuple[str, str, str]:
    """Write a number as three words.

    Args:
        value: The number; its nearest multiple of 1e-8 is written.
    Returns:
        The three words, with balanced second and third groups.
    Raises:
        OutOfDomain: It is not finite, or above 19.99 in absolute value.

    Example:
        >>> " ".join(encode(0.31512484))
        '+0.32 -488 +484'
    """
    return encode_units(to_units(value))


def encode_units(units: int) -> tuple[str, str, str]:
    """`encode` for a whole number of hundred-millionths."""
    head = round(Fraction(units, 10**6))
    if abs(head) > HIGHEST_HEAD:
        raise OutOfDomain(f"{units / UNITS:.6g} cannot be written: numbers are at most {LARGEST}; rescale the data")
    rest = units - head * 10**6
    middle = round(Fraction(rest, 1000))
    return head_text(head), group_text(middle), group_text(rest - 1000 * middle)


def decode(words: Sequence[str]) -> int:
    """Read three words as a whole number of hundred-millionths.

    Raises:
        EmulonError: They are not the three words of a number.
    """
    if len(words) != 3 or not HEAD.fullmatch(words[0]) or not all(map(GROUP.fullmatch, words[1:])):
        raise EmulonError(f"{' '.join(words)[:40]!r} is not a number such as '+0.32 -488 +484'")
    if words[0] == "-0.00" or "-000" in words:
        raise EmulonError(f"{' '.join(words)[:40]!r}: zero is written with a plus sign")
    return int(words[0].replace(".", "")) * 10**6 + int(words[1]) * 1000 + int(words[2])
