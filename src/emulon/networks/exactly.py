"""The exact network on one row of its input, in Arb balls of any precision: where twice float64's is not enough.

Through many layers a ball's radius grows by a factor each, as if nothing cancelled: six blocks of a transformer make
more than one of 10⁻²². More bits cost little, and start from as small a radius as is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from emulon.expressions import parse
from emulon.expressions.evaluation import arb_matrix, ball_arithmetic
from emulon.networks.layers import Attention, Constant, Elementwise, Layer, Linear, Unrounded


class ArbNetwork:
    """Layers with their weights as Arb matrices."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.matrices = [_matrices(layer) for layer in layers]

    def away(self, x: Tensor, own: Sequence[Tensor], bits: int, times: int = 1) -> list[float]:
        """Above |register − own| for the last registers, as many as are given; infinite where nothing is known.

        x is one row (positions, features) of the input. The network is applied so many times, to its own output.
        """
        with ball_arithmetic(bits):
            state = arb_matrix(x)
            for _ in range(times):
                registers = [state]
                for layer, matrices in zip(self.layers, self.matrices, strict=True):
                    registers.append(_applied(layer, matrices, _beside(layer, registers), len(x)))
                state = registers[-1]
            return [_apart(exact, given) for exact, given in zip(registers[-len(own) :], own, strict=True)]


def _apart(exact: Any, own: Tensor) -> float:
    off = [abs(a - b) for a, b in zip(exact.entries(), arb_matrix(own).entries(), strict=True)]
    # NaN compares as smaller than anything: it must not be lost in a maximum.
    return max(float(each.upper()) for each in off) if all(each.is_finite() for each in off) else math.inf


def _matrices(layer: Layer) -> tuple[Any, ...]:
    if isinstance(layer, Linear) and layer.unrounded is not None:
        return arb_matrix(layer.unrounded.numerators.T), arb_matrix(layer.unrounded.bias.unsqueeze(0))
    if isinstance(layer, Linear):
        return arb_matrix(layer.weight.T), arb_matrix(layer.bias.unsqueeze(0))
    if isinstance(layer, Attention):
        return tuple(
            (arb_matrix(w[head].T), arb_matrix(b[head].unsqueeze(0)))
            for head in range(layer.heads)
            for w, b in layer.written()
        )
    return ()


def _beside(layer: Layer, registers: Sequence[Any]) -> Any:
    from flint import arb_mat

    if len(layer.reads) == 1:
        return registers[layer.reads[0]]
    rows = [[*row] for row in registers[layer.reads[0]].tolist()] if layer.reads else []
    for read in layer.reads[1:]:
        rows = [[*row, *more] for row, more in zip(rows, registers[read].tolist(), strict=True)]
    return arb_mat(rows) if rows else None


def _applied(layer: Layer, matrices: tuple[Any, ...], x: Any, positions: int) -> Any:
    from flint import arb, arb_mat

    if isinstance(layer, Linear):
        return _affine(x, *matrices) if layer.unrounded is None else _divided(layer.unrounded, x, *matrices)
    if isinstance(layer, Constant):
        return arb_matrix(layer.values[:positions])
    if isinstance(layer, Attention):
        return _attention(layer, matrices, x)
    assert isinstance(layer, Elementwise)
    f = parse(layer.f)
    values = [f.arb_value(t) if layer.most == math.inf or t <= layer.most else arb.nan() for t in x.entries()]
    return arb_mat(x.nrows(), x.ncols(), values)


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    from flint import arb_mat

    return x * weight + arb_mat(x.nrows(), 1, [1] * x.nrows()) * bias


def _divided(map: Unrounded, x: Any, numerators: Any, bias: Any) -> Any:
    """N(x − shift)/√s + bias."""
    from flint import arb, arb_mat

    one = arb_mat(x.nrows(), 1, [1] * x.nrows())
    products = (x - one * arb_matrix(map.shift.unsqueeze(0))) * numerators
    roots = [(arb(first) + arb(more)).sqrt() for first, more in map.squares.T.tolist()]
    rows = [[each / root for each, root in zip(row, roots, strict=True)] for row in products.tolist()]
    return arb_mat(rows) + one * bias


def _attention(layer: Attention, matrices: tuple[Any, ...], x: Any) -> Any:
    from flint import arb, arb_mat

    root = arb(layer.scale).sqrt()
    count, rows = x.nrows(), [list[Any]() for _ in range(x.nrows())]
    for head in range(layer.heads):
        q, k, v = (_affine(x, *pair) for pair in matrices[3 * head : 3 * head + 3])
        scores, values = (q * k.transpose()).tolist(), v.tolist()
        for i in range(count):
            seen = range(i + 1 if layer.causal else count)
            weights = [((scores[i][j] - scores[i][i]) / root).exp() for j in seen]
            total = sum(weights)
            for column in range(v.ncols()):
                rows[i].append(sum(w * values[j][column] for w, j in zip(weights, seen, strict=True)) / total)
    return arb_mat(rows)


def away_from_exact(layers: Sequence[Layer], x: Tensor, own: Tensor, bits: int = 256, times: int = 1) -> float:
    """Above how far any row of `own` (rows, positions, out) is from the exact output, with as many bits as it takes."""
    network, worst = ArbNetwork(layers), 0.0
    for row, answer in zip(x, own, strict=True):
        [off] = network.away(row, [answer], bits, times)
        worst = max(worst, off if math.isfinite(off) else network.away(row, [answer], 2 * bits, times)[0])
    return worst
