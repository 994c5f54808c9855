"""The exact answers, in Arb: the algorithms once more, by hand, over balls of as many digits as it takes.

Nothing here calls emulon's own algorithms, losses or expressions: what is judged does not judge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from emulon.certify import Certificate
from emulon.expressions.evaluation import ball_arithmetic
from emulon.fuzz.kind import Undecided, Violation

Row = list[Any]
PRECISIONS = (256, 1024, 4096)


def judged(what: str, ours: Tensor, bound: float, exact: Callable[[], Sequence[Any]]) -> None:
    """Raises `Violation` where some |ours − exact| is above the bound for certain."""
    from flint import arb

    seen = ours.detach().double().flatten().tolist()
    for precision in PRECISIONS:
        with ball_arithmetic(precision):
            try:
                truth = list(exact())
            except Undecided:
                continue
            if len(truth) != len(seen):
                raise Violation(f"{what}: {len(seen)} numbers, {len(truth)} are asked for")
            open_ = False
            for value, true in zip(seen, truth, strict=True):
                if not true.is_finite():
                    open_ = True
                    continue
                error = abs(arb(value) - true)
                if not arb(value).is_finite() or error > arb(bound):
                    raise Violation(f"{what}: {value!r} is {float(error):.3e} off, promised {bound:.3e}")
                open_ = open_ or not error <= arb(bound)
            if not open_:
                return
    raise Undecided(f"{what}: not with {PRECISIONS[-1]} bits")


def promised(what: str, ours: Tensor, certificate: Certificate, exact: Callable[[], Sequence[Any]]) -> None:
    """`judged`, by a certificate that says that it is proved."""
    if not certificate.bound >= 0:
        raise Violation(f"{what}: the bound is {certificate.bound}")
    if certificate.proved:
        judged(what, ours, certificate.bound, exact)


def balls(numbers: Sequence[float]) -> Row:
    from flint import arb

    return [arb(number) for number in numbers]


def dot(a: Sequence[Any], b: Sequence[Any]) -> Any:
    from flint import arb

    return sum((x * y for x, y in zip(a, b, strict=True)), arb(0))


def soft_threshold(value: Any, threshold: Any) -> Any:
    """sign(v)·max(|v| − θ, 0) = max(v − θ, 0) + min(v + θ, 0), which is continuous: no sign has to be known."""
    from flint import arb

    if threshold == 0:
        return value
    return (value - threshold).max(arb(0)) + (value + threshold).min(arb(0))


def descended(
    x: Sequence[Row],
    y: Row,
    slope: Callable[[Any], Any],
    numbers: Mapping[str, float],
    steps: int,
    *,
    fixed: Row | None = None,
    start: Row | None = None,
) -> Row:
    """The weights after steps w ← prox((1 − η·l2)w − η·(mean of slope(w·x − y)·x − fixed) + momentum·Δ, η·l1)."""
    from flint import arb

    eta, l2, l1, momentum = (arb(numbers.get(name, 0.0)) for name in ("step_size", "l2", "l1", "momentum"))
    size, width = int(numbers.get("batch", 0)) or len(x), len(x[0])
    whole, targets = x, y
    w = before = [arb(0)] * width if start is None else start
    for number in range(steps):
        # Batches in order and round again; the first samples fill up the last.
        first = number % -(-len(whole) // size) * size
        x, y = ([part[(first + k) % len(part)] for k in range(size)] for part in (whole, targets))
        last = w
        if numbers.get("accelerated"):
            w = [a + (a - b) * number / (number + 3) for a, b in zip(w, before, strict=True)]
        slopes = [slope(dot(row, w) - target) for row, target in zip(x, y, strict=True)]
        gradient = [dot(slopes, [row[k] for row in x]) / size for k in range(width)]
        if fixed is not None:
            gradient = [g - f for g, f in zip(gradient, fixed, strict=True)]
        moved = [(1 - eta * l2) * a - eta * g + momentum * (a - b) for a, g, b in zip(w, gradient, before, strict=True)]
        w, before = [soft_threshold(one, eta * l1) for one in moved], last
    return w


def newton(x: Sequence[Row], y: Row, query: Row, scale: float, loops: int) -> Any:
    """query·M Xᵀy with M_0 = scale·S, M ← 2M − MSM, S = XᵀX."""
    width = range(len(query))
    columns = [[row[k] for row in x] for k in width]
    gram = [[dot(columns[i], columns[j]) for j in width] for i in width]
    return dot(query, applied(schulz(gram, scale, loops), [dot(column, y) for column in columns]))


def schulz(gram: list[Row], scale: float, loops: int) -> list[Row]:
    from flint import arb

    width = range(len(gram))
    inverse = [[arb(scale) * entry for entry in row] for row in gram]
    for _ in range(loops):
        product = multiplied(inverse, multiplied(gram, inverse))
        inverse = [[2 * inverse[i][j] - product[i][j] for j in width] for i in width]
    return inverse


def multiplied(a: list[Row], b: list[Row]) -> list[Row]:
    return [[dot(row, [other[j] for other in b]) for j in range(len(b[0]))] for row in a]


def applied(matrix: list[Row], vector: Row) -> Row:
    return [dot(row, vector) for row in matrix]


def attended(parts: Sequence[list[Row]], beta: float) -> Row:
    """softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, row by row, of x, W_K, W_Q and W_V."""
    from flint import arb

    x, w_k, w_q, w_v = parts
    keys, queries, values = ([applied(w, row) for row in x] for w in (w_k, w_q, w_v))
    out = []
    for query in queries:
        weights = [(arb(beta) * dot(query, key)).exp() for key in keys]
        total = sum(weights, arb(0))
        out += [dot(weights, [value[k] for value in values]) / total for k in range(len(w_v))]
    return out
