"""1/√t over a long range: a coarse scale first, then a root over a short one.

A softmax follows 1/√t with equal steps, which over a ratio of 100 are too wide at one end or too many. For any s > 0,
1/√t = s·(s²t)^{−1/2}, and with s = p + q/(1 + e^{at}), two keys of a softmax, s²t lies within a factor of 3 where t
itself ranges over 100. The formulas for a and q/p are fitted to the best, for ratios from 4 to 1000.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from emulon.core.errors import OutOfDomain
from emulon.networks.groups import balance
from emulon.networks.layers import Known, Root
from emulon.networks.lowering import SQUARE, Builder
from emulon.networks.normalisation import product

# A root over a longer range than this is taken in two.
SHORT = 4.0
# Beyond this ratio the formulas are not known to help.
LONGEST = 1e4


def with_short_roots(builder: Builder, known: Sequence[Known]) -> Builder:
    """The same layers, roots over long ranges replaced."""
    made, place = Builder(builder.given), {0: 0}
    made.shape = builder.shape
    for number, (layer, where) in enumerate(zip(builder.layers, known, strict=True), start=1):
        reads = tuple(place[read] for read in layer.reads)
        if isinstance(layer, Root) and _is_long(layer, where):
            made.at = reads[0]
            _in_two(made, layer.name, *where.inputs.ends)
        else:
            made.add(replace(layer, reads=reads), builder.sizes[number])
        place[number] = made.at
    return made


def _is_long(layer: Root, known: Known) -> bool:
    lo, hi = known.inputs.ends
    if not 0 < lo <= hi <= LONGEST * lo:
        raise OutOfDomain(
            f"{layer.name}: 1/√v is asked for v between {lo:.4g} and {hi:.4g}, which is too wide a range; give data=… "
            "for ranges, or data that do not come so near to constant"
        )
    return hi > SHORT * lo


def _in_two(builder: Builder, place: str, lo: float, hi: float) -> None:
    variance, ratio = builder.at, hi / lo
    a, q = 1.55 / math.sqrt(ratio), 3.05 * ratio**0.28
    t = torch.logspace(0, math.log2(ratio), 1000, base=2.0, dtype=torch.float64, device="cpu")
    size = (1 + q / (1 + torch.exp(a * t))).square() * t
    least, most = size.min().item(), size.max().item()
    p = 1 / math.sqrt(lo * math.sqrt(least * most))
    scale = f"{p!r} + {p * q!r}/(1 + exp({a / lo!r}*t))"
    coarse = builder.elementwise(place, "coarse scale", scale)
    squared = builder.elementwise(place, "square", SQUARE)
    largest = p * (1 + q / (1 + math.exp(a)))
    product(builder, place, squared, variance, scale=balance(largest**2, hi))
    # With room for what lies between the points looked at, and for errors.
    fine = builder.root(place, (0.98 * math.sqrt(least / most), 1.02 * math.sqrt(most / least)))
    product(builder, place, coarse, fine, scale=balance(largest, most**0.25 / least**0.25))
