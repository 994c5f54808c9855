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
import re
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from fractions import Fraction
from functools import cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint import arb, arb_mat, arb_series, ctx, fmpq

FORMAT, ORDER, PRECISION, MOST_CELLS = "emulon certificate 1", 16, 192, 60_000
NEGLIGIBLE, MATTERS = 110, fmpq(737, 16)  # in log weight: below 1e-47, and below 1e-20
SLACK, TINY, SPARE, CODE = fmpq(1, 10**8), fmpq(1, 10**20), fmpq(1, 10), fmpq(1001, 1000)
BAND = ("interpolation", "deviation", "size", "keys", "score", "largest", "to")
PROVED, PHASE = ("interpolation", "deviation", "size"), ("interpolation", "deviation", "size", "leak")
UNIT = {"F64": (53, 1022, "d"), "F32": (24, 126, "f")}  # 2^−these: unit roundoff, smallest normal number
SMOOTH = ("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "erf")
OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
Content = dict[str, Any]
# What follows from facts and claims. u: unit roundoff; slope, bias, largest, score: of a softmax, from above; off(s):
# the line's error up to s. moved(δ): what an average changes by when every score moves by δ.
RULES = """
gamma(k) = k*u/(1 - k*u)
moved(delta) = Min(2*largest*tanh(delta/2), exp(delta)*(exp(delta) - 1)*deviation)
weights = (4 + Min(2*score, 64))*u
"""
LINE = """
error = interpolation + moved(gamma(4)*score + weights) + 2*gamma(keys + 2)*(size + deviation) + u*to + unseen
"""
PHASES = """
emulated(key, query) = off(key)*(query + off(query)) + off(query)*key
product(key, query) = emulated(key*scale(key, query), query/scale(key, query))
own = d*product(slope*x, w) + labels*product(slope*y, 1) + product(bias, 1)
scores = own + gamma(Max(d + 2 + width, 2*d) + 1)*(slope*absolute + bias + strength*1.001)
lost = keys*(2*largest*exp(-64) + 4*smallest)
summed(delta) = (2*gamma(keys + 2) + u)*Min((size + deviation)*exp(2*delta), largest)
rounded(delta) = moved(delta) + summed(delta) + lost
leaked = Min(1, leak*exp(Max(0, 2*scores + 2*width*product(code, code) - 0.1)))
entry = step*x
interpolation = entry*interpolation
routing leak = copies*leaked*(entry*(largest + size) + 2*step*fixed)
emulated scores = entry*(rounded(scores + weights) - rounded(weights))
read(v) = off(v*fit(v))/fit(v)
emulated values = copies*read(step*(largest*x + fixed)) + stateful*off(raised*state*fit(state))/(raised*fit(state))
carried = 2*gamma(keys + 2)*(state + step*fixed) + gamma(n + 2)*(state + entry*size + step*fixed)
rounding = entry*rounded(weights) + carried + gamma(4)*ahead
"""
TERMS = ("interpolation", "routing leak", "emulated scores", "emulated values", "rounding")
GROWTH = """
top = max_step_times_smoothness*(1 + 3*slack)
strong = Max(strong_convexity*(1 - slack) - slack*top/step, 0)
flattest = l2 + strong - negative_curvature*eigenvalue*(1 + 2*slack) - slack*top/step
ratio = Max(Abs(1 + momentum - step*flattest), Abs(1 + momentum - top), 2*root)
"""


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


def most(balls: Iterable[Any]) -> Any:
    return reduce(arb.max, balls)


def average(weights: list[Any], values: Iterable[Any]) -> Any:
    return sum(map(operator.mul, weights, values)) / sum(weights)


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def hashes(certificate: Content) -> dict[str, str]:
    """Of every entry: the facts, every tensor, the claims about each, every term, the bound."""
    parts = {
        name: {"": part} if isinstance(part, str) else part for name, part in certificate.items() if name != "sha256"
    }
    found = {f"{name}/{key}".rstrip("/"): each for name, part in parts.items() for key, each in part.items()}
    return {path: hashlib.sha256(canonical(part).encode()).hexdigest() for path, part in found.items()}


def section_of(path: str) -> Content:
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


def either(switch: Any, above: Any, below: Any, at_zero: bool | None = None) -> Any:
    """By the sign of a switch. Where that is open: both values and both slopes, and nothing is known beyond."""
    value = switch[0]
    if value > 0 or (at_zero is True and value >= 0):
        return above
    if value < 0 or (at_zero is False and value <= 0):
        return below
    above, below = above + arb_series([0]), below + arb_series([0])
    return arb_series([above[0].union(below[0]), above[1].union(below[1]), arb.nan()])


def default(piece: Any) -> Any:
    need(piece[1] is True, "program/facts/loss/derivative", "is not defined everywhere")
    return piece[0]


def power(base: Any, exponent: Any) -> Any:
    if exponent[0].is_integer() and abs(exponent[0]) < 65:
        whole = reduce(operator.mul, [base] * abs(int(exponent[0].fmpz())), arb_series([1]))
        return whole if exponent[0] >= 0 else 1 / whole
    return base.sqrt() if exponent[0] == arb(0.5) else (exponent * base.log()).exp()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: operator.methodcaller(name) for name in SMOOTH},
    "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
    "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
    "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
    "Abs": lambda x: either(x, x, -x),
    "sign": lambda x: either(x, 1, -1),
    "Heaviside": lambda x, tie=None: either(x, 1, 0),
    "Max": lambda *x: reduce(lambda a, b: either(a - b, a, b), x),
    "Min": lambda *x: reduce(lambda a, b: either(a - b, b, a), x),
    "Piecewise": lambda *x: reduce(
        lambda rest, piece: either(piece[1][0], piece[0], rest, piece[1][1]), x[-2::-1], default(x[-1])
    ),
}


