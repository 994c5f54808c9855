"""Makes the identity grid's pieces, and the proofs that are shipped: `python tests/interpreter/identity_grid_maker.py`.

Numbers are computed in ball arithmetic, in integers that is, far beyond the last place that is kept: no BLAS and no
vectorised exp has a part in them, so that they are the same wherever they are made.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from flint import arb, arb_mat, fmpq

from emulon.certify.interpolation import Keys
from emulon.core.files import write_json
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import identity_grid
from emulon.interpreter.identity_grid import DTYPES, OCTAVES, SHIPPED, covered

# (keys, softness βh², half the interval in units of h) of the piece around zero and of all others: the cheapest of
# `Spectral`'s search in its time.
SHAPES = {
    torch.float64: ((32, 0.25, 7.68), (32, 0.225, 7.68)),
    torch.float32: ((32, 0.225, 12.0), (24, 0.1375, 5.34)),
}
# Bits of the arithmetic that makes the line; the ridge, relative to the weights' own size, that keeps values modest.
PRECISION, RIDGE = 320, 1e-31


def made_piece(number: int, dtype: torch.dtype, before: Keys | None) -> Keys:
    """A piece, given the one before it.

    Score −βh²·(offset)² around the middle of the piece; then raised and tilted, where its neighbour hands over to it.
    """
    keys, softness, reach = SHAPES[dtype][number > 0]
    lo, hi = covered(number)
    with ball_arithmetic(PRECISION):
        center, spacing = (arb(lo) + arb(hi)) / 2, (arb(hi) - arb(lo)) / (2 * arb(reach))
        offsets = [arb(2 * k + 1 - keys) / 2 for k in range(keys)]
        slopes = [2 * arb(softness) * offset / spacing for offset in offsets]
        intercepts = [-arb(softness) * offset**2 - a * center for offset, a in zip(offsets, slopes, strict=True)]
        if before is None:
            # Half-way between the largest and the smallest: what all keys share is of no effect.
            tilt, lift = arb(0), -(intercepts[0] + intercepts[keys // 2]) / 2
        else:
            tilt, lift = _handed_over(number, before, slopes, intercepts, dtype)
        slopes = _stored([a + tilt for a in slopes], dtype)
        intercepts = _stored([b + lift for b in intercepts], dtype)
        values = _stored(_fitted(slopes, intercepts, lo, hi), dtype)
    return Keys(*(np.array([float(x) for x in part]) for part in (slopes, intercepts, values)))


def _handed_over(number: int, before: Keys, slopes: list[Any], intercepts: list[Any], dtype: torch.dtype) -> Any:
    """(tilt, lift) of a piece's scores: level with the piece before in the middle of their overlap, and gone beyond it.

    Log-normalisers are convex: beyond the overlap a piece's slope exceeds the one at its middle by no more than its
    steepest key, so that much is added, and what makes the wrong piece vanish within half the overlap.
    """
    above, (below, end) = covered(number - 1)[1], covered(number)
    at, half = (arb(above) + arb(below)) / 2, (arb(above) - arb(below)) / 2
    a, b = ([arb(x) for x in part.tolist()] for part in (before.slopes, before.intercepts))
    (level, slope), (own_level, own_slope) = _log_normaliser(a, b, at), _log_normaliser(slopes, intercepts, at)
    sharpness = (arb(1e4) * 2 * arb(end) / arb(torch.finfo(dtype).eps)).log() / half
    tilt = (a[-1] - slope) + (own_slope - slopes[0]) + slope - own_slope + sharpness
    return tilt, level - own_level - tilt * at


def _log_normaliser(slopes: list[Any], intercepts: list[Any], s: Any) -> tuple[Any, Any]:
    """log Σ exp(score) and its derivative at s."""
    weights = [(a * s + b).exp() for a, b in zip(slopes, intercepts, strict=True)]
    total = sum(weights)
    return total.log(), sum(w * a for w, a in zip(weights, slopes, strict=True)) / total


def _fitted(slopes: list[Any], intercepts: list[Any], lo: float, hi: float) -> list[Any]:
    """Values whose averages are nearest to s at Chebyshev nodes of [lo, hi]: least squares with a small ridge."""
    count = 2 * len(slopes) + 2
    center, half = (arb(lo) + arb(hi)) / 2, (arb(hi) - arb(lo)) / 2
    nodes = [center + half * arb.cos_pi_fmpq(fmpq(2 * k + 1, 2 * count)) for k in range(count)]
    rows = []
    for s in nodes:
        weights = [(a * s + b).exp() for a, b in zip(slopes, intercepts, strict=True)]
        total = sum(weights)
        rows.append([w / total for w in weights])
    across = arb_mat(rows).transpose()
    normal = across * arb_mat(rows)
    ridge = arb(RIDGE) * normal.trace()
    for k in range(len(slopes)):
        normal[k, k] += ridge
    solution = normal.solve(across * arb_mat([[s] for s in nodes]))
    return [solution[k, 0] for k in range(len(slopes))]


def _stored(numbers: list[Any], dtype: torch.dtype) -> list[Any]:
    """Each as the dtype holds it. A ball's middle is a whole number times a power of two, which Python rounds right."""
    floats = []
    for number in numbers:
        mantissa, exponent = number.mid().man_exp()
        floats.append(math.ldexp(int(mantissa), int(exponent)))
    return [arb(x) for x in torch.tensor(floats, dtype=dtype, device="cpu").tolist()]


def pieces(dtype: torch.dtype) -> list[Keys]:
    """All of them, from the one around zero on."""
    made: list[Keys] = []
    for number in range(OCTAVES + 1):
        made.append(made_piece(number, dtype, made[-1] if made else None))
    return made


if __name__ == "__main__":
    made = {
        name: [[part.tolist() for part in identity_grid._parts(each)] for each in pieces(dtype)]
        for name, dtype in DTYPES.items()
    }
    write_json(SHIPPED, {"pieces": made, "proofs": {}})
    proofs = {name: asdict(identity_grid._proved(*claimed)) for name, claimed in identity_grid.shipped_claims().items()}
    write_json(SHIPPED, {"pieces": made, "proofs": proofs})
