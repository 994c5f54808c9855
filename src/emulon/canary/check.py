"""What an engine's logits say about it: bits kept, operation by operation, beside what a correct engine must keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.canary.analog import STANDARD as ANALOG
from emulon.canary.analog import analog
from emulon.canary.arithmetic import ARITHMETICS, ASSUMED
from emulon.canary.checkpoint import Canary, Shape
from emulon.canary.digital import STANDARD as DIGITAL
from emulon.canary.digital import digital
from emulon.canary.reference import Reference, Value
from emulon.core.errors import BadShape, EmulonError, unknown

# What is counted as exact.
ALL_BITS = 30.0
OpenEngine = Callable[[Path], Callable[[Sequence[Sequence[int]]], NDArray[Any]]]


def _family(half: bool) -> dict[str, Callable[[], Canary]]:
    """Grouped heads whose size is hidden/heads, and heads of their own whose size is not."""
    end = "-float16" if half else ""
    return {
        f"digital{end}": lambda: digital(DIGITAL, half=half),
        f"digital-wide{end}": lambda: digital(Shape(16, 64, DIGITAL.theta), half=half),
        f"analog{end}": lambda: analog(ANALOG, half=half),
        f"analog-wide{end}": lambda: analog(Shape(16, 64, ANALOG.theta), half=half),
    }


CANARIES: dict[str, Callable[[], Canary]] = {**_family(False), **_family(True)}


@cache
def canary(name: str) -> Canary:
    """The canary of this name.

    Args:
        name: One of `CANARIES`: digital, digital-wide, analog, analog-wide, and each with `-float16` behind it.
    Returns:
        A checkpoint, its prompts and its probes.
    Raises:
        EmulonError: There is none.

    Example:
        >>> canary("digital").write(Path("digital"))
    """
    if name not in CANARIES:
        raise EmulonError(unknown("canary", name, CANARIES))
    return CANARIES[name]()


@cache
def answers(name: str, arithmetic: str, first: int) -> tuple[dict[int, Value], ...]:
    """The exact answers to a canary's prompts, with bounds for engines of this arithmetic."""
    one = canary(name)
    reference = Reference(one.config, one.weights)
    return tuple(reference.logits(prompt, ARITHMETICS[arithmetic], first=first) for prompt in one.prompts)


@dataclass(frozen=True)
class Kept:
    """One probe of one engine.

    Attributes:
        canary: The checkpoint.
        probe: The register.
        operation: What writes it.
        layer: The layer that writes it.
        kept: Bits of the answer, the least of all prompts; 30 where all are exact.
        proved: Bits that every correct engine keeps; 30 where every correct engine is exact.
    """

    canary: str
    probe: str
    operation: str
    layer: int
    kept: float
    proved: float

    @property
    def wrong(self) -> bool:
        """Fewer bits than every correct engine keeps."""
        return self.kept < self.proved


