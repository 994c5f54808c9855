"""Cases of scalar functions by one softmax, and of the heads and maps that are built of them."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from emulon.certify import Domain
from emulon.certify.certificate import Band
from emulon.constructions import (
    HopfieldResidualMap,
    ResidualMap,
)
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.softmax import approximate
from fuzz import oracle
from fuzz.data import (
    dtype_named,
    dtypes,
    numbers,
    scales,
    sizes,
    stored,
    tables,
    targets,
    tensors,
    trees,
)
from fuzz.oracle import Case, Undecided, Violation, require_certified

NONSENSE = (0.0, -1.0, math.nan, math.inf, 1e-300)
accuracies = st.one_of(
    *[st.tuples(st.sampled_from((1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10)), st.none())] * 20,
    *[st.tuples(st.none(), st.sampled_from((1, 2, 3, 5, 9, 17, 33)))] * 9,
    st.tuples(st.sampled_from(NONSENSE), st.none()),
)
grids = st.sampled_from(("auto", "auto", "auto", "spectral", "piecewise", "paper"))
slacks = st.sampled_from((1.0, 1.0, 1.5, 0.9))


def accuracy(case: Case) -> dict[str, Any]:
    tolerance, points = case["accuracy"]
    return {"tolerance": tolerance, "points": points, "dtype": dtype_named(case["dtype"])}


def outside(points: Tensor, bands: tuple[Band, ...]) -> Tensor:
    """Those in no band; compared as float64, for a tensor would round the ends of a band to its own dtype."""
    kept, exact = torch.ones_like(points, dtype=torch.bool), points.double()
    for band in bands:
        kept &= (exact <= band.lo) | (exact >= band.hi)
    return points[kept]


def require_outside(value: Any, bands: tuple[Band, ...]) -> None:
    """Raises `Undecided` where a ball may touch a band, in which no certificate holds."""
    if any(not (value < band.lo or value > band.hi) for band in bands):
        raise Undecided("in a band")


@st.composite
def intervals(draw: Any) -> list[float]:
    if not draw(st.integers(0, 30)):
        return draw(st.sampled_from(([1.0, 1.0], [1.0, -1.0], [math.nan, 1.0], [-math.inf, 0.0], [0.0, 5e-324])))
    centre = draw(st.sampled_from((0.0, 0.0, 1.0, 10.0))) * draw(st.floats(-1, 1))
    half = draw(st.floats(0, 4)) * draw(scales(90))
    return [centre - half, centre + half]


def approximations() -> st.SearchStrategy[Case]:
    ends = intervals()
    at = st.lists(st.floats(0, 1), min_size=6, max_size=6)
    fields = {"tree": trees(5), "ends": ends, "accuracy": accuracies, "grid": grids, "dtype": dtypes}
    return st.fixed_dictionaries({**fields, "at": at})


def check_approximation(case: Case) -> None:
    """The softmax against the expression: at both ends, at kinks and beside them, and anywhere."""
    tree, (lo, hi) = case["tree"], case["ends"]
    options = accuracy(case)
    made = approximate(oracle.text(tree), (lo, hi), grid=case["grid"], **options)
    points = torch.tensor([lo, hi, *(lo + u * (hi - lo) for u in case["at"])], dtype=torch.float64)
    kinks = [one.at for one in made.function.breaks(lo, hi)]
    near = [math.nextafter(at, side) for at in kinks for side in (-math.inf, math.inf)] + kinks
    points = torch.cat([points, torch.tensor(near, dtype=torch.float64)]).to(options["dtype"])
    points = outside(points[(points.double() >= lo) & (points.double() <= hi)], made.certificate.bands)
    if made.certificate.proved:
        _require_defined(tree, points)

    def exact() -> list[Any]:
        return [oracle.value_of(tree, one) for one in oracle.balls(points.double().tolist())]

    require_certified(oracle.text(tree), made(points), made.certificate, exact)


def _require_defined(tree: Any, points: Tensor) -> None:
    """Raises `Violation` for a proof about a function where it has no value."""
    with ball_arithmetic(oracle.PRECISIONS[0]):
        for point in points.double().tolist():
            try:
                value = oracle.value_of(tree, oracle.balls([point])[0])
            except Undecided:
                continue
            if value.is_nan() or (not value.is_finite() and point == 0):
                raise Violation(f"{oracle.text(tree)} is not defined at {point!r}, and proved there")


WORDS = (
    *("t", "x", "1e9", "9**9", "exp(t)", "Max(t, 0)", "Piecewise((t, t < 0))", "sqrt(t)", "1/0", "E", "pi", "True"),
    *("nan", "oo", "zoo", "I", "t**1000", "1e400", "é", "0x10", "log", "(", ")", "t.real", "1" * 60, "Abs(t)", ","),
    *("t < 0", "10**10*t", "+", "-", "*", "/", "**", " ", "+", "*", "**"),
)


@st.composite
def texts(draw: Any) -> Case:
    """Words that may or may not be an expression, or an expression with something in its middle."""
    if draw(st.booleans()):
        return {"text": "".join(draw(st.lists(st.sampled_from(WORDS), max_size=8)))}
    whole, word = oracle.text(draw(trees())), draw(st.sampled_from(("", *WORDS)))
    cut = draw(st.integers(0, len(whole)))
    return {"text": whole[:cut] + word + whole[cut + draw(st.integers(0, 2)) :]}


def check_text(case: Case) -> None:
    """Parsed and evaluated, or refused at once."""
    function = parse(case["text"])
    function(torch.linspace(-1, 1, 5, dtype=torch.float64))
    function.breaks(-1.0, 1.0)


def domain_of(case: Case, x: Tensor, y: Tensor, w: Tensor) -> Domain:
    """The tightest around what is given, times `slack`."""
    real = (part.real if part.is_complex() else part for part in (x, y, w))
    bounds = [part.detach().double().abs().max().item() * case["slack"] for part in real]
    return Domain(len(case["x"]), len(case["x"][0]), *bounds)


@st.composite
def residual_maps(draw: Any) -> Case:
    samples, features = draw(sizes())
    x = draw(tables(samples, features))
    common = st.sampled_from((["t"], ["tanh", ["t"]], ["Max", ["t"], ["number", "0"]]))
    return {
        "x": x,
        "y": draw(targets(x, "residual")),
        "w": draw(numbers(features, draw(scales(190)))),
        "slack": draw(slacks),
        "tree": draw(st.one_of(common, common, common, trees(3))),
        "hopfield": draw(st.sampled_from((False, False, True))),
        "grid": draw(grids),
        "accuracy": draw(accuracies),
        "dtype": draw(dtypes),
    }


def check_residual_map(case: Case) -> None:
    """f(w·x_i − y_i)·x_i by one head, or by a Hopfield layer."""
    tree, parts = case["tree"], tensors(case, "x", "y", "w")
    options = accuracy(case) | ({} if case["hopfield"] else {"grid": case["grid"]})
    kind = HopfieldResidualMap if case["hopfield"] else ResidualMap
    made = kind(oracle.text(tree), domain_of(case, *parts), **options)
    out = made(*parts)
    rows, ys, ws = stored(case, "x", "y", "w")

    def exact() -> list[Any]:
        weights, out = oracle.balls(ws), []
        for row, target in zip(map(oracle.balls, rows), oracle.balls(ys), strict=True):
            at = oracle.dot(row, weights) - target
            require_outside(at, made.certificate.bands)
            out += [oracle.value_of(tree, at) * one for one in row]
        return out

    require_certified(oracle.text(tree), out, made.certificate, exact)
