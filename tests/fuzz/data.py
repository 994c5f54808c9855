"""Strategies for data at the edges: single samples, duplicates, zeros, subnormal, collinear, huge and tiny numbers.

A case is a dict of plain values, so that a failing one can be pasted into an `@example`.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fuzz.oracle import BINARY, SMOOTH

DTYPES = ("float64",) * 20 + ("float32",) * 14 + ("float16", "bfloat16")
SCALES = (1e-3, 1e3, 1e-8, 1e8, 1e-20, 1e20, 1e-150, 1e150, 1e-310, 1e300)
dtypes = st.sampled_from(DTYPES)


def scales(ordinary: int) -> st.SearchStrategy[float]:
    """1, `ordinary` times for each of ten others."""
    return st.sampled_from((1.0,) * ordinary + SCALES)


def numbers(count: int, scale: float = 1.0) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-3, 3), min_size=count, max_size=count).map(lambda row: [one * scale for one in row])


def sizes(samples: int = 6, features: int = 3) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(1, samples), st.integers(1, features))


KINDS_OF_TABLE = ("plain",) * 10 + ("rounded", "repeated", "zeros", "zero row", "zero column", "collinear", "signs")


@st.composite
def tables(draw: Any, samples: int, features: int) -> list[list[float]]:
    """Rows of features."""
    scale = draw(scales(57))
    rows = draw(st.lists(numbers(features, scale), min_size=samples, max_size=samples))
    match draw(st.sampled_from((*KINDS_OF_TABLE, "subnormal", "scales"))):
        case "rounded":
            return [[float(round(3 * value / scale)) for value in row] for row in rows]
        case "repeated":
            return [rows[i // 2] for i in range(samples)]
        case "zeros":
            return [[0.0] * features for _ in rows]
        case "zero row":
            return [[0.0] * features, *rows[1:]]
        case "zero column":
            return [[0.0, *row[1:]] for row in rows]
        case "collinear":
            return [[row[0] * (k + 1) for k in range(features)] for row in rows]
        case "signs":
            return [[scale if value > 0 else -scale for value in row] for row in rows]
        case "subnormal":
            tiny = st.sampled_from((5e-324, -5e-324, 1e-310, 0.0))
            return [[draw(tiny) if i % 2 else value for i, value in enumerate(row)] for row in rows]
        case "scales":
            return [[value * draw(st.sampled_from(SCALES[:4])) for value in row] for row in rows]
    return rows


@st.composite
def targets(draw: Any, x: list[list[float]], link: str) -> list[float]:
    """Labels for a margin, counts for a rate, else a noisy or exact fit, zeros, or unrelated numbers."""
    count = len(x)
    if link == "margin" and draw(st.integers(0, 30)):
        return draw(st.lists(st.sampled_from((-1.0, 1.0)), min_size=count, max_size=count))
    if link == "rate" and draw(st.integers(0, 30)):
        return draw(st.lists(st.sampled_from((0.0, 1.0, 2.0, 5.0)), min_size=count, max_size=count))
    w = draw(numbers(len(x[0])))
    noise = draw(numbers(count, draw(st.sampled_from((0.0, 0.3, 0.3)))))
    match draw(st.sampled_from(("fit",) * 7 + ("zeros", "unrelated", "unrelated"))):
        case "zeros":
            return [0.0] * count
        case "unrelated":
            return draw(numbers(count, draw(scales(7))))
    return [sum(a * b for a, b in zip(row, w, strict=True)) + e for row, e in zip(x, noise, strict=True)]


digits = st.one_of(
    st.sampled_from(("0", "1", "-1", "2", "5", "10", "100", "1e-12", "3.5e9")), st.floats(-3, 3).map("{:.3f}".format)
)


def trees(leaves: int = 4) -> st.SearchStrategy[Any]:
    """Functions of t, as the oracle's trees."""
    number = digits.map(lambda one: ["number", one])

    def grown(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        smooth = st.sampled_from(SMOOTH[:6] * 4 + SMOOTH + ("Abs", "sign", "Heaviside"))
        binary = st.sampled_from(("+", "+", "*", "*", *BINARY))
        return st.one_of(
            st.tuples(smooth, inner).map(list),
            st.tuples(binary, inner, inner).map(list),
            st.tuples(st.just("power"), inner, st.sampled_from((2, 3, 4, -1, -2, 0, 7))).map(list),
            st.tuples(st.just("piecewise"), inner, number, inner).map(list),
        )

    return st.recursive(st.one_of(st.just(["t"]), st.just(["t"]), number), grown, max_leaves=leaves)


def dtype_named(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def tensors(case: dict[str, Any], *names: str) -> list[Tensor]:
    return [torch.tensor(case[name], dtype=torch.float64).to(dtype_named(case["dtype"])) for name in names]


def stored(case: dict[str, Any], *names: str) -> list[Any]:
    """The numbers that a certificate is about: those handed over, as the dtype holds them; as lists."""
    return [each.double().tolist() for each in tensors(case, *names)]