@dataclass(frozen=True)
class Report:
    """What all canaries say of one engine.

    Attributes:
        engine: Its name.
        arithmetic: The number format it was held to.
        rows: A row a probe, in the order in which an engine computes them.

    Example:
        >>> print(check(open_engine, "mine"))
    """

    engine: str
    arithmetic: str
    rows: tuple[Kept, ...]

    @property
    def wrong(self) -> list[Kept]:
        """The probes with fewer bits than are proved."""
        return [row for row in self.rows if row.wrong]

    @property
    def first_wrong(self) -> Kept | None:
        """The first operation that is wrong: digital canaries first, as they name the wiring."""
        return min(self.wrong, key=lambda row: (row.layer, not row.canary.startswith("digital")), default=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [asdict(row) | {"wrong": row.wrong} for row in self.rows]
        return {"engine": self.engine, "arithmetic": self.arithmetic, "assumed": list(ASSUMED), "rows": rows}

    def __str__(self) -> str:
        lines = [f"{self.engine}, held to {self.arithmetic}"]
        for name in dict.fromkeys(row.canary for row in self.rows):
            rows = [row for row in self.rows if row.canary == name]
            if name.startswith("digital"):
                wrong = [row for row in rows if row.wrong]
                say = ", ".join(f"{row.probe} ({row.operation})" for row in wrong)
                lines.append(f"  {name}: {f'wrong: {say}' if wrong else 'bit-exact'}")
                continue
            lines.append(f"  {name}: bits kept / proved")
            for row in rows:
                lines.append(
                    f"    {row.probe:12} {row.kept:5.1f} / {row.proved:4.1f}  {row.operation}{'   ← WRONG' * row.wrong}"
                )
        first = self.first_wrong
        lines.append("no fault" if first is None else f"first wrong operation: layer {first.layer}, {first.operation}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


def names_for(arithmetic: str) -> list[str]:
    """The canaries whose numbers this format holds."""
    return [name for name in CANARIES if name.endswith("-float16") == (arithmetic == "float16")]


def compare(name: str, logits: NDArray[Any], arithmetic: str, first: int = 0) -> list[Kept]:
    """One canary's rows, from an engine's logits.

    Args:
        name: The canary.
        logits: (prompts, vocabulary), after the last token of each prompt.
        arithmetic: The number format to hold the engine to.
        first: The position of the first token.
    Returns:
        A row a probe.
    Raises:
        BadShape: There is no row a prompt, or fewer numbers than registers.
    """
    one, exact = canary(name), answers(name, arithmetic, first)
    logits = np.asarray(logits, dtype=np.float64)
    least = max(one.registers[probe.name] for probe in one.probes) + 1
    if logits.ndim != 2 or len(logits) != len(exact) or logits.shape[1] < least:
        raise BadShape(f"logits have shape {logits.shape}; {name} wants ({len(exact)}, 320), a row a prompt")
    rows = []
    for probe in one.probes:
        place = one.registers[probe.name]
        # A register that is zero is compared with 1.
        values = [each.get(place, None) for each in exact]
        centres = [0.0 if each is None else float(each.exact.mid()) for each in values]
        scale = max(map(abs, centres)) or 1.0
        errors = [abs(float(logits[i, place]) - centre) for i, centre in enumerate(centres)]
        bounds = [0.0 if each is None else each.error for each in values]
        # A float64 of the exact number is itself off by this.
        kept = _bits(scale, max(errors, key=_nan_is_worst))
        rows.append(Kept(name, probe.name, probe.operation, probe.layer, kept, _bits(scale, max(bounds))))
    return rows


def _nan_is_worst(error: float) -> float:
    return math.inf if math.isnan(error) else error


def _bits(scale: float, error: float) -> float:
    if not error < math.inf:
        return 0.0
    return ALL_BITS if error <= scale * 2.0**-ALL_BITS else max(math.log2(scale / error), 0.0)


def check(open_engine: OpenEngine, name: str = "engine", arithmetic: str = "float32", *, first: int = 0) -> Report:
    """Run an engine on all canaries of a number format.

    Args:
        open_engine: From a checkpoint's folder to a function from prompts (lists of token ids) to the logits after each
            prompt's last token, (prompts, vocabulary).
        name: What to call the engine.
        arithmetic: float32, bfloat16 or float16: weights and activations; sums, norms and softmax in float32.
        first: The position that the engine gives the first token.
    Returns:
        Bits kept and bits proved, a row a probe.
    Raises:
        EmulonError: There is no such number format.

    Example:
        >>> check(lambda folder: MyEngine(folder).logits, "mine").first_wrong
    """
    if arithmetic not in ARITHMETICS:
        raise EmulonError(unknown("number format", arithmetic, ARITHMETICS))
    rows: list[Kept] = []
    for each in names_for(arithmetic):
        with TemporaryDirectory() as folder:
            canary(each).write(Path(folder))
            rows += compare(each, open_engine(Path(folder))(canary(each).prompts), arithmetic, first)
    return Report(name, arithmetic, tuple(rows))


def assert_known_answers(open_engine: OpenEngine, arithmetic: str = "float32") -> None:
    """For an engine's own tests: every probe keeps the bits that are proved.

    Args:
        open_engine: As for `check`.
        arithmetic: As for `check`.
    Raises:
        AssertionError: With the whole table, if any does not.

    Example:
        >>> def test_known_answers():
        ...     assert_known_answers(lambda folder: MyEngine(folder).logits)
    """
    report = check(open_engine, arithmetic=arithmetic)
    if report.wrong:
        raise AssertionError(str(report))
