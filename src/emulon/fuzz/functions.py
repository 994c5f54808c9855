"""Scalar functions by one softmax, and the heads and maps that are built of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import mul
from random import Random
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.certify.certificate import Band
from emulon.constructions import (
    HeadInEmbedding,
    HeadInTokens,
    HopfieldResidualMap,
    LinearLayer,
    ResidualMap,
    ScalarHeads,
    TruncatedLinear,
)
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.fuzz import grammar, judge
from emulon.fuzz.draws import (
    a_dtype,
    a_guise,
    a_scale,
    dtype_named,
    first_of_batch,
    numbers,
    require_meant,
    sizes,
    stored,
    table,
    targets,
    tensor,
)
from emulon.fuzz.kind import Kind, Undecided, Values, Violation
from emulon.softmax import approximate

TOLERANCES = (1e-2, 1e-3, 1e-4, 1e-6, 1e-8, 1e-10)
GRIDS = ("auto", "auto", "auto", "spectral", "piecewise", "paper")


def accuracy(random: Random) -> dict[str, Any]:
    """A tolerance or a number of points, sometimes both or nonsense."""
    if random.random() < 0.03:
        return {"tolerance": random.choice((0.0, -1.0, math.nan, math.inf, 1e-300)), "points": None}
    if random.random() < 0.7:
        return {"tolerance": random.choice(TOLERANCES), "points": None}
    return {"tolerance": None, "points": random.choice((1, 2, 3, 5, 9, 17, 33))}


def outside(points: Tensor, bands: tuple[Band, ...]) -> Tensor:
    """Those that no band holds; compared as float64, for a tensor would round the ends of a band to its own dtype."""
    kept, exact = torch.ones_like(points, dtype=torch.bool), points.double()
    for band in bands:
        kept &= (exact <= band.lo) | (exact >= band.hi)
    return points[kept]


class Approximating(Kind, name="approximation"):
    """Any expression on any interval: the softmax against the expression."""

    weight = 3.0

    def draw(self, random: Random) -> dict[str, Any]:
        centre, half = random.gauss(0, 1) * random.choice((0, 1, 10)), abs(random.gauss(0, 2)) * a_scale(random, 0.9)
        ends = [centre - half, centre + half] if random.random() < 0.5 else [-round(half, 1), round(half, 1)]
        if random.random() < 0.03:
            ends = random.choice(([1.0, 1.0], [1.0, -1.0], [math.nan, 1.0], [-math.inf, 0.0], [0.0, 5e-324]))
        return {
            "tree": grammar.drawn(random, random.choice((1, 2, 2, 3))),
            "ends": ends,
            **accuracy(random),
            "grid": random.choice(GRIDS),
            "dtype": a_dtype(random),
            "at": [round(random.random(), 6) for _ in range(12)],
        }

    def check(self, values: Values) -> None:
        tree, (lo, hi), dtype = values["tree"], values["ends"], dtype_named(values["dtype"])
        options = {name: values[name] for name in ("tolerance", "points", "grid")}
        made = approximate(grammar.text(tree), (lo, hi), dtype=dtype, **options)
        points = torch.tensor([lo, hi, *(lo + u * (hi - lo) for u in values["at"])], dtype=torch.float64)
        kinks = [one.at for one in made.function.breaks(lo, hi)]
        near = [math.nextafter(at, side) for at in kinks for side in (-math.inf, math.inf)] + kinks
        points = torch.cat([points, torch.tensor(near, dtype=torch.float64)]).to(dtype)
        points = outside(points[(points.double() >= lo) & (points.double() <= hi)], made.certificate.bands)
        if made.certificate.proved:
            _require_defined(tree, points)
        judge.promised(
            grammar.text(tree),
            made(points),
            made.certificate,
            lambda: [grammar.exact(tree, one) for one in judge.balls(points.double().tolist())],
        )


def _require_defined(tree: grammar.Tree, points: Tensor) -> None:
    """A proof about a function where it has no value is none."""
    with ball_arithmetic(judge.PRECISIONS[0]):
        for point in points.double().tolist():
            try:
                value = grammar.exact(tree, judge.balls([point])[0])
            except Undecided:
                continue
            if value.is_nan() or (not value.is_finite() and point == 0):
                raise Violation(f"{grammar.text(tree)} is not defined at {point!r}, and proved there")


WORDS = (
    *("t", "x", "1e9", "9**9", "exp(t)", "Max(t, 0)", "Piecewise((t, t < 0))", "sqrt(t)", "1/0", "E", "pi", "True"),
    *("nan", "oo", "zoo", "I", "t**1000", "1e400", "é", "0x10", "log", "(", ")", "t.real", "1" * 60, "Abs(t)", ","),
    *("t < 0", "10**10*t"),
)
OPERATORS = ("+", "-", "*", "/", "**", "**", " ")


class Reading(Kind, name="text"):
    """Words that may or may not be an expression: read, or refused at once."""

    weight = 0.5

    def draw(self, random: Random) -> dict[str, Any]:
        if random.random() < 0.4:
            whole = grammar.text(grammar.drawn(random, 3))
            cut = random.randrange(len(whole) + 1)
            return {"text": whole[:cut] + random.choice(["", *WORDS]) + whole[cut + random.randint(0, 2) :]}
        operands = [random.choice(WORDS) for _ in range(random.randint(0, 4))]
        return {"text": "".join(word + random.choice(("", *OPERATORS)) for word in operands)}

    def check(self, values: Values) -> None:
        function = parse(values["text"])
        function(torch.linspace(-1, 1, 5, dtype=torch.float64))
        function.breaks(-1.0, 1.0)


def residual_case(random: Random) -> dict[str, Any]:
    """A table, targets, weights, and a domain with or without room."""
    samples, features = sizes(random)
    x = table(random, samples, features)
    return {
        "x": x,
        "y": targets(random, x, "residual"),
        "w": numbers(random, features, a_scale(random, 0.95)),
        "room": random.choice((1.0, 1.0, 1.5, 0.9)),
        "dtype": a_dtype(random),
        "guise": a_guise(random),
    }


def domain_of(values: Values, x: Tensor, y: Tensor, w: Tensor) -> Domain:
    """The tightest around what is given, times `room`."""
    samples, features = len(values["x"]), len(values["x"][0])
    bounds = [part.detach().double().abs().max().item() * values["room"] for part in map(_real, (x, y, w))]
    return Domain(samples, features, *bounds)


def _real(part: Tensor) -> Tensor:
    return part.real if part.is_complex() else part


class ResidualMapping(Kind, name="residual map"):
    """f(w·x_i − y_i)·x_i by one head, or by a Hopfield layer."""

    weight = 2.0

    def draw(self, random: Random) -> dict[str, Any]:
        tree = random.choice((["t"], ["tanh", ["t"]], ["Max", ["t"], ["number", "0"]], grammar.drawn(random, 2)))
        more = {"tree": tree, "hopfield": random.random() < 0.3, "grid": random.choice(GRIDS)}
        return {**residual_case(random), **accuracy(random), **more}

    def check(self, values: Values) -> None:
        tree, dtype, guise = values["tree"], values["dtype"], values["guise"]
        x, y, w = (tensor(values[name], dtype, guise) for name in ("x", "y", "w"))
        kind = HopfieldResidualMap if values["hopfield"] else ResidualMap
        options = {name: values[name] for name in ("tolerance", "points", "grid")}
        if values["hopfield"]:
            options.pop("grid")
        made = kind(grammar.text(tree), domain_of(values, x, y, w), dtype=dtype_named(dtype), **options)
        out = first_of_batch(made(x, y, w), guise)
        require_meant(guise, x)
        rows, ys, ws = (stored(values[name], dtype, guise) for name in ("x", "y", "w"))
        bands = made.certificate.bands

        def exact() -> list[Any]:
            weights, out = judge.balls(ws), []
            for row, target in zip(map(judge.balls, rows), judge.balls(ys), strict=True):
                at = judge.dot(row, weights) - target
                if any(not (at < band.lo or at > band.hi) for band in bands):
                    raise Undecided("in a band")
                out += [grammar.exact(tree, at) * one for one in row]
            return out

        judge.promised(grammar.text(tree), out, made.certificate, exact)


class LinearMapping(Kind, name="linear layer"):
    """x Θᵀ and f(x Θᵀ), and the truncated linear map."""

    def draw(self, random: Random) -> dict[str, Any]:
        samples, features = sizes(random)
        which = random.choice(("linear", "scalar", "truncated", "truncated paper"))
        width = 1 if which.startswith("truncated") else random.randint(1, 3)
        tree = random.choice((["tanh", ["t"]], ["sin", ["t"]], ["Abs", ["t"]], ["power", ["t"], 2]))
        return {
            "which": which,
            "tree": tree,
            "x": table(random, samples, features),
            "theta": [numbers(random, features, a_scale(random, 0.95)) for _ in range(width)],
            "room": random.choice((1.0, 1.0, 1.5, 0.9)),
            "cut": [round(random.uniform(-1, 0), 2), round(random.uniform(0, 1), 2)],
            "heads": random.choice((1, 3, 8)),
            **accuracy(random),
            "dtype": a_dtype(random),
            "guise": a_guise(random),
        }

    def check(self, values: Values) -> None:
        dtype, guise, which = values["dtype"], values["guise"], values["which"]
        x, theta = tensor(values["x"], dtype, guise), tensor(values["theta"], dtype, guise)
        rows, weights = (stored(values[name], dtype, guise) for name in ("x", "theta"))
        bound = max(abs(sum(map(mul, row, one))) for row in rows for one in weights) * values["room"]
        made, f = self._made(values, (len(rows), len(rows[0]), len(weights)), bound)
        if which.startswith("truncated") and guise != "column":
            theta = theta[..., 0, :]
        out = first_of_batch(made(x, theta), guise)
        require_meant(guise, x)

        def exact() -> list[Any]:
            ws = [judge.balls(one) for one in weights]
            return [f(judge.dot(judge.balls(row), one)) for row in rows for one in ws]

        judge.promised(which, out, made.certificate, exact)

    def _made(self, values: Values, sizes: tuple[int, int, int], bound: float) -> tuple[Any, Callable[[Any], Any]]:
        """The construction, and the scalar function that it applies to θ·x."""
        dtype = dtype_named(values["dtype"])
        options = {"tolerance": values["tolerance"], "points": values["points"], "dtype": dtype}
        lo, hi = (cut * bound for cut in values["cut"])

        def same(t: Any) -> Any:
            return t

        def clipped(t: Any) -> Any:
            least, most = judge.balls([lo, hi])
            return t.max(least).min(most)

        def own(t: Any) -> Any:
            return grammar.exact(values["tree"], t)

        match values["which"]:
            case "linear":
                return LinearLayer(*sizes, bound, **options), same
            case "scalar":
                return ScalarHeads(grammar.text(values["tree"]), *sizes, bound, **options), own
            case "truncated":
                return TruncatedLinear(*sizes[:2], lo, hi, reach=bound, **options), clipped
        return TruncatedLinear(*sizes[:2], -bound, bound, heads=values["heads"], grid="paper", dtype=dtype), same


class HeadEmulating(Kind, name="head"):
    """A softmax head whose matrices are tokens, or part of the embedding."""

    def draw(self, random: Random) -> dict[str, Any]:
        samples, features = sizes(random)
        width = random.randint(1, 2)
        size = random.choice((1.0, 0.3, 3.0))
        matrices = {name: [numbers(random, features, size) for _ in range(width)] for name in ("w_k", "w_q", "w_v")}
        return {
            "embedding": random.random() < 0.5,
            "x": table(random, samples, features),
            **matrices,
            "room": random.choice((1.0, 1.5, 0.9)),
            "beta": random.choice((1.0, 1.0, 0.25, 4.0)),
            **accuracy(random),
            "dtype": a_dtype(random),
            "guise": a_guise(random),
        }

    def check(self, values: Values) -> None:
        dtype, guise, names = values["dtype"], values["guise"], ("x", "w_k", "w_q", "w_v")
        parts = [tensor(values[name], dtype, guise) for name in names]
        plain = [stored(values[name], dtype, guise) for name in names]
        rows, matrix = plain[0], [one for w in plain[1:] for one in w]
        bound = max(abs(sum(map(mul, row, one))) for row in rows for one in matrix) * values["room"]
        kind = HeadInEmbedding if values["embedding"] else HeadInTokens
        options = {"tolerance": values["tolerance"], "points": values["points"], "dtype": dtype_named(dtype)}
        made = kind(len(rows), len(rows[0]), len(plain[1]), bound, beta=values["beta"], **options)
        out = first_of_batch(made(*parts), guise)
        require_meant(guise, *parts)

        def exact() -> list[Any]:
            return judge.attended([[judge.balls(row) for row in part] for part in plain], values["beta"])

        judge.promised("head", out, made.certificate, exact)
        judge.promised("head, audit", out, made.audit(*parts), exact)
