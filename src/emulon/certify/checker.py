"""Checks certificate files of emulon, and trusts none: python-flint and the standard library are all it imports.

    python checker.py CERTIFICATE [--interpreter FILE] [--program FILE]

Claim: with exit code 0, weights that the program computes on the interpreter are within `bound` (sup-norm) of exact
(proximal) gradient descent, for all data of the domain whose path stays in it and outside the bands.
Assumes: eigenvalues of XᵀX/n and step·L as the facts say, which a run checks; IEEE arithmetic, exp to two last places.
Proved here, in ball arithmetic: |F − f| of every softmax, how far codes keep samples apart, the curvature of the loss.
Recomputed: every number that follows from the claims, rounded up to 25 digits; any other number is refused.
Exit codes: 0 it holds, 1 it does not, 2 it cannot be read. A reason is one line and begins with the field.
"""

from __future__ import annotations

import ast
import decimal
import hashlib
import json
import math
import operator
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint import arb, arb_mat, arb_series, ctx, fmpq

FORMAT, ORDER, PRECISION, MOST_CELLS = "emulon certificate 1", 16, 192, 60_000
ZERO, HALF = arb(0), arb(0.5)
NEGLIGIBLE, MATTERS = 110, arb(46.0625)  # in log weight: below 1e-47, and below 1e-20
with ctx.workprec(512):
    SLACK, TINY, SPARE = (arb(fmpq(1, 10**k)) for k in (9, 20, 1))
PROVED = ("interpolation", "deviation", "size")
BAND, PHASE = (*PROVED, "keys", "score", "largest", "to", "error"), (*PROVED, "leak")
UNIT = {"F64": (arb(2) ** -53, arb(2) ** -1022, "d"), "F32": (arb(2) ** -24, arb(2) ** -126, "f")}
TERMS = ("interpolation", "routing leak", "emulated scores", "emulated values", "rounding")
Signs = tuple[int, ...]
SMOOTH = ("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "erf")


class Refused(Exception):
    """The certificate does not hold."""


def need(holds: bool, field: str, reason: str) -> None:
    if not holds:
        raise Refused(f"{field}: {reason}")


def ball(number: Any) -> Any:
    exact = Fraction(number)
    return arb(fmpq(exact.numerator, exact.denominator))


def above(value: Any) -> str:
    """The least decimal number of 25 digits that is not below the ball."""
    mantissa, exponent = value.upper().man_exp()
    exact = decimal.Context(prec=2000).multiply(int(mantissa), decimal.Decimal(2) ** int(exponent))
    return str(decimal.Context(prec=25, rounding=decimal.ROUND_CEILING).plus(exact))


def dot(left: list[Any], right: list[Any], start: Any = ZERO) -> Any:
    return sum((x * y for x, y in zip(left, right, strict=True)), start)


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def hashes(certificate: dict[str, Any]) -> dict[str, str]:
    """Of every entry: the facts, every tensor, the claims about each, every term, the bound."""
    sections = {name: part for name, part in certificate.items() if isinstance(part, dict) and name != "sha256"}
    parts = {f"{name}/{key}": each for name, part in sections.items() for key, each in part.items()}
    parts |= {name: certificate[name] for name in ("format", "bound")}
    return {path: hashlib.sha256(canonical(part).encode()).hexdigest() for path, part in parts.items()}


def section_of(path: str) -> dict[str, Any]:
    """What is in a safetensors file of emulon: its facts, and its tensors as exact numbers."""
    content = Path(path).read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:start])
    ours = json.loads(header.pop("__metadata__")["emulon"])
    section = {"kind": ours["kind"], "format": ours["format"], "facts": json.loads(ours["facts"])}
    for name, part in header.items():
        first, last = (start + offset for offset in part["data_offsets"])
        numbers = [x.hex() for (x,) in struct.iter_unpack(f"<{UNIT[part['dtype']][2]}", content[first:last])]
        section[name] = {"dtype": part["dtype"], "shape": part["shape"], "numbers": numbers}
    return section


