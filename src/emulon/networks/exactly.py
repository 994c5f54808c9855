"""The exact network on one row of its input, in Arb balls of any precision: where twice float64's is not enough.

Through many layers a ball's radius grows by a factor each, as if nothing cancelled: six blocks of a transformer make
more than one of 10⁻²². More bits cost little, and start from as small a radius as is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from emulon.evaluation import arb_operations, ball_arithmetic
from emulon.expression import parse
from emulon.networks.layers import Attention, Constant, Elementwise, Layer, Linear


class ArbNetwork:
    """Layers with their weights as Arb matrices."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.matrices = [_matrices(layer) for layer in layers]

    def away(self, x: Tensor, own: Tensor, bits: int, times: int = 1) -> float:
        """Above |output − own|, for one row (positions, features) of the input; infinite where nothing is known.

        The network is applied so many times, to its own output.
        """
        with ball_arithmetic(bits):
            state = _matrix(x)
            for _ in range(times):
                registers = [state]
                for layer, matrices in zip(self.layers, self.matrices, strict=True):
                    registers.append(_applied(layer, matrices, _beside(layer, registers), len(x)))
                state = registers[-1]
            exact, given = state.entries(), _matrix(own).entries()
            return max(float(abs(a - b).upper()) for a, b in zip(exact, given, strict=True))


def _matrix(numbers: Tensor) -> Any:
    from flint import arb_mat

    return arb_mat(numbers.tolist())


def _matrices(layer: Layer) -> tuple[Any, ...]:
    if isinstance(layer, Linear):
        return _matrix(layer.weight.T), _matrix(layer.bias.unsqueeze(0))
    if isinstance(layer, Attention):
        return tuple(
            (_matrix(w[head].T), _matrix(b[head].unsqueeze(0))) for head in range(layer.heads) for w, b in layer.parts()
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
    if isinstance(layer, Linear):
        return _affine(x, *matrices)
    if isinstance(layer, Constant):
        return _matrix(layer.values[:positions])
    if isinstance(layer, Attention):
        return _attention(layer, matrices, x)
    assert isinstance(layer, Elementwise)
    return _elementwise(layer, x)


def _affine(x: Any, weight: Any, bias: Any) -> Any:
    from flint import arb_mat

    return x * weight + arb_mat(x.nrows(), 1, [1] * x.nrows()) * bias


def _elementwise(layer: Elementwise, x: Any) -> Any:
    from flint import arb, arb_mat

    f, operations = parse(layer.f), arb_operations()
    values = []
    for t in x.entries():
        try:
            values.append(arb(f.over(operations, f.switched(operations, t, _sign))))
        except (ValueError, ZeroDivisionError):  # a ball around a pole
            values.append(arb.nan())
    return arb_mat(x.nrows(), x.ncols(), values)


def _sign(value: Any, tie: float) -> Any:
    from flint import arb

    if value > 0 or value < 0:
        return arb(1 if value > 0 else -1)
    return arb(tie) if value == 0 else arb(0, 1)


def _attention(layer: Attention, matrices: tuple[Any, ...], x: Any) -> Any:
    from flint import arb_mat

    count, rows = x.nrows(), [list[Any]() for _ in range(x.nrows())]
    for head in range(layer.heads):
        q, k, v = (_affine(x, *pair) for pair in matrices[3 * head : 3 * head + 3])
        scores, values = (q * k.transpose()).tolist(), v.tolist()
        for i in range(count):
            seen = range(i + 1 if layer.causal else count)
            weights = [(scores[i][j] - scores[i][i]).exp() for j in seen]
            total = sum(weights)
            for column in range(v.ncols()):
                rows[i].append(sum(w * values[j][column] for w, j in zip(weights, seen, strict=True)) / total)
    return arb_mat(rows)


def away_from_exact(layers: Sequence[Layer], x: Tensor, own: Tensor) -> float:
    """Above how far any row of `own` (rows, positions, out) is from the exact output, with as many bits as it takes."""
    network, worst = ArbNetwork(layers), 0.0
    bits = 256
    for row, answer in zip(x, own, strict=True):
        off = network.away(row, answer, bits)
        seen = network.away(row, answer, 2 * bits) if not torch.isfinite(torch.tensor(off)) else off
        worst = max(worst, seen)
    return worst
