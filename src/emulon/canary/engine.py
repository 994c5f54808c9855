"""What an engine is: from a checkpoint's folder to a function from prompts to logits, and how it may compute.

The roundings that a correct engine of some number format makes are for any order of summation, with or without fused
multiply–adds. `ASSUMED` lists what is taken for granted of an engine's functions; the limits are several times what
the libraries that we know of do. A package is imported when its engine is opened.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulon.core.names import Registry

Prompts = Sequence[Sequence[int]]
Answers = NDArray[Any]
Opened = Callable[[Prompts], Answers]
One = Callable[[Sequence[int]], Answers]
# Positions of the first token; the longest prompt.
OFFSETS, LONGEST = (4096, 32768, 1 << 20), 256
FLOAT32 = 2.0**-24
# Largest errors of functions in units roundoff of float32: exp, sigmoid, cosines; 1/√x; a rotary frequency, and its
# pair on top; the variance of a LayerNorm.
EXP, ROOT, FREQUENCY, MOMENTS = 4, 4, 8, 64


@dataclass(frozen=True)
class Arithmetic:
    """A number format for weights, activations and cache, with sums, norms and softmax in float32.

    Attributes:
        name: As PyTorch writes it.
        unit: The unit roundoff of what is stored between operations.
        tiny: Half the spacing of the smallest numbers (0 where that never matters).
        largest: The largest finite number.

    Example:
        >>> ARITHMETICS["bfloat16"].unit
        0.00390625
    """

    name: str
    unit: float
    tiny: float
    largest: float

    @cached_property
    def bits(self) -> int:
        """Bits of the mantissa."""
        return round(-math.log2(self.unit))

    def stored(self, magnitude: float) -> float:
        """Bound on the rounding error of storing a number of this size."""
        return self.unit * magnitude + self.tiny if magnitude <= self.largest else math.inf


def growth(roundings: int) -> float:
    """γ_k = k·u/(1 − k·u) of float32 (Higham, Lemma 3.1)."""
    steps = roundings * FLOAT32
    return steps / (1 - steps)


ARITHMETICS = {
    one.name: one
    for one in (
        Arithmetic("float32", FLOAT32, 2.0**-150, math.ldexp(1 - FLOAT32, 128)),
        Arithmetic("bfloat16", 2.0**-8, 2.0**-134, math.ldexp(1 - 2.0**-8, 128)),
        Arithmetic("float16", 2.0**-11, 2.0**-25, 65504.0),
    )
}
ASSUMED = (
    f"exp and sigmoid otherwise err by at most {EXP} units roundoff of float32 of their size, sine and cosine by {EXP}",
    f"1/√x errs by at most {ROOT} units, and not at all where x is a power of 4",
    "exp(0) and sigmoid(x ≥ 20) are 1, sigmoid(x ≤ −128) and exp(x ≤ −128) are 0",
    f"tanh and erf err by at most {EXP} units of their size, and are ±1 where |x| ≥ 14",
    f"the variance of a LayerNorm errs by at most {MOMENTS} units of its size beside what its mean is off by",
    f"the frequency of rotary pair j errs by at most {FREQUENCY} + j units",
    "the rotation of a token depends on its position and frequency alone",
)


@dataclass(frozen=True)
class Engine:
    """One engine in one configuration.

    Attributes:
        name: As the table writes it.
        package: What has to be installed.
        arithmetic: The number format that it claims to compute in.
        open: From a checkpoint's folder to a function from prompts to logits.
        offset: The position of the first token.
        family: Of the canaries that it is given.
        plain: Whether it stands for its package: one forward pass, of each number format.
        device: Where it runs: cpu or cuda.

    Example:
        >>> ENGINES["transformers float32 sdpa"].open(folder)([[1, 5, 3]])
    """

    name: str
    package: str
    arithmetic: str
    open: Callable[[Path], Opened]
    offset: int = 0
    family: str = "llama"
    plain: bool = False
    device: str = "cpu"

    @property
    def writes(self) -> bool:
        """Whether it can be given the text model, which needs float32, position 0 and prompts of any length."""
        return self.arithmetic == "float32" and self.family == "llama" and not self.offset

    @property
    def installed(self) -> bool:
        if importlib.util.find_spec(self.package) is None:
            return False
        if self.device == "cpu":
            return True
        import torch

        return torch.cuda.is_available()


ENGINES: Registry[Engine] = Registry("engine")


def add(name: str, package: str, arithmetic: str, open_: Callable[[Path], Opened], **more: Any) -> None:
    """Register an engine; `more` are other fields of `Engine`."""
    ENGINES.register(Engine(name, package, arithmetic, open_, **more), name)


def each(answer: One) -> Opened:
    """A function of several prompts from one of a single prompt, which returns its last token's logits."""
    return lambda prompts: np.stack([np.asarray(answer(list(prompt)), dtype=np.float64) for prompt in prompts])