def power(base: Any, exponent: Any) -> Any:
    if exponent[0].is_integer() and abs(exponent[0]) < 65:
        product = reduce(operator.mul, [base] * abs(int(exponent[0].fmpz())), arb_series([1]))
        return product if exponent[0] >= 0 else 1 / product
    return base.sqrt() if exponent[0] == arb(0.5) else (exponent * base.log()).exp()


OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: power,
}


class Expression:
    """Of t: numbers (decimals are exact), pi, E, + - * / **, smooth functions, and switches, which take a sign each.

    `given` are the first signs on the way through the switches, `path` those taken, `forks` other ways that began.
    """

    def __init__(self, text: str) -> None:
        need(len(text) < 2000 and text.isascii(), "program/facts/loss/derivative", "cannot be read")
        self.text, self.tree = text, ast.parse(text, mode="eval").body
        self.given: Signs = ()
        self.path: Signs = ()
        self.forks: list[Signs] = []
        self.functions: dict[str, Callable[..., Any]] = {
            **{name: lambda x, name=name: getattr(x, name)() for name in SMOOTH},
            "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
            "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
            "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
            "Abs": lambda x: self.sign(x) * x,
            "sign": lambda x: arb_series([self.sign(x, 0)]),
            "Heaviside": lambda x, tie=HALF: {-1: 0, 0: tie, 1: 1}[self.sign(x, 0)] + arb_series([0]),
            "Max": lambda *x: reduce(lambda a, b: a if self.sign(a - b) > 0 else b, x),
            "Min": lambda *x: reduce(lambda a, b: b if self.sign(a - b) > 0 else a, x),
            "Piecewise": lambda *x: next(value for value, holds in x if holds),
        }

    def value(self, node: Any, t: Any) -> Any:
        match node:
            case ast.Constant():
                return node.value is True or arb_series([ball(ast.get_source_segment(self.text, node))])
            case ast.Name():
                return {"t": t, "pi": arb_series([arb.pi()]), "E": arb_series([arb.const_e()])}[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand, t)
            case ast.BinOp():
                return OPERATIONS[type(node.op)](self.value(node.left, t), self.value(node.right, t))
            case ast.Compare():
                sign = self.sign(self.value(node.left, t) - self.value(node.comparators[0], t))
                return (sign > 0) == isinstance(node.ops[0], ast.Gt | ast.GtE)
            case ast.Tuple():
                return [self.value(each, t) for each in node.elts]
        return self.functions[node.func.id](*(self.value(each, t) for each in node.args))

    def sign(self, of: Any, *tie: int) -> int:
        possible = self.given[len(self.path) :][:1]
        possible = possible or ((1,) if of[0] > 0 else (-1,) if of[0] < 0 else (-1, 1, *tie))
        self.forks += [(*self.path, other) for other in possible[1:]]
        self.path = (*self.path, possible[0])
        return int(possible[0])

    def at(self, t: Any, given: Signs) -> Any:
        self.given, self.path, self.forks = given, (), []
        return self.value(self.tree, t) + arb_series([0])

    def branches(self, whole: Any) -> Iterator[tuple[Signs, Any]]:
        """(path, f) for every way that some t of the ball takes through the switches, and perhaps more."""
        pending: list[Signs] = [()]
        while pending:
            value, path = self.at(whole, pending.pop()), self.path
            pending += self.forks
            yield path, value


