"""What an engine's logits say about it: bits kept, operation by operation, beside what a correct engine must keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from emulon.canary.analog import STANDARD as ANALOG
from emulon.canary.analog import analog
from emulon.canary.checkpoint import CENTRED, FAMILIES, NEOX_BASE, VOCABULARY, Canary, Shape
from emulon.canary.digital import STANDARD as DIGITAL
from emulon.canary.digital import digital
from emulon.canary.engine import ARITHMETICS, ASSUMED
from emulon.core.errors import BadShape, EmulonError, unknown

if TYPE_CHECKING:
    from emulon.canary.forward import Vector

OVERFLOW = "not numbers: a softmax without its maximum, a row that sees nothing, or a format that is too small"
# Bits that count as exact; bits that a register keeps where another is wrong by 1, in a norm of four pads.
ALL_BITS, MOVED_BITS = 30.0, 12.0
OpenEngine = Callable[[Path], Callable[[Sequence[Sequence[int]]], NDArray[Any]]]


def _all() -> dict[str, Callable[..., Canary]]:
    """With grouped heads of size hidden/heads, and with wide heads of another size."""
    found: dict[str, Callable[..., Canary]] = {}
    for family in FAMILIES:
        for half in (False, True) if family in ("llama", "mistral") else (False,):
            end = f"-{family}" * (family != "llama") + "-float16" * half
            for kind, make, theta in (("digital", digital, DIGITAL.theta), ("analog", analog, ANALOG.theta)):
                # 1/√32 is no number for Qwen's norms. GPT-2 and GPT-NeoX have neither groups nor heads of other sizes.
                shapes = {"": Shape(theta=theta)} | ({} if family == "qwen3" else {"-wide": Shape(16, 32, theta)})
                if family in CENTRED:
                    shapes = {"": Shape(16, theta=NEOX_BASE if kind == "digital" else theta)}
                # The analog prompt is longer than Mistral's window.
                if (family, kind) != ("mistral", "analog"):
                    for wide, shape in shapes.items():
                        found[kind + wide + end] = partial(make, shape, family=family, half=half)
    return found


CANARIES = _all()


@cache
def canary(name: str) -> Canary:
    """The canary of this name.

    Args:
        name: One of `CANARIES`: digital, digital-wide, analog, analog-wide; a family or `-float16` behind it.
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
def answers(name: str, arithmetic: str, first: int) -> tuple[Vector, ...]:
    """The exact answers to a canary's prompts, with bounds for engines of this arithmetic."""
    from emulon.canary.reference import Reference

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
        finite: Whether all answers are numbers.
    """

    canary: str
    probe: str
    operation: str
    layer: int
    kept: float
    proved: float
    finite: bool = True

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
        """The first operation that is wrong: digital canaries first, as they name the wiring.

        One NaN reaches all registers, which then say nothing else. Where norms subtract a mean, one wrong register
        moves all others a little: those come last.
        """

        def place(row: Kept) -> tuple[int, bool, bool]:
            moved = row.canary.endswith(CENTRED) and row.kept >= MOVED_BITS
            return row.layer, not row.canary.startswith("digital"), moved

        first = min(self.wrong, key=place, default=None)
        if first and not any(row.finite for row in self.rows if row.canary == first.canary):
            return replace(first, operation=OVERFLOW)
        return first

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [asdict(row) | {"wrong": row.wrong} for row in self.rows]
        return {"engine": self.engine, "arithmetic": self.arithmetic, "assumed": list(ASSUMED), "rows": rows}

    def __str__(self) -> str:
        lines = [f"{self.engine}, held to {self.arithmetic}"]
        for name in dict.fromkeys(row.canary for row in self.rows):
            rows = [row for row in self.rows if row.canary == name]
            if name.startswith("digital"):
                wrong = ", ".join(f"{row.probe} ({row.operation})" for row in rows if row.wrong)
                least = min(row.proved for row in rows)
                right = "bit-exact" if least == ALL_BITS else f"right to the proved bits, {least:.1f} or more"
                lines.append(f"  {name}: {f'wrong: {wrong}' if wrong else right}")
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


def names_for(arithmetic: str, family: str = "llama") -> list[str]:
    """The canaries of a family whose numbers this format holds.

    Raises:
        EmulonError: There is no such format or family, or it has none for this format.
    """
    if arithmetic not in ARITHMETICS:
        raise EmulonError(unknown("number format", arithmetic, ARITHMETICS))
    if family not in FAMILIES:
        raise EmulonError(unknown("family", family, FAMILIES))
    names = [f"{kind}{wide}" for kind in ("digital", "analog") for wide in ("", "-wide")]
    end = f"-{family}" * (family != "llama") + "-float16" * (arithmetic == "float16" and family not in CENTRED)
    if found := [name + end for name in names if name + end in CANARIES]:
        return found
    raise EmulonError(f"the canaries of {family} need larger numbers than {arithmetic} has")


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
        raise BadShape(f"logits have shape {logits.shape}; {name} wants ({len(exact)}, {VOCABULARY}), a row a prompt")
    rows = []
    for probe in one.probes:
        place = one.registers[probe.name]
        # A register that is zero is compared with 1.
        values = [each.get(place, None) for each in exact]
        centres = [0.0 if each is None else float(each.exact.mid()) for each in values]
        scale = max(map(abs, centres)) or 1.0
        errors = [abs(float(logits[i, place]) - centre) for i, centre in enumerate(centres)]
        # `max` would pass over a bound that is NaN.
        bounds = [0.0 if each is None else each.error if each.error < math.inf else math.inf for each in values]
        # A float64 of the exact number is itself off by this.
        finite = all(map(math.isfinite, errors))
        kept = _bits(scale, max(errors)) if finite else 0.0
        rows.append(Kept(name, probe.name, probe.operation, probe.layer, kept, _bits(scale, max(bounds)), finite))
    return rows


def _bits(scale: float, error: float) -> float:
    if not error < math.inf:
        return 0.0
    return ALL_BITS if error <= scale * 2.0**-ALL_BITS else max(math.log2(scale / error), 0.0)


def check(
    open_engine: OpenEngine,
    name: str = "engine",
    arithmetic: str = "float32",
    *,
    family: str = "llama",
    first: int = 0,
) -> Report:
    """Run an engine on all canaries of a family and number format.

    Args:
        open_engine: From a checkpoint's folder to a function from prompts (lists of token ids) to the logits after each
            prompt's last token, (prompts, vocabulary).
        name: What to call the engine.
        arithmetic: float32, bfloat16 or float16: weights and activations; sums, norms and softmax in float32.
        family: llama, mistral, qwen3, gemma, gpt2 or gpt_neox.
        first: The position that the engine gives the first token.
    Returns:
        Bits kept and bits proved, a row a probe.
    Raises:
        EmulonError: There is no such number format or family.

    Example:
        >>> check(lambda folder: MyEngine(folder).logits, "mine").first_wrong
    """
    logits = ask(open_engine, names_for(arithmetic, family))
    rows = [row for each, answer in logits.items() for row in compare(each, answer, arithmetic, first)]
    return Report(name, arithmetic, tuple(rows))


def ask(open_engine: OpenEngine, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """An engine's logits for the prompts of some canaries, by name, for `compare`."""
    found = {}
    for name in names:
        with TemporaryDirectory() as folder:
            canary(name).write(Path(folder))
            found[name] = np.asarray(open_engine(Path(folder))(canary(name).prompts), dtype=np.float64)
    return found


def assert_known_answers(open_engine: OpenEngine, arithmetic: str = "float32", *, family: str = "llama") -> None:
    """For an engine's own tests: every probe keeps the bits that are proved.

    Args:
        open_engine: As for `check`.
        arithmetic: As for `check`.
        family: As for `check`.
    Raises:
        AssertionError: With the whole table, if any does not.

    Example:
        >>> def test_known_answers():
        ...     assert_known_answers(lambda folder: MyEngine(folder).logits)
    """
    report = check(open_engine, arithmetic=arithmetic, family=family)
    if report.wrong:
        raise AssertionError(str(report))