class Function:
    """An expression over power series, by name: numbers (decimals are exact), + − × ÷, powers, functions as above."""

    def __init__(self, text: str) -> None:
        need(len(text) < 2000 and text.isascii(), "program/facts/loss/derivative", "cannot be read")
        self.text, self.tree = text, ast.parse(text, mode="eval").body

    def __call__(self, **names: Any) -> Any:
        constants = {"pi": arb_series([arb.pi()]), "E": arb_series([arb.const_e()])}
        return self.value(self.tree, names | constants) + arb_series([0])

    def value(self, node: Any, names: Content) -> Any:
        match node:
            case ast.Constant():
                return node.value is True or arb_series([ball(ast.get_source_segment(self.text, node))])
            case ast.Name():
                return names[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return -self.value(node.operand, names)
            case ast.BinOp():
                operation = power if isinstance(node.op, ast.Pow) else OPERATIONS[type(node.op)]
                return operation(self.value(node.left, names), self.value(node.right, names))
            case ast.Compare(ops=[op], comparators=[right]):
                off = self.value(node.left, names) - self.value(right, names)
                return off if isinstance(op, ast.Gt | ast.GtE) else -off, isinstance(op, ast.LtE | ast.GtE)
            case ast.Tuple():
                return [self.value(part, names) for part in node.elts]
        function = FUNCTIONS.get(node.func.id) or names[node.func.id]
        return function(*(self.value(part, names) for part in node.args))


as_function = cache(Function)


class Softmax:
    """F(s) = Σ_r softmax_r(a_r·s + b_r)·v_r, of exact numbers."""

    def __init__(self, section: Content, prefix: str = "") -> None:
        parts = [section[f"{prefix}{name}"]["numbers"] for name in ("slopes", "intercepts", "values")]
        self.a, self.b, self.v = ([arb(float.fromhex(x)) for x in part] for part in parts)
        self.slope, self.bias, self.largest = (most(map(abs, part)) for part in (self.a, self.b, self.v))

    def score(self, reach: Any, keys: Iterable[int]) -> Any:
        """max |a·s| + |b| for |s| ≤ reach."""
        return most(abs(self.a[r]) * reach + abs(self.b[r]) for r in keys)

    def scores(self, s: Any) -> list[Any]:
        return [a * s + b for a, b in zip(self.a, self.b, strict=True)]

    def normaliser(self, s: Any) -> tuple[Any, Any]:
        """log Σ exp(score), which is convex, and its slope."""
        scores = self.scores(s)
        mass = [(x - scores[0]).exp() for x in scores]
        return scores[0] + sum(mass).log(), average(mass, self.a)

    def advantage(self, lo: Any, hi: Any) -> Any:
        """sup − inf of the normaliser on [lo, hi]: at an end, above a tangent near its lowest."""
        low, high = lo, hi
        for _ in range(PRECISION // 2):
            middle = ((low + high) / 2).mid()
            low, high = (low, middle) if self.normaliser(middle)[1] > 0 else (middle, high)
        value, slope = self.normaliser(low)
        return most(self.normaliser(end)[0] for end in (lo, hi)) - value + abs(slope) * (hi - lo)

    def cell(self, f: Function, left: float, right: float) -> tuple[list[Any], list[int]]:
        """Bounds of |F − f|, Σ w|v − F| and |F| on [left, right], NaN where there are none, and the keys that matter.

        On s = c + ρτ scores are taken relative to the first key's at c and slopes to their mean: what all keys have in
        common cancels before the division, and with it what would make the enclosure explode. Then F − f has its Taylor
        polynomial in τ, and Lagrange's remainder on the ball |τ| ≤ 1; at a kink of f, values on the ball decide. Keys
        left out change F by at most their weight.
        """
        # A ball whose upper end is `right` to the last bit: a jump may be there.
        around, unit = arb(0, ((arb(right) - arb(left)) / 2).upper()), arb(0, 1)
        c, radius = arb(right) - around.rad(), around.rad()
        scores = self.scores(c)
        top = max(range(len(scores)), key=lambda r: float(scores[r]))
        ahead = [x - scores[top] for x in scores]
        highest = [x + abs(a - self.a[top]) * radius for x, a in zip(ahead, self.a, strict=True)]
        near = [r for r, x in enumerate(highest) if not x < -NEGLIGIBLE]
        ahead, a, v = ([part[r] for r in near] for part in (ahead, self.a, self.v))
        mean, guess = (average([x.exp() for x in ahead], part).mid() for part in (a, v))
        kappa, v = [(x - mean) * radius for x in a], [x - guess for x in v]
        if not all(x + abs(k) < 4 for x, k in zip(ahead, kappa, strict=True)):
            return [arb.nan()] * 3, []
        mass = [[arb_series([x + k * t, k]).exp() for x, k in zip(ahead, kappa, strict=True)] for t in (0, unit)]
        center, whole = (average(each, v) for each in mass)
        on_ball = f(t=arb_series([c + around, radius])) - guess
        off, rest = center + guess - f(t=arb_series([c, radius])), whole - on_ball
        left_out = (len(scores) - len(near)) * arb(-NEGLIGIBLE).exp() * 2 * self.largest
        error = sum((abs(off[k]) for k in range(ORDER)), abs(rest[ORDER])) if rest[ORDER].is_finite() else abs(rest[0])
        away = (abs(on_ball[0]) + error).min(abs(whole[0])) + left_out
        spread = average([x[0] for x in mass[1]], map(abs, v))
        bounds = [error + left_out, spread + away + left_out, abs(guess) + away]
        return bounds, [r for r, x in enumerate(highest) if not x < -MATTERS]


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


def prove(softmax: Softmax, f: Function, ends: Any, bands: Any, claim: Content, field: str) -> set[int]:
    """|F − f|, deviation and size are as claimed; the keys that matter somewhere."""
    matter, claims = set[int](), [ball(claim[name]) for name in PROVED]

    def missing(left: float, right: float) -> list[str]:
        bounds, keys = softmax.cell(f, left, right)
        missed = [name for name, x, limit in zip(PROVED, bounds, claims, strict=True) if not x <= limit]
        matter.update([] if missed else keys)
        return missed

    halving(ends, bands, missing, field)
    return matter


def prove_curvature(f: Function, reach: Any, least: Any, limit: float) -> None:
    """−least ≤ f′ ≤ limit for |t| ≤ reach, up to SLACK of it, jumps left out; f′ is in f′(c) + f″(cell)·(cell − c)."""

    def missing(left: float, right: float) -> list[str]:
        c = arb((left + right) / 2)
        off = arb(left).union(arb(right)) - c
        at_c, whole = (f(t=arb_series([where, 1], prec=3)) for where in (c, c + off))
        slope = at_c[1] + 2 * whole[2] * off if whole[2].is_finite() else whole[1]
        room = SLACK * slope.abs_upper()
        holds = slope >= -least - room and (math.isinf(limit) or slope <= arb(limit) + room)
        return [] if holds else ["curvature"]

    end = float(reach.upper()) * (1 + 2.0**-50)
    halving((-end, end), (), missing, "program/facts/loss")


def following(rules: str, **known: Any) -> Content:
    """What is known, by name, and what rules say: lines of `name = expression` or `name(parameters) = expression`."""
    names: Content = {name: x if callable(x) else arb_series([x]) for name, x in known.items()}
    for line in filter(None, rules.splitlines()):
        (name, text), inside = line.split(" = "), re.search(r"\((.*)\)", line.split(" = ")[0])
        rule, parameters = as_function(text), inside[1].split(", ") if inside else []
        with_them = lambda *x, f=rule, by=parameters: f(**names | dict(zip(by, x, strict=True)))  # noqa: E731 (one line)
        names[name.partition("(")[0]] = with_them if inside else rule(**names)
    return names


def numbers(facts: Content) -> Content:
    return {name: arb(x) for name, x in facts.items() if isinstance(x, int | float)}


def scale(key: Any, query: Any) -> Any:
    """A power of two that makes key·scale and query/scale about equally large."""
    k, q = float(key[0]), float(query[0])
    return arb_series([2.0 ** round(math.log2(q / k) / 2) if q > 0 and k > 0 else 1.0])


def fit(size: Any) -> Any:
    """A power of two that takes a number of float32 to between 8 and 16."""
    s = float(size[0])
    return arb_series([2.0 ** min(math.floor(4 - math.log2(s)), 120) if s > 0 else 1.0])


def derived(certificate: Content) -> Content:
    """The errors of the line's claims, the terms and the bound, as they follow from facts and claims."""
    program, claims, facts = certificate["program"], certificate["claims"], certificate["program"]["facts"]
    line, errors = Softmax(certificate["interpreter"]), list[Any]()
    roundoff, smallest, _ = UNIT[certificate["interpreter"]["values"]["dtype"]]
    common = {"u": arb(2) ** -roundoff, "smallest": arb(2) ** -smallest, "scale": scale}
    common["fit"] = fit if roundoff == 24 else lambda size: arb_series([1])
    for band in claims["line"]:
        claimed = {name: ball(band[name]) for name in BAND}
        error = following(RULES + LINE, **common, **claimed, unseen=len(line.a) * TINY * line.largest)["error"][0]
        errors.append(most([*errors, error]))

    def off(size: Any) -> Any:
        inside = (e for e, band in zip(errors, claims["line"], strict=True) if size[0] <= ball(band["to"]))
        return arb_series([next(inside, arb.pos_inf())])

    def phase(name: str, **step: Any) -> list[Any]:
        F, part, codes = Softmax(program, f"{name}."), facts[name], program[f"{name}.codes"]
        domain, mean, keys = part["domain"], part["readout"] == "mean", range(len(F.a))
        of_softmax = {"slope": F.slope, "bias": F.bias, "largest": F.largest, "keys": len(F.a)}
        reach = arb(max(-part["grid"]["lo"], part["grid"]["hi"]))
        size = {"d": domain["features"], "n": domain["samples"], "width": codes["shape"][1]}
        size |= {"copies": 1 if mean else domain["samples"], "labels": int(domain["y"] > 0)}
        size |= {"stateful": int(part["readout"] != "sum"), "raised": 4 if part["readout"] == "rest" else 1}
        code = arb(part["strength"]).sqrt() * max(abs(float.fromhex(c)) for c in codes["numbers"])
        claimed = {each: ball(claims[name][each]) for each in PHASE} | {"score": F.score(reach, keys), "code": code}
        given = common | of_softmax | size | claimed | numbers(domain) | step | {"strength": arb(part["strength"])}
        found = following(RULES + PHASES, **given, off=off)
        return [(found[term] * (1 + found["gamma"](found["n"] + 2)))[0] for term in TERMS]

    domain, mine = facts["domain"], numbers(facts)
    step, state = mine["step_size"], (abs(1 - mine["step_size"] * mine["l2"]) + 2 * mine["momentum"]) * arb(domain["w"])
    ahead = 3 * facts["accelerated"] * arb(domain["w"])
    parts = [phase("gradient", step=step, state=state, fixed=fixed_part(facts), ahead=ahead)]
    if facts["proximal"]:
        kept = arb(facts["proximal"]["domain"]["w"]) if facts["proximal"]["readout"] == "rest" else arb(0)
        parts.append(phase("proximal", step=arb(1), state=kept, fixed=arb(0), ahead=arb(0)))
    grown = (arb(domain["features"]).sqrt() * growth(facts)).max(arb(1))
    terms = {name: sum(each) * grown for name, each in zip(TERMS, zip(*parts, strict=True), strict=True)}
    lines = [band | {"error": above(error)} for band, error in zip(claims["line"], errors, strict=True)]
    shown = {name: above(term) for name, term in terms.items()}
    return {"claims": claims | {"line": lines}, "terms": shown, "bound": above(sum(terms.values()))}


def fixed_part(facts: Content) -> Any:
    """A bound on what tokens carry of the data beside x and y: y·x, for rates."""
    return arb(facts["domain"]["x"]) * arb(facts["domain"]["y"]) if facts["loss"]["link"] == "rate" else arb(0)


def eigenvalue(facts: Content) -> Any:
    """A bound on λmax(XᵀX/n): the domain's, or what follows from its entries."""
    spectrum, x = facts["domain"]["spectrum"], arb(facts["domain"]["x"])
    norm = (arb(facts["domain"]["features"]).sqrt() * x).min(arb(spectrum["norm"] or math.inf))
    return arb(spectrum["largest"]) if spectrum["largest"] else norm * norm


def growth(facts: Content) -> Any:
    """Σ p_k, p_k bounding what an error has become after k exact steps: p_{k+1} = a·p_k − m·p_{k−1}, which is aᵏ
    without momentum m, and Chebyshev's on a quadratic with it; a bounds |1 + m − step·λ| over the Hessian's λ.
    Accelerated, p_k ≤ 1 + √2·k on a quadratic whose step·λ ≤ 1, and elsewhere every error may be thrown ahead."""
    known = numbers(facts) | {"step": arb(facts["step_size"]), "slack": arb(SLACK), "eigenvalue": eigenvalue(facts)}
    a = ratio = following(GROWTH, **known, root=known["momentum"].sqrt())["ratio"][0]
    p, total = arb(1), arb(0)
    if facts["accelerated"]:
        return thrown_ahead(facts, ratio)
    for _ in range(facts["steps"]):
        total, p, ratio = total + p, p * ratio, a - known["momentum"] / ratio
    return total


def thrown_ahead(facts: Content, ratio: Any) -> Any:
    steps, before, total = facts["steps"], arb(0), arb(0)
    if is_quadratic(facts) and facts["max_step_times_smoothness"] == 1:
        return steps + (2 * arb(1 + 15 * SLACK) ** (steps + 1)).sqrt() * steps * (steps - 1) / 2
    for k in range(steps):
        before, total = total, ratio * (total + arb(k) / (k + 3) * (total + before)) + 1
    return total


def is_quadratic(facts: Content) -> bool:
    whole = facts["rows"] == facts["domain"]["samples"]
    return facts["loss"]["derivative"] == "t" and not facts["l1"] and whole


def require_sound(certificate: Content) -> None:
    """Facts and claims fit together: what each is about is what the others take it to be about."""
    program, interpreter, claims = certificate["program"], certificate["interpreter"], certificate["claims"]
    facts, width, stated = program["facts"], interpreter["facts"]["capacity"]["width"], interpreter["facts"]["dtype"]
    layer = [x for name in ("w_k", "w_q", "w_v") for x in interpreter[f"assemble.{name}"]["numbers"]]
    need(layer == [float(i == j).hex() for i in range(3 * width) for j in range(3 * width)], "interpreter", "is none")
    dtypes = {part["dtype"] for section in (program, interpreter) for part in section.values() if "dtype" in part}
    need(dtypes == {stated, f"F{stated[-2:]}"}, "interpreter", "has two dtypes")
    shaped = all(set(band) == {*BAND, "error"} and type(band["keys"]) is int for band in claims["line"])
    need(claims.keys() == {"line", "gradient", "proximal"} and shaped, "claims", "has other entries")
    need(all(float(a["to"]) < float(b["to"]) for a, b in pairwise(claims["line"])), "claims/line", "is not in order")
    domain, link, phases = facts["domain"], facts["loss"]["link"], {"gradient": "mean"}
    seen = domain | {"y": domain["y"] if link == "residual" else 0.0}
    widest, followed = (each["features"] * each["x"] * each["w"] + each["y"] for each in (seen, domain))
    seen |= {name: widest if domain[name] >= followed else domain[name] for name in ("residual", "absolute")}
    ours = facts["gradient"]["domain"] == seen and link in ("residual", "margin", "rate")
    need(ours, "program/facts/gradient/domain", "is not the program's")
    kinds = [bool(facts["momentum"]), facts["accelerated"], facts["rows"] > domain["samples"]]
    need(sum(kinds) <= 1 and facts["rows"] >= domain["samples"], "program/facts", "is no algorithm")
    need(is_quadratic(facts) or not facts["momentum"], "program/facts/momentum", "only quadratics have it")
    squared = facts["loss"]["derivative"] == "t"
    need(squared or not facts["strong_convexity"], "program/facts/strong_convexity", "only quadratics have it")
    need(bool(facts["l1"]) == bool(facts["proximal"]), "program/facts/proximal", "does not fit l1")
    if facts["proximal"]:
        phases["proximal"] = "rest" if facts["proximal"]["readout"] == "rest" else "sum"
        inner, step = facts["proximal"]["domain"], arb(facts["step_size"])
        square = dict.fromkeys(("samples", "features"), domain["features"]) | {"x": 1.0, "y": 0.0}
        wide = dict.fromkeys(("residual", "absolute"), inner["w"])
        # |Σ f_i·x_ik|/n is at most |f| times |x|, and times √λmax (Cauchy and Schwarz).
        entry = arb(domain["x"]).min(eigenvalue(facts).sqrt())
        moved = step * (entry * ball(claims["gradient"]["size"]) + fixed_part(facts))
        covers = abs(1 - step * arb(facts["l2"])) * arb(domain["w"]) + moved <= inner["w"]
        need(inner == inner | square | wide and covers, "program/facts/proximal/domain", "is too small")
    for name, readout in phases.items():
        part, reach = facts[name], facts[name]["domain"]["residual"]
        need(set(claims[name]) == set(PHASE), f"claims/{name}", "has other entries")
        covers = part["grid"]["lo"] <= -reach < reach <= part["grid"]["hi"] and part["readout"] == readout
        need(covers and part["strength"] > 0, f"program/facts/{name}", "does not cover its residuals")


def about_keys(line: Softmax, end: float, keys: set[int]) -> Content:
    largest = most(abs(line.v[r]) for r in keys)
    return {"keys": len(keys), "score": above(line.score(arb(end), keys)), "largest": above(largest)}


def require_proved(certificate: Content) -> None:
    """What is claimed of the softmaxes, the codes and the loss."""
    program, claims, facts = certificate["program"], certificate["claims"], certificate["program"]["facts"]
    line, start, loss = Softmax(certificate["interpreter"]), 0.0, Function(facts["loss"]["derivative"])
    for k, band in enumerate(claims["line"]):
        field, end = f"claims/line/{k}", float(band["to"])
        sides = [prove(line, Function("t"), ends, (), band, field) for ends in ((start, end), (-end, -start))]
        for name, value in about_keys(line, end, set.union(*sides)).items():
            need(band[name] == value, f"{field}/{name}", f"is {value}")
        start = end
    functions = {"gradient": loss}
    if facts["proximal"]:
        by = repr(facts["step_size"] * facts["l1"])
        taken, left = f"Max(-{by}, Min({by}, t))", f"sign(t)*Max(Abs(t) - {by}, 0)"
        functions["proximal"] = Function(taken if facts["proximal"]["readout"] == "rest" else left)
    for name, function in functions.items():
        softmax, grid, codes = Softmax(program, f"{name}."), facts[name]["grid"], program[f"{name}.codes"]
        prove(softmax, function, (grid["lo"], grid["hi"]), grid["bands"], claims[name], f"claims/{name}")
        samples, width = codes["shape"]
        rows = arb_mat(samples, width, [arb(float.fromhex(x)) for x in codes["numbers"]])
        table = (rows * rows.transpose()).tolist()
        own, others = [table[i][i] for i in range(samples)], [table[i][j] for i in range(samples) for j in range(i)]
        fit = samples == facts[name]["domain"]["samples"] and all(x <= CODE for x in own)
        need(fit, f"program/{name}.codes", "are longer than 1, or not one to a sample")
        gap = reduce(arb.min, own) - most(others) if others else arb(1)
        ahead = softmax.advantage(arb(grid["lo"]), arb(grid["hi"])) + SPARE - arb(facts[name]["strength"]) * gap
        need((samples - 1) * ahead.exp() <= ball(claims[name]["leak"]), f"claims/{name}/leak", "is larger")
    off = facts["domain"]["features"] * arb(facts["domain"]["x"]) * ball(certificate["bound"]) * (1 + SLACK)
    reach, least = arb(facts["gradient"]["domain"]["residual"]) + off, arb(facts["negative_curvature"])
    prove_curvature(loss, reach, least, facts["loss"]["curvature"])


def check(text: str, **files: str) -> str:
    """What holds, in a line; `Refused` where something does not. The caller sets flint's precision, of which there is
    one for the whole process: PRECISION bits, ORDER + 1 coefficients."""
    need((ctx.prec, ctx.cap) == (PRECISION, ORDER + 1), "flint", "has another precision")
    certificate = json.loads(text)
    need(certificate["format"] == FORMAT, "format", f"is not {FORMAT!r}")
    need(canonical(certificate) == text, "certificate", "is not in canonical form")
    found = hashes(certificate)
    for path, digest in found.items():
        need(certificate["sha256"].get(path) == digest, path, "was altered: it is not what its sha256 says")
    need(certificate["sha256"].keys() == found.keys(), "sha256", "has other entries")
    for name, file in files.items():
        need(section_of(file) == certificate[name], name, f"is not what is in {file}")
    require_sound(certificate)
    follows = {"format": FORMAT} | derived(certificate)
    need(certificate.keys() == {*follows, "program", "interpreter", "sha256"}, "certificate", "has other entries")
    for name, value in follows.items():
        need(certificate[name] == value, name, f"is not what follows: {json.dumps(value)[:400]}")
    require_proved(certificate)
    return f"every weight is within {float(ball(certificate['bound'])):.3e}"


def main(words: list[str]) -> int:
    options = dict(zip(words[1::2], words[2::2], strict=False))
    if len(words) % 2 == 0 or not options.keys() <= {"--interpreter", "--program"}:
        print("usage: checker.py CERTIFICATE [--interpreter FILE] [--program FILE]", file=sys.stderr)
        return 2
    try:
        holds = check(Path(words[0]).read_text(), **{name[2:]: path for name, path in options.items()})
    except Exception as error:  # whatever a file that is none of ours leads to
        refused = isinstance(error, Refused)
        reason = f"does not hold: {error}" if refused else f"cannot be read: {type(error).__name__} {error}"
        print(f"{words[0]} {reason}".splitlines()[0], file=sys.stderr)
        return 1 if refused else 2
    print(f"{words[0]} holds: {holds}")
    return 0


if __name__ == "__main__":
    ctx.prec, ctx.cap = PRECISION, ORDER + 1
    sys.exit(main(sys.argv[1:]))