class Softmax:
    """F(s) = Σ_r softmax_r(a_r·s + b_r)·v_r, of exact numbers."""

    def __init__(self, section: dict[str, Any], prefix: str = "") -> None:
        parts = [section[f"{prefix}{name}"]["numbers"] for name in ("slopes", "intercepts", "values")]
        self.a, self.b, self.v = ([arb(float.fromhex(x)) for x in part] for part in parts)
        self.slope, self.bias, self.largest = (reduce(arb.max, map(abs, part)) for part in (self.a, self.b, self.v))

    def score(self, reach: Any, keys: Any) -> Any:
        """max |a·s| + |b| for |s| ≤ reach."""
        return reduce(arb.max, (abs(self.a[r]) * reach + abs(self.b[r]) for r in keys))

    def advantage(self, lo: Any, hi: Any) -> Any:
        """sup − inf on [lo, hi] of log Σ exp(score), which is convex: at an end, above a tangent near its lowest."""

        def normaliser(s: Any) -> tuple[Any, Any]:
            scores = [a * s + b for a, b in zip(self.a, self.b, strict=True)]
            mass = [(x - scores[0]).exp() for x in scores]
            return scores[0] + sum(mass).log(), dot(mass, self.a) / sum(mass)

        low, high = lo, hi
        for _ in range(PRECISION // 2):
            middle = ((low + high) / 2).mid()
            low, high = (low, middle) if normaliser(middle)[1] > 0 else (middle, high)
        value, slope = normaliser(low)
        return normaliser(lo)[0].max(normaliser(hi)[0]) - value + abs(slope) * (hi - lo)

    def cell(self, f: Expression, left: float, right: float) -> tuple[list[Any], list[int]]:
        """Bounds of |F − f|, Σ w|v − F| and |F| on [left, right], NaN where there are none, and the keys that matter.

        On s = c + ρτ scores are taken relative to the first key's at c and slopes to their mean: what all keys have in
        common cancels before the division, and with it what would make the enclosure explode. Then F − f has its Taylor
        polynomial in τ, and Lagrange's remainder on the ball |τ| ≤ 1. Keys left out change F by at most their weight.
        """
        c, unit = arb((left + right) / 2), arb(0, 1)
        radius = (arb(right) - c).max(c - arb(left)).upper()
        top = max(range(len(self.a)), key=lambda r: float(self.a[r] * c + self.b[r]))
        ahead = [(a - self.a[top]) * c + (b - self.b[top]) for a, b in zip(self.a, self.b, strict=True)]
        most = [x + abs(a - self.a[top]) * radius for x, a in zip(ahead, self.a, strict=True)]
        near = [r for r, x in enumerate(most) if not x < -NEGLIGIBLE]
        e, a, v = [ahead[r].exp() for r in near], [self.a[r] for r in near], [self.v[r] for r in near]
        mean, guess = ((dot(e, part) / sum(e)).mid() for part in (a, v))
        kappa, v = [(x - mean) * radius for x in a], [x - guess for x in v]
        if not all(x + abs(k) < 4 for x, k in zip((ahead[r] for r in near), kappa, strict=True)):
            return [arb.nan()] * 3, []
        at_c, on_ball = (
            [arb_series([ahead[r] + k * where, k]).exp() for r, k in zip(near, kappa, strict=True)]
            for where in (arb(0), unit)
        )
        center, whole = (dot(each, v, arb_series([0])) / sum(each, arb_series([0])) for each in (at_c, on_ball))
        left_out = (len(self.a) - len(near)) * arb(-NEGLIGIBLE).exp() * 2 * self.largest
        heaviest = [x[0] for x in on_ball]
        spread = dot(heaviest, [abs(x) for x in v]) / sum(heaviest)
        error = swing = arb(0)
        for path, ball_value in f.branches(arb_series([c + radius * unit, radius])):
            off = center - f.at(arb_series([c, radius]), path) + guess
            above = sum((abs(off[k]) for k in range(ORDER)), abs((whole - ball_value)[ORDER]) + left_out)
            away = abs(ball_value[0] - guess)
            if not (above.is_finite() and away.is_finite()):
                return [arb.nan()] * 3, []
            error, swing = error.max(above), swing.max(away)
        bounds = [error, spread + swing + error + left_out, abs(guess) + swing + error]
        return bounds, [r for r, x in enumerate(most) if not x < -MATTERS]


def halving(ends: tuple[float, float], bands: Any, missing: Callable[[float, float], list[str]], field: str) -> None:
    """Cells between the ends, outside the bands, are halved until nothing is missing in any."""
    stops = sorted({*ends, *(min(max(edge, ends[0]), ends[1]) for band in bands for edge in band)})
    queue = [cell for cell in pairwise(stops) if not any(lo <= cell[0] and cell[1] <= hi for lo, hi in bands)]
    for _ in range(MOST_CELLS):
        if not queue:
            return
        (left, right), missed = queue.pop(), ["interpolation"]
        with suppress(ZeroDivisionError, ValueError):  # a division by a ball around zero
            missed = missing(left, right)
        if missed:
            need(right - left > 2.0**-51 * (1 + abs(left)), f"{field}/{missed[0]}", f"not proved near t = {left:.6g}")
            queue += [(left, (left + right) / 2), ((left + right) / 2, right)]
    need(False, field, "not proved in so many cells")


def prove(softmax: Softmax, f: Expression, ends: Any, bands: Any, claim: dict[str, Any], field: str) -> set[int]:
    """|F − f|, deviation and size are as claimed; the keys that matter somewhere."""
    matter, claims = set[int](), [ball(claim[name]) for name in PROVED]

    def missing(left: float, right: float) -> list[str]:
        bounds, keys = softmax.cell(f, left, right)
        missed = [name for name, x, most in zip(PROVED, bounds, claims, strict=True) if not x <= most]
        matter.update([] if missed else keys)
        return missed

    halving(ends, bands, missing, field)
    return matter


def prove_curvature(f: Expression, reach: Any, least: Any, most: float) -> None:
    """−least ≤ f′ ≤ most for |t| ≤ reach, up to SLACK of it, jumps left out; f′ is in f′(c) + f″(cell)·(cell − c)."""

    def missing(left: float, right: float) -> list[str]:
        c = arb((left + right) / 2)
        off = arb(left).union(arb(right)) - c
        for path, whole in f.branches(arb_series([c + off, 1])):
            at_c = f.at(arb_series([c, 1]), path)[1]
            slope, room = at_c + 2 * whole[2] * off, SLACK * abs(at_c)
            if not (slope >= -least - room and (math.isinf(most) or slope <= arb(most) + room)):
                return ["curvature"]
        return []

    end = float(reach.upper()) * (1 + 2.0**-50)
    halving((-end, end), (), missing, "program/facts/loss")


def recomputed(certificate: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The line's errors, and the terms of the bound, as they follow from facts and claims."""
    program, claims, facts = certificate["program"], certificate["claims"], certificate["program"]["facts"]
    u, smallest, _ = UNIT[certificate["interpreter"]["values"]["dtype"]]
    line, errors = Softmax(certificate["interpreter"]), list[Any]()

    def gamma(roundings: int) -> Any:
        return roundings * u / (1 - roundings * u)

    def moved(delta: Any, largest: Any, deviation: Any) -> Any:
        """What an average changes by when every score moves by delta."""
        return ((delta / 2).tanh() * 2 * largest).min(delta.exp() * delta.expm1() * deviation)

    for band in claims["line"]:
        error, deviation, size, score, largest, to = (ball(band[name]) for name in (*PROVED, "score", "largest", "to"))
        delta = gamma(4) * score + (4 + (2 * score).min(arb(64))) * u
        error += moved(delta, largest, deviation) + 2 * gamma(band["keys"] + 2) * (size + deviation) + u * to
        errors.append(reduce(arb.max, errors, error + len(line.a) * TINY * line.largest))

    def off(magnitude: Any) -> Any:
        inside = (e for e, band in zip(errors, claims["line"], strict=True) if magnitude <= ball(band["to"]))
        return next(inside, arb.pos_inf())

    def product(key: Any, query: Any, count: int) -> Any:
        return count * (off(key) * (query + off(query)) + off(query) * key)

    def phase(name: str, step: Any, state: Any, fixed: Any) -> list[Any]:
        domain, part, F = facts[name]["domain"], facts[name], Softmax(program, f"{name}.")
        interpolation, deviation, size, leak = (ball(claims[name][each]) for each in PHASE)
        n, d, keys, code = domain["samples"], domain["features"], len(F.a), program[f"{name}.codes"]["shape"][1]
        x, y, w, strength = (arb(number) for number in (domain["x"], domain["y"], domain["w"], part["strength"]))
        sizes = ((domain["w"], float(F.slope) * domain["x"]), (1.0, float(F.slope) * domain["y"]), (1.0, float(F.bias)))
        by_x, by_y, by_1 = (arb(2.0 ** round(math.log2(q / k) / 2) if q > 0 and k > 0 else 1.0) for q, k in sizes)
        own = product(F.slope * x * by_x, w / by_x, d) + product(F.bias * by_1, 1 / by_1, 1)
        own += product(F.slope * y * by_y, 1 / by_y, 1) if domain["y"] else 0
        sum_of = F.slope * arb(domain["absolute"]) + F.bias + strength * ball("1.001")
        own += gamma(max(d + 2 + code, 2 * d) + 1) * sum_of
        row = strength.sqrt() * max(abs(float.fromhex(c)) for c in program[f"{name}.codes"]["numbers"])
        reach = arb(max(-part["grid"]["lo"], part["grid"]["hi"]))

        def rounding(scores: Any) -> Any:
            delta = scores + (4 + (2 * F.score(reach, range(keys))).min(arb(64))) * u
            magnitude = ((size + deviation) * (2 * delta).exp()).min(F.largest)
            lost = keys * (2 * F.largest * arb(-64).exp() + 4 * smallest)
            return moved(delta, F.largest, deviation) + (2 * gamma(keys + 2) + u) * magnitude + lost

        mean, entry = part["readout"] == "mean", step * x
        others = leak * (2 * (own + product(row, row, code)) - SPARE).max(arb(0)).exp()
        terms = [entry * interpolation, others.min(arb(1)) * (entry * (F.largest + size) + 2 * step * fixed)]
        terms += [entry * (rounding(own) - rounding(arb(0))), off(step * (F.largest * x + fixed))]
        terms += [entry * rounding(arb(0)) + 2 * gamma(keys + 2) * (state + step * fixed)]
        terms[4] += gamma(n + 2) * (state + entry * size + step * fixed)
        terms = [
            terms[k] * (1 if mean or k not in (1, 3) else n) + (off(state) if mean and k == 3 else 0) for k in range(5)
        ]
        return [term * (1 + gamma(n + 2)) for term in terms]

    step, l2, momentum, top = (
        arb(facts[name]) for name in ("step_size", "l2", "momentum", "max_step_times_smoothness")
    )
    domain, shrink = facts["domain"], 1 - step * l2
    fixed = arb(domain["x"]) * arb(domain["y"]) if facts["loss"]["link"] == "rate" else arb(0)
    terms = phase("gradient", step, (abs(shrink) + 2 * momentum) * arb(domain["w"]), fixed)
    if facts["proximal"]:
        more = phase("proximal", arb(1), arb(0), arb(0))
        terms = [x + y for x, y in zip(terms, more, strict=True)]
    grown = arb(domain["features"]).sqrt() * growth(facts, step, l2, momentum, top)
    return errors, dict(zip(TERMS, (term * grown.max(arb(1)) for term in terms), strict=True))


def growth(facts: dict[str, Any], step: Any, l2: Any, momentum: Any, top: Any) -> Any:
    """1 + ρ + … + ρ^{T−1}, ρ the Lipschitz constant of an exact step; with momentum on a quadratic Chebyshev's sum."""
    spectrum, x, steps = facts["domain"]["spectrum"], arb(facts["domain"]["x"]), facts["steps"]
    norm = (arb(facts["domain"]["features"]).sqrt() * x).min(arb(spectrum["norm"] or math.inf))
    largest = arb(spectrum["largest"]) if spectrum["largest"] else norm * norm
    unsure = SLACK * top * (1 + 3 * SLACK) / step
    strong = (arb(facts["strong_convexity"]) * (1 - SLACK) - unsure).max(arb(0))
    flattest = l2 + strong - arb(facts["negative_curvature"]) * largest * (1 + 2 * SLACK) - unsure
    edges = [step * flattest, top * (1 + 3 * SLACK)]
    if momentum > 0:
        a, p, total = reduce(arb.max, [abs(1 + momentum - edge) for edge in edges], 2 * momentum.sqrt()), arb(1), arb(0)
        ratio = a
        for _ in range(steps):
            total, p, ratio = total + p, p * ratio, a - momentum / ratio
        return total
    rho = reduce(arb.max, [abs(1 - edge) for edge in edges])
    return steps * rho.max(arb(1)) ** steps if rho.contains(1) else (rho**steps - 1) / (rho - 1)


def require_sound(certificate: dict[str, Any]) -> None:
    """Facts and claims fit together: what each is about is what the others take it to be about."""
    program, interpreter, claims = certificate["program"], certificate["interpreter"], certificate["claims"]
    facts, width = program["facts"], interpreter["facts"]["capacity"]["width"]
    layer = [x for name in ("w_k", "w_q", "w_v") for x in interpreter[f"assemble.{name}"]["numbers"]]
    need(layer == [float(i == j).hex() for i in range(3 * width) for j in range(3 * width)], "interpreter", "is none")
    dtypes = {part["dtype"] for section in (program, interpreter) for part in section.values() if "dtype" in part}
    need(
        len({*dtypes, "F64" if "64" in interpreter["facts"]["dtype"] else "F32"}) == 2, "interpreter", "has two dtypes"
    )
    need(claims.keys() == {"line", "gradient", "proximal"}, "claims", "has other entries")
    shaped = all(set(band) == set(BAND) and type(band["keys"]) is int for band in claims["line"])
    need(shaped, "claims/line", "has other entries")
    need(all(float(a["to"]) < float(b["to"]) for a, b in pairwise(claims["line"])), "claims/line", "is not in order")
    domain, inner, link = facts["domain"], facts["gradient"]["domain"], facts["loss"]["link"]
    seen = domain | {"y": domain["y"] if link == "residual" else 0.0}
    for name in ("residual", "absolute"):
        followed = domain[name] >= domain["features"] * domain["x"] * domain["w"] + domain["y"]
        seen[name] = seen["features"] * seen["x"] * seen["w"] + seen["y"] if followed else domain[name]
    need(
        inner == seen and link in ("residual", "margin", "rate"),
        "program/facts/gradient/domain",
        "is not the program's",
    )
    quadratic = facts["loss"]["derivative"] == "t" and not (facts["momentum"] and facts["l1"])
    need(
        quadratic or not (facts["momentum"] or facts["strong_convexity"]), "program/facts", "only quadratics have these"
    )
    need(bool(facts["l1"]) == bool(facts["proximal"]), "program/facts/proximal", "does not fit l1")
    for name, readout in (("gradient", "mean"), ("proximal", "sum"))[: 1 + bool(facts["proximal"])]:
        part, reach = facts[name], facts[name]["domain"]["residual"]
        need(set(claims[name]) == set(PHASE), f"claims/{name}", "has other entries")
        covers = part["grid"]["lo"] <= -reach < reach <= part["grid"]["hi"] and part["readout"] == readout
        need(covers and part["strength"] > 0, f"program/facts/{name}", "does not cover its residuals")
    if facts["proximal"]:
        reach, step = facts["proximal"]["domain"]["w"], arb(facts["step_size"])
        fixed = arb(domain["x"]) * arb(domain["y"]) if link == "rate" else 0
        gone = step * (arb(domain["x"]) * ball(claims["gradient"]["size"]) + fixed)
        square = {"samples": domain["features"], "features": domain["features"], "x": 1.0, "y": 0.0}
        wanted = facts["proximal"]["domain"] | square | {"residual": reach, "absolute": reach}
        covers = abs(1 - step * arb(facts["l2"])) * arb(domain["w"]) + gone <= reach
        need(facts["proximal"]["domain"] == wanted and covers, "program/facts/proximal/domain", "is too small")


def require_proved(certificate: dict[str, Any], bound: Any) -> None:
    """What is claimed of the softmaxes, the codes and the loss."""
    program, claims, facts = certificate["program"], certificate["claims"], certificate["program"]["facts"]
    line, start = Softmax(certificate["interpreter"]), 0.0
    for k, band in enumerate(claims["line"]):
        field, end, identity = f"claims/line/{k}", float(band["to"]), Expression("t")
        matter = prove(line, identity, (start, end), (), band, field) | prove(
            line, identity, (-end, -start), (), band, field
        )
        need(len(matter) == band["keys"], f"{field}/keys", f"{len(matter)} keys matter")
        need(above(line.score(arb(end), matter)) == band["score"], f"{field}/score", "is another")
        largest = reduce(arb.max, (abs(line.v[r]) for r in matter))
        need(above(largest) == band["largest"], f"{field}/largest", "is another")
        start = end
    functions = {"gradient": facts["loss"]["derivative"]}
    if facts["proximal"]:
        functions["proximal"] = f"sign(t)*Max(Abs(t) - {facts['step_size'] * facts['l1']!r}, 0)"
    for name, text in functions.items():
        softmax, grid, codes = Softmax(program, f"{name}."), facts[name]["grid"], program[f"{name}.codes"]
        prove(softmax, Expression(text), (grid["lo"], grid["hi"]), grid["bands"], claims[name], f"claims/{name}")
        samples, width = codes["shape"]
        numbers = [arb(float.fromhex(x)) for x in codes["numbers"]]
        rows = arb_mat(samples, width, numbers)
        table = (rows * rows.transpose()).tolist()
        own, others = [table[i][i] for i in range(samples)], [table[i][j] for i in range(samples) for j in range(i)]
        fit = samples == facts[name]["domain"]["samples"] and all(x <= ball("1.001") for x in own)
        need(fit, f"program/{name}.codes", "are longer than 1, or not one to a sample")
        gap = reduce(arb.min, own) - reduce(arb.max, others) if others else arb(1)
        others_weigh = softmax.advantage(arb(grid["lo"]), arb(grid["hi"])) + SPARE - arb(facts[name]["strength"]) * gap
        need((samples - 1) * others_weigh.exp() <= ball(claims[name]["leak"]), f"claims/{name}/leak", "is larger")
    reach = arb(facts["gradient"]["domain"]["residual"])
    reach += facts["domain"]["features"] * arb(facts["domain"]["x"]) * bound * (1 + SLACK)
    loss, least = facts["loss"], arb(facts["negative_curvature"])
    prove_curvature(Expression(loss["derivative"]), reach, least, loss["curvature"])


@contextmanager
def arithmetic() -> Iterator[None]:
    """The precision of everything here, which python-flint keeps for the whole process."""
    before = ctx.prec, ctx.cap
    ctx.prec, ctx.cap = PRECISION, ORDER + 1
    try:
        yield
    finally:
        ctx.prec, ctx.cap = before


@arithmetic()
def check(text: str, **files: str) -> str:
    """What holds, in a line; `Refused` where something does not."""
    certificate = json.loads(text)
    need(certificate["format"] == FORMAT, "format", f"is not {FORMAT!r}")
    need(canonical(certificate) == text, "certificate", "is not in canonical form")
    need(
        set(certificate) == {"program", "interpreter", "format", "claims", "terms", "bound", "sha256"},
        "certificate",
        "has other entries",
    )
    for path, digest in (found := hashes(certificate)).items():
        need(certificate["sha256"].get(path) == digest, path, "was altered: it is not what its sha256 says")
    need(certificate["sha256"].keys() == found.keys(), "sha256", "has other entries")
    for name, file in files.items():
        need(section_of(file) == certificate[name], name, f"is not what is in {file}")
    require_sound(certificate)
    errors, terms = recomputed(certificate)
    expected = {
        f"claims/line/{k}/error": (band["error"], errors[k]) for k, band in enumerate(certificate["claims"]["line"])
    }
    expected |= {f"terms/{name}": (certificate["terms"].get(name, "0"), value) for name, value in terms.items()}
    expected["bound"] = (certificate["bound"], sum(terms.values()))
    need(certificate["terms"].keys() == terms.keys(), "terms", "has other entries")
    for field, (claimed, value) in expected.items():
        need(claimed == above(value), field, f"is claimed as {claimed[:12]}, follows as {above(value)[:12]}")
    require_proved(certificate, ball(certificate["bound"]))
    return f"every weight is within {float(ball(certificate['bound'])):.3e}"


def main(words: list[str]) -> int:
    options = dict(zip(words[1::2], words[2::2], strict=False))
    if not words or len(words) % 2 == 0 or not options.keys() <= {"--interpreter", "--program"}:
        print("usage: checker.py CERTIFICATE [--interpreter FILE] [--program FILE]", file=sys.stderr)
        return 2
    try:
        holds = check(Path(words[0]).read_text(), **{name[2:]: path for name, path in options.items()})
    except Refused as reason:
        print(f"{words[0]} does not hold: {reason}", file=sys.stderr)
        return 1
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        SyntaxError,
        StopIteration,
        struct.error,
    ) as error:
        print(f"{words[0]} cannot be read: {type(error).__name__} {error}".splitlines()[0], file=sys.stderr)
        return 2
    print(f"{words[0]} holds: {holds}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
