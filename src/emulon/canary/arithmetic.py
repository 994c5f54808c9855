"""How an engine may compute: the roundings that a correct Llama of some number format makes, operation by operation.

Every bound is for any order of summation, with or without fused multiply–adds. `ASSUMED` lists what is taken for
granted of an engine's functions; the limits are several times what the libraries that we know of do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FLOAT32 = 2.0**-24
# Roundings of float32 that one call may cost: exp, sigmoid, cosines; 1/√x; a rotary frequency, and its pair on top.
EXP, ROOT, FREQUENCY = 4, 4, 8
# And of a LayerNorm's variance.
MOMENTS = 64


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

    @property
    def bits(self) -> int:
        """Of the mantissa."""
        return round(-math.log2(self.unit))

    def stored(self, magnitude: float) -> float:
        """What rounding a number of this size costs when it is stored."""
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
