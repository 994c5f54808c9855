"""Checks certificate files of emulon, and trusts none: python-flint and the standard library are all it imports.

    python checker.py CERTIFICATE [--interpreter FILE] [--program FILE]

Claim: with exit code 0, weights that the program computes on the interpreter are within `bound` (sup-norm) of exact
(proximal) gradient descent, for all data of the domain whose path stays in it and outside the bands. They are widened
by what the bound lets residuals move, so that no jump lies between a residual and that of the exact path; both paths
start from zero weights, where nothing has moved.
Assumes: eigenvalues of XᵀX/n and step·L as the facts say, which a run checks; IEEE arithmetic, exp to two last places.
Proved here, in ball arithmetic, cell by cell as the file divides them: |F − f| of every softmax, the curvature of the
loss, and that it jumps inside bands only; and the gap between the codes of samples.
Refused: an entry that emulon's loader does not read, or reads in another way.
Recomputed: what follows from facts and claims, rounded up to 25 digits; any other number is refused.
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
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

from flint import arb, arb_mat, arb_series, ctx, fmpq

FORMAT, ORDER, PRECISION = "emulon certificate 3", 16, 192
FORMATS = {"program": "5", "interpreter": "2"}  # of the files
NEGLIGIBLE, MATTERS = 110, fmpq(737, 16)  # in log weight: below 1e-47, and below 1e-20
SLACK, TINY, SPARE, CODE = fmpq(1, 10**8), fmpq(1, 10**20), fmpq(1, 10), fmpq(1001, 1000)
BREAK = fmpq(1, 10**13)  # of the largest |F|: by how much ℓ′ may change in a cell in which it may jump
LEAST, MOST = 1e-60, 1e60  # of a domain's bounds: products of a few of them stay in float64
STEPS, BANDS, LONGEST, WORK = 10**6, 64, 2000, 200_000  # at most; WORK: letters of ℓ′ times cells
SECTIONS = ("program", "interpreter", "claims", "proofs", "follows")
PROVED, DOMAIN = ("interpolation", "deviation", "size"), ("samples", "features", "x", "y", "w", "absolute")
CURVATURE = ("max_step_times_smoothness", "strong_convexity", "negative_curvature")
STEP = ("step_size", "l1", "l2", "momentum", "accelerated", *CURVATURE)
KEYS, LAYER = ("slopes", "intercepts", "values"), ("assemble.w_k", "assemble.w_q", "assemble.w_v")
UNIT = {"F64": (53, 1022, "d"), "F32": (24, 126, "f")}  # 2^−these: unit roundoff, smallest normal number
# Kinds of entries. A dictionary has these entries and no others, a list any number of one kind; numbers are finite.
NUMBER, COUNT, EXTENDED = "number", "count", "number or Infinity"
SPECTRUM, ENDS = dict.fromkeys(("norm", "largest", "smallest"), NUMBER), {"lo": NUMBER, "hi": NUMBER}
DATA = dict.fromkeys((*DOMAIN, "residual"), NUMBER) | {"samples": COUNT, "features": COUNT, "spectrum": SPECTRUM}
EDGES, CLAIM = [NUMBER], dict.fromkeys((*PROVED, "leak"), NUMBER)
PHASE = {
    **{"grid": ENDS | {"way": str, "bands": [[NUMBER]]}, "domain": DATA, "gap": NUMBER, "strength": NUMBER},
    **{"readout": str, "bounds": CLAIM | {"proved": bool, "bands": [ENDS]}},
}
ALGORITHM = {
    **dict.fromkeys((*STEP, "curvature_reach"), NUMBER),
    **{"name": str, "steps": COUNT, "rows": COUNT, "accelerated": bool, "step_from_data": bool, "domain": DATA},
    **{"loss": dict.fromkeys(("name", "derivative", "link"), str) | {"curvature": EXTENDED}, "proximal": None},
}
MODULE = {"dtype": str, "capacity": {"features": COUNT, "tokens": COUNT, "width": COUNT, "reach": NUMBER}}
TENSOR = {"dtype": str, "shape": [COUNT], "numbers": [str]}
# What these names stand for when a program is loaded: derivative, curvature, link.
LOSSES = {
    "squared": ("t", 1.0, "residual"),
    "log_cosh": ("tanh(t)", 1.0, "residual"),
    "huber": ("Max(-{0}, Min({0}, t))", 1.0, "residual"),
    "tukey": ("t*Max(0, 1 - (t/{0})**2)**2", 1.0, "residual"),
    "quantile": ("sign(t)/2 + 1/2 - {0}", math.inf, "residual"),
    "logistic": ("-1/(1 + exp(t))", 0.25, "margin"),
    "squared_hinge": ("-2*Max(0, 1 - t)", 2.0, "margin"),
    "perceptron": ("Piecewise((-1, t <= 0), (0, True))", math.inf, "margin"),
    "poisson": ("exp(t)", math.inf, "rate"),
}
SMOOTH = ("exp", "log", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "erf")
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
own = features*product(slope*x, w) + labels*product(slope*y, 1) + product(bias, 1)
scores = own + gamma(Max(features + 2 + width, 2*features) + 1)*(slope*absolute + bias + strength*1.001)
lost = keys*(2*largest*exp(-64) + 4*smallest)
summed(delta) = (2*gamma(keys + 2) + u)*Min((size + deviation)*exp(2*delta), largest)
rounded(delta) = moved(delta) + summed(delta) + lost
leaked = Min(1, leak*exp(Max(0, 2*scores + 2*width*product(sqrt(strength)*code, sqrt(strength)*code) - 0.1)))
entry = step*x
interpolation = entry*(interpolation + 2*broken*size)
routing leak = copies*leaked*(entry*(largest + size) + 2*step*fixed)
emulated scores = entry*(rounded(scores + weights) - rounded(weights))
read(v) = off(v*fit(v))/fit(v)
emulated values = copies*read(step*(largest*x + fixed)) + carries*off(raised*state*fit(state))/(raised*fit(state))
carried = 2*gamma(keys + 2)*(state + step*fixed) + gamma(samples + 2)*(state + entry*size + step*fixed)
rounding = entry*rounded(weights) + carried + gamma(4)*ahead
"""
TERMS = ("interpolation", "routing leak", "emulated scores", "emulated values", "rounding")
# Of the facts alone. ratio bounds |1 + momentum − step·λ| over the eigenvalues λ of the Hessian.
FACTS = """
fixed = rate*x*y
carried = Abs(1 - step_size*l2)*w
state = carried + 2*momentum*w
ahead = 3*accelerated*w
norm = Min(sqrt(features)*x, longest)
eigenvalue = largest + unknown*norm*norm
top = max_step_times_smoothness*(1 + 3*slack)
strong = Max(strong_convexity*(1 - slack) - slack*top/step_size, 0)
flattest = l2 + strong - negative_curvature*eigenvalue*(1 + 2*slack) - slack*top/step_size
ratio = Max(Abs(1 + momentum - step_size*flattest), Abs(1 + momentum - top), 2*root)
"""


class Refused(ValueError):
    """The certificate does not hold."""


def need(holds: bool, field: str, reason: str) -> None:
    if not holds:
        raise Refused(f"{field}: {reason}")


def above(value: Any) -> str:
    """The least decimal number of 25 digits that is not below the ball."""
    need(abs(value) < arb(10) ** 300, "follows", "is no number below 1e300: nothing is promised")
    mantissa, exponent = map(int, value.upper().man_exp())
    need(exponent > -(10**5), "follows", "is too small to be written down")
    parts = decimal.Decimal(mantissa << max(exponent, 0)), decimal.Decimal(1 << max(-exponent, 0))
    return str(decimal.Context(prec=25, rounding=decimal.ROUND_CEILING).divide(*parts))


def most(balls: Iterable[Any]) -> Any:
    return reduce(arb.max, balls)


def average(weights: list[Any], values: Iterable[Any]) -> Any:
    return sum(map(operator.mul, weights, values)) / sum(weights)


def canonical(content: Any) -> str:
    return json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False) + "\n"


def hashes(certificate: Content) -> dict[str, str]:
    """Of every entry: the facts, every tensor, the claims about each, every number that follows."""
    entries = {f"{name}/{key}": entry for name in SECTIONS for key, entry in certificate[name].items()}
    return {path: hashlib.sha256(canonical(entry).encode()).hexdigest() for path, entry in entries.items()}


def require_kind(content: Any, kind: Any, field: str) -> None:
    if isinstance(kind, dict):
        need(isinstance(content, dict) and content.keys() == kind.keys(), field, f"needs the entries {[*kind]}")
        for name in kind:
            require_kind(content[name], kind[name], f"{field}/{name}")
    elif isinstance(kind, list):
        need(isinstance(content, list), field, "is no list")
        for k, part in enumerate(content):
            require_kind(part, kind[0], f"{field}/{k}")
    elif kind in (NUMBER, COUNT, EXTENDED):
        plain = isinstance(content, int if kind == COUNT else int | float) and not isinstance(content, bool)
        inside = plain and (0 if kind == COUNT else -sys.float_info.max) <= content <= sys.float_info.max
        need(inside or (kind == EXTENDED and content == math.inf), field, f"is no {kind}")
    else:
        need(isinstance(content, kind or type(None)), field, f"is no {kind.__name__ if kind else 'null'}")


def require_tensor(tensor: Content, field: str, *shape: int) -> None:
    known, count = tensor["dtype"] in UNIT, len(tensor["numbers"])
    need(known and tensor["shape"] == [*shape] and 0 < math.prod(shape) == count, field, f"is no tensor of {shape}")
    numbers, letter = [float.fromhex(x) for x in tensor["numbers"]], UNIT[tensor["dtype"]][2]
    held = struct.unpack(f"<{count}{letter}", struct.pack(f"<{count}{letter}", *numbers))
    plain = all(map(math.isfinite, held)) and [x.hex() for x in held] == tensor["numbers"]
    need(plain, field, "has numbers that its dtype does not hold")


def require_whole(certificate: Content) -> None:
    """Entries are of their kinds, tensors of their shapes, and no number makes a small file a long piece of work."""
    program, interpreter, proofs = (certificate[name] for name in ("program", "interpreter", "proofs"))
    facts, phases = program["facts"], ("gradient", "proximal") if program["facts"]["proximal"] else ("gradient",)
    tensors, cells = [f"{name}.{part}" for name in phases for part in (*KEYS, "codes")], dict.fromkeys(phases, EDGES)
    head, line = {"kind": str, "format": str}, dict.fromkeys((*PROVED, "to"), NUMBER) | {"matter": [COUNT]}
    kinds = {
        "program": head | {"facts": ALGORITHM | dict.fromkeys(phases, PHASE)} | dict.fromkeys(tensors, TENSOR),
        "interpreter": head | {"facts": MODULE} | dict.fromkeys((*KEYS, *LAYER), TENSOR),
        "claims": {"line": [line]} | dict.fromkeys(phases, CLAIM),
        "proofs": {"line": [EDGES], "curvature": EDGES, "lowest": cells} | cells,
    }
    for section, kind in kinds.items():
        require_kind(certificate[section], kind, section)
    for section, number in FORMATS.items():
        ours = (certificate[section]["kind"], certificate[section]["format"]) == (section, number)
        need(ours, f"{section}/format", f"is not {section} {number!r}")
    width = interpreter["facts"]["capacity"]["width"]
    for name in LAYER:
        require_tensor(interpreter[name], f"interpreter/{name}", width, 3 * width)
    for section, prefix in (("interpreter", ""), *(("program", f"{name}.") for name in phases)):
        for part in KEYS:
            tensor = certificate[section][prefix + part]
            require_tensor(tensor, f"{section}/{prefix}{part}", len(certificate[section][prefix + "values"]["numbers"]))
    for name in phases:
        bands, codes = facts[name]["grid"]["bands"], program[f"{name}.codes"]
        require_tensor(codes, f"program/{name}.codes", facts[name]["domain"]["samples"], *codes["shape"][1:2])
        fit = len(bands) <= BANDS and all(len(band) == 2 and band[0] < band[1] for band in bands)
        need(fit, f"program/facts/{name}/grid/bands", f"are no intervals, or more than {BANDS}")
    can = facts["step_size"] > 0 and facts["momentum"] < 1 and 0 < facts["max_step_times_smoothness"] <= 2
    need(can, "program/facts", "are none that descent can have")
    need(facts["steps"] <= STEPS, "program/facts/steps", f"are more than {STEPS}")
    letters, asked = len(facts["loss"]["derivative"]), len(proofs["gradient"]) + len(proofs["curvature"])
    need(letters * asked <= WORK, "program/facts/loss/derivative", f"is too long for {asked} cells")


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


def either(switch: Any, above: Any, below: Any, at_zero: bool | None = None, jumps: bool = True) -> Any:
    """By the sign of a switch. Where that is open: both values, and both slopes unless f may jump there; no more."""
    value = switch[0]
    if value > 0 or (at_zero is True and value >= 0):
        return above
    if value < 0 or (at_zero is False and value <= 0):
        return below
    above, below = above + arb_series([0]), below + arb_series([0])
    slope = arb.nan() if jumps else above[1].union(below[1])
    return arb_series([above[0].union(below[0]), slope, *[arb.nan()] * (ORDER - 1)])


def piecewise(*pieces: Any) -> Any:
    """The first piece whose condition, a switch and who has its zero, holds; the last has none."""
    value, always = pieces[-1]
    need(always is True, "program/facts/loss/derivative", "is not defined everywhere")
    return reduce(lambda rest, piece: either(piece[1][0], piece[0], rest, piece[1][1]), pieces[-2::-1], value)


def power(base: Any, exponent: Any) -> Any:
    if not all(exponent[k] == 0 for k in range(1, ORDER + 1)):
        return (exponent * base.log()).exp()
    if exponent[0].is_integer() and abs(exponent[0]) < 65:
        whole = reduce(operator.mul, [base] * abs(int(exponent[0].fmpz())), arb_series([1]))
        return whole if exponent[0] >= 0 else 1 / whole
    return base.sqrt() if exponent[0] == arb(0.5) else (exponent * base.log()).exp()


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: power},
    **{name: operator.methodcaller(name) for name in SMOOTH},
    "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
    "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
    "tanh": lambda x: 1 - 2 / (1 + (2 * x).exp()),
    "Abs": lambda x: either(x, x, -x, jumps=False),
    "sign": lambda x: either(x, 1, -1),
    "Heaviside": lambda x, tie=None: either(x, 1, 0),
    "Max": lambda *x: reduce(lambda a, b: either(a - b, a, b, jumps=False), x),
    "Min": lambda *x: reduce(lambda a, b: either(a - b, b, a, jumps=False), x),
    "Piecewise": piecewise,
}


def evaluated(text: str, **names: Any) -> Any:
    """An expression over power series, by name: numbers (decimals are exact), + − × ÷, powers, functions as above."""
    need(len(text) < LONGEST and text.isascii(), "program/facts/loss/derivative", "cannot be read")
    names |= {"pi": arb_series([arb.pi()]), "E": arb_series([arb.const_e()])}

    def value(node: Any) -> Any:
        match node:
            case ast.Constant(value=True):
                return True
            case ast.Constant():
                digits = ast.get_source_segment(text, node) or ""
                plain = re.fullmatch(r"\d*\.?\d*([eE][+-]?\d{1,3})?", digits)
                need(plain is not None, "program/facts/loss/derivative", f"has {digits[:20]}, no number of ours")
                exact = Fraction(digits)
                return arb_series([arb(fmpq(exact.numerator, exact.denominator))])
            case ast.Name():
                return names[node.id]
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.BinOp():
                return FUNCTIONS[type(node.op)](value(node.left), value(node.right))
            case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() as op], comparators=[right]):
                off = value(node.left) - value(right)
                return off if isinstance(op, ast.Gt | ast.GtE) else -off, isinstance(op, ast.LtE | ast.GtE)
            case ast.Tuple():
                return [value(part) for part in node.elts]
            case ast.Call(func=ast.Name(id=name), keywords=[]) if not isinstance(names.get(name), arb_series):
                return (FUNCTIONS.get(name) or names[name])(*map(value, node.args))
        raise Refused(f"program/facts/loss/derivative: has a {type(node).__name__} that is not read")

    return value(ast.parse(text, mode="eval").body) + arb_series([0])


def of(tensor: Content) -> list[Any]:
    return [arb(float.fromhex(x)) for x in tensor["numbers"]]


class Softmax:
    """F(s) = Σ_r softmax_r(a_r·s + b_r)·v_r, of exact numbers."""

    def __init__(self, section: Content, prefix: str = "") -> None:
        self.a, self.b, self.v = (of(section[prefix + name]) for name in KEYS)
        self.largest = most(map(abs, self.v))
        self.u = arb(2) ** -UNIT[section[prefix + "values"].get("dtype", "F64")][0]

    def sizes(self, reach: float, keys: Iterable[int] | None = None) -> Content:
        """Of these keys, or of all: their number, the largest value, slope and intercept, and score for |s| ≤ reach."""
        every = range(len(self.a))
        need(all(r in every for r in keys or every), "claims/line/matter", f"names keys that are not among {every}")
        a, b, v = ([abs(x[r]) for r in keys or every] for x in (self.a, self.b, self.v))
        score = most(slope * arb(reach) + bias for slope, bias in zip(a, b, strict=True))
        return {"keys": len(a), "slope": most(a), "bias": most(b), "largest": most(v), "score": score}

    def normaliser(self, s: Any) -> tuple[Any, Any]:
        """log Σ exp(score), which is convex, and its slope."""
        scores = [a * s + b for a, b in zip(self.a, self.b, strict=True)]
        mass = [(x - scores[0]).exp() for x in scores]
        return scores[0] + sum(mass).log(), average(mass, self.a)

    def advantage(self, lo: Any, hi: Any, at: Any) -> Any:
        """How much higher than anywhere the normaliser may be on [lo, hi], by its tangent where it is about lowest.

        A convex function is highest at an end, and above its tangent, which is lowest at one.
        """
        value, slope = self.normaliser(at)
        return most(self.normaliser(end)[0] - value for end in (lo, hi)) + most(slope * (at - end) for end in (lo, hi))

    def cell(self, f: str, left: float, right: float) -> tuple[list[Any], set[int]]:
        """Bounds of |F − f|, Σ w|v − F| and |F| on [left, right], NaN where there are none, and the keys that matter.

        On s = c + ρτ scores are taken relative to the first key's at c and slopes to their mean: what all keys have in
        common cancels before the division, and with it what would make the enclosure explode. Then F − f has its Taylor
        polynomial in τ, and Lagrange's remainder on the ball |τ| ≤ 1; at a kink of f, values on the ball decide. Keys
        left out change F by at most their weight; a key matters whose weight is more, or is computed as more: scores
        are off by 5u of their size, at both.
        """
        # A ball whose upper end is `right` to the last bit: a jump may be there.
        around, unit = arb(0, ((arb(right) - arb(left)) / 2).upper()), arb(0, 1)
        c, radius = arb(right) - around.rad(), around.rad()
        scores = [a * c + b for a, b in zip(self.a, self.b, strict=True)]
        top = max(range(len(scores)), key=lambda r: float(scores[r]))
        ahead = [x - scores[top] for x in scores]
        highest = [x + abs(a - self.a[top]) * radius for x, a in zip(ahead, self.a, strict=True)]
        near = [r for r, x in enumerate(highest) if not x < -NEGLIGIBLE]
        ahead, a, v = ([part[r] for r in near] for part in (ahead, self.a, self.v))
        mean, guess = (average([x.exp() for x in ahead], part).mid() for part in (a, v))
        kappa, v = [(x - mean) * radius for x in a], [x - guess for x in v]
        mass = [[arb_series([x + k * t, k]).exp() for x, k in zip(ahead, kappa, strict=True)] for t in (0, unit)]
        center, whole = (average(each, v) for each in mass)
        on_ball = evaluated(f, t=arb_series([c + around, radius])) - guess
        off, rest = center + guess - evaluated(f, t=arb_series([c, radius])), whole - on_ball
        left_out = (len(scores) - len(near)) * arb(-NEGLIGIBLE).exp() * 2 * self.largest
        error = sum((abs(off[k]) for k in range(ORDER)), abs(rest[ORDER])) if rest[ORDER].is_finite() else abs(rest[0])
        away = (abs(on_ball[0]) + error).min(abs(whole[0])) + left_out
        spread = average([x[0] for x in mass[1]], map(abs, v))
        bounds = [error + left_out, spread + away + left_out, abs(guess) + away]
        far = max(abs(left), abs(right))
        sizes = [abs(a) * far + abs(b) for a, b in zip(self.a, self.b, strict=True)]
        return bounds, {r for r, x in enumerate(highest) if not x + 10 * self.u * (sizes[r] + sizes[top]) < -MATTERS}


def cells(edges: list[float], ends: tuple[Any, Any], bands: Any, field: str) -> Iterator[tuple[float, float]]:
    """What a file divides the numbers between the ends into, outside the bands."""
    covers = edges == sorted(set(edges)) and arb(edges[0]) <= ends[0] and ends[1] <= arb(edges[-1])
    need(covers, field, "leaves something out")
    return (cell for cell in pairwise(edges) if not any(lo <= cell[0] and cell[1] <= hi for lo, hi in bands))


def prove(softmax: Softmax, f: str, where: Iterable[tuple[float, float]], claim: Content, field: str) -> None:
    """|F − f|, deviation and size are as claimed, and no other keys matter than is claimed, where that is."""
    for left, right in where:
        bounds, keys = softmax.cell(f, left, right)
        for name, bound in zip(PROVED, bounds, strict=True):
            need(bound <= claim[name], f"{field}/{name}", f"not proved near t = {left:.6g}")
        need(keys <= set(claim.get("matter", keys)), f"{field}/matter", f"leaves out a key near t = {left:.6g}")


def flat(f: str, left: float, right: float, least: float, limit: float, swing: Any = 0) -> bool:
    """−least ≤ f′ ≤ limit on a cell, up to SLACK of it; f′ is in f′(c) + f″(cell)·(cell − c).

    In a cell where f may jump this is asked of its chord, and f must not change by more than `swing`.
    """
    # c + off ends at `right` to the last bit, as in a softmax's cell.
    off = arb(0, ((arb(right) - arb(left)) / 2).upper())
    c = arb(right) - off.rad()
    at_c, whole = (evaluated(f, t=arb_series([where, 1], prec=3)) for where in (c, c + off))
    slope = at_c[1] + 2 * whole[2] * off if whole[2].is_finite() else whole[1]
    if not slope.is_finite() and 2 * whole[0].rad() <= swing:
        first, last = (evaluated(f, t=arb_series([arb(end), 1], prec=3))[0] for end in (left, right))
        slope = (last - first) / (arb(right) - arb(left))
    room = SLACK * slope.abs_upper()
    return bool(slope >= -arb(least) - room and slope <= arb(limit) + room)


def following(rules: str, **known: Any) -> Content:
    """What is known, by name, and what rules say: lines of `name = expression` or `name(parameters) = expression`."""
    names: Content = {name: x if callable(x) else arb_series([x]) for name, x in known.items()}
    for line in filter(None, rules.splitlines()):
        head, text = line.split(" = ")
        name, *by = re.findall(r"\w[\w ]*", head)
        rule = lambda *x, f=text, by=by: evaluated(f, **names | dict(zip(by, x, strict=True)))  # noqa: E731 (one line)
        names[name] = rule if by else evaluated(text, **names)
    return names


def numbers(field: str, content: Content, names: Iterable[str]) -> Content:
    """By these names alone: another entry must not stand for a number of ours. None of them is ever negative."""
    for name in names:
        need(content[name] >= 0, f"{field}/{name}", "is negative, or no number")
    return {name: arb(content[name]) for name in names}


def scale(key: Any, query: Any) -> Any:
    """A power of two that makes key·scale and query/scale about equally large."""
    k, q = float(key[0]), float(query[0])
    return arb_series([2.0 ** round(math.log2(q / k) / 2) if q > 0 and k > 0 else 1.0])


def fit(size: Any) -> Any:
    """A power of two that takes a number of float32 to between 8 and 16."""
    s = float(size[0])
    return arb_series([2.0 ** min(math.floor(4 - math.log2(s)), 120) if s > 0 else 1.0])


class Certificate:
    """What a file says, section by section, and what follows from the program's facts alone."""

    def __init__(self, content: Content) -> None:
        self.content, self.claims, self.interpreter = content, content["claims"], content["interpreter"]
        self.program, self.facts, self.line = content["program"], content["program"]["facts"], Softmax(self.interpreter)
        self.domain, spectrum = self.facts["domain"], self.facts["domain"]["spectrum"]
        known = numbers("program/facts", self.facts, STEP) | numbers("program/facts/domain", self.domain, DOMAIN)
        known |= {"slack": SLACK, "root": arb(self.facts["momentum"]).sqrt()}
        known |= {"rate": int(self.facts["loss"]["link"] == "rate"), "unknown": int(not spectrum["largest"])}
        known["largest"] = spectrum["largest"]
        known |= {"longest": spectrum["norm"] or math.inf}
        self.known = {name: x[0] for name, x in following(FACTS, **known).items()}
        whole = self.facts["rows"] == self.domain["samples"] and not self.facts["l1"]
        self.quadratic = self.facts["loss"]["derivative"] == "t" and whole
        jumps = any(word in self.facts["loss"]["derivative"] for word in ("sign", "Heaviside", "Piecewise"))
        self.broken = BREAK if jumps else fmpq(0)

    def phases(self) -> dict[str, str]:
        """What the softmax of each stands for."""
        by, derivative = repr(self.facts["step_size"] * self.facts["l1"]), self.facts["loss"]["derivative"]
        if not self.facts["proximal"]:
            return {"gradient": derivative}
        rest = self.facts["proximal"]["readout"] == "rest"
        return {
            "gradient": derivative,
            "proximal": f"Max(-{by}, Min({by}, t))" if rest else f"sign(t)*Max(Abs(t) - {by}, 0)",
        }

    def follows(self) -> Content:
        """The errors of the line, the terms and the bound, from above."""
        roundoff, smallest, _ = UNIT[self.interpreter["values"]["dtype"]]
        common = {"u": arb(2) ** -roundoff, "smallest": arb(2) ** -smallest, "scale": scale}
        common["fit"] = fit if roundoff == 24 else lambda size: arb_series([1])
        errors = [arb(0)]
        for k, band in enumerate(self.claims["line"]):
            claimed = numbers(f"claims/line/{k}", band, (*PROVED, "to"))
            known = common | claimed | self.line.sizes(band["to"], band["matter"])
            error = following(RULES + LINE, **known, unseen=len(self.line.a) * TINY * self.line.largest)["error"][0]
            errors.append(errors[-1].max(error))

        def off(size: Any) -> Any:
            inside = (e for e, band in zip(errors[1:], self.claims["line"], strict=True) if size[0] <= band["to"])
            return arb_series([next(inside, arb.pos_inf())])

        parts = [self.terms(name, common | {"off": off}) for name in self.phases()]
        grown = (self.known["features"].sqrt() * self.growth()).max(arb(1))
        terms = {name: sum(each) * grown for name, each in zip(TERMS, zip(*parts, strict=True), strict=True)}
        shown = {name: above(term) for name, term in terms.items()}
        return {"line": [above(e) for e in errors[1:]], "terms": shown, "bound": above(sum(terms.values()))}

    def terms(self, name: str, common: Content) -> list[Any]:
        """Of a phase. The proximal one has a step of 1, and of the state nothing or, where that is the rest, all."""
        part, codes, mean = self.facts[name], self.program[f"{name}.codes"], name == "gradient"
        held = {"step": self.known["step_size"]} | {each: self.known[each] for each in ("state", "fixed", "ahead")}
        given = common | numbers(f"program/facts/{name}/domain", part["domain"], DOMAIN)
        given |= numbers(f"program/facts/{name}", part, ["strength"])
        given |= numbers(f"claims/{name}", self.claims[name], (*PROVED, "leak"))
        given |= Softmax(self.program, f"{name}.").sizes(max(-part["grid"]["lo"], part["grid"]["hi"]))
        rest = part["readout"] == "rest"
        given |= held if mean else {"step": 1, "state": part["domain"]["w"] if rest else 0, "fixed": 0, "ahead": 0}
        given |= {"carries": int(mean or rest), "raised": 4 if rest else 1, "broken": self.broken if mean else 0}
        given |= {"copies": 1 if mean else part["domain"]["samples"], "width": codes["shape"][1]}
        given |= {"labels": int(part["domain"]["y"] > 0), "code": most(map(abs, of(codes)))}
        found = following(RULES + PHASES, **given)
        return [(found[term] * (1 + found["gamma"](found["samples"] + 2)))[0] for term in TERMS]

    def growth(self) -> Any:
        """Σ p_k, p_k bounding what an error has become after k exact steps: p_{k+1} = a·p_k − m·p_{k−1}, which is aᵏ
        without momentum m, and Chebyshev's on a quadratic with it.
        Accelerated, p_k ≤ 1 + √2·k on a quadratic whose step·λ ≤ 1, and elsewhere every error may be thrown ahead."""
        steps, a, ratio = self.facts["steps"], self.known["ratio"], self.known["ratio"]
        p, total, before = arb(1), arb(0), arb(0)
        if self.facts["accelerated"] and self.quadratic and self.facts["max_step_times_smoothness"] == 1:
            return steps + (2 * arb(1 + 15 * SLACK) ** (steps + 1)).sqrt() * steps * (steps - 1) / 2
        for k in range(steps):
            if self.facts["accelerated"]:
                before, total = total, a * (total + arb(k) / (k + 3) * (total + before)) + 1
            else:
                total, p, ratio = total + p, p * ratio, a - self.known["momentum"] / ratio
        return total

    def require_sound(self) -> None:
        """Facts and claims fit together: what each is about is what the others take it to be about."""
        facts, domain, link = self.facts, self.domain, self.facts["loss"]["link"]
        dtype, rows = self.interpreter["facts"]["dtype"], range(3 * self.interpreter["facts"]["capacity"]["width"])
        layer = [x for name in LAYER for x in self.interpreter[name]["numbers"]]
        fits = len(layer) == len(rows) ** 2 and layer == [float(i == j).hex() for i in rows for j in rows]
        need(fits, "interpreter", "is none")
        parts = [part for section in (self.program, self.interpreter) for part in section.values()]
        dtypes = {part["dtype"] for part in parts if "dtype" in part}
        need(dtypes == {dtype, f"F{dtype[-2:]}"}, "interpreter", "has two dtypes")
        seen = domain | {"y": domain["y"] if link == "residual" else 0.0}
        widest = seen["features"] * seen["x"] * seen["w"] + seen["y"]
        seen |= {name: min(domain[name], widest) for name in ("residual", "absolute")}
        ours = facts["gradient"]["domain"] == seen and link in ("residual", "margin", "rate")
        need(ours, "program/facts/gradient/domain", "is not the program's")
        kinds = [bool(facts["momentum"]), facts["accelerated"], facts["rows"] > domain["samples"]]
        kind = sum(kinds) <= 1 and facts["accelerated"] in (True, False) and facts["rows"] >= domain["samples"]
        need(kind, "program/facts", "is no algorithm")
        need(self.quadratic or not facts["momentum"], "program/facts/momentum", "only quadratics have it")
        squared = facts["loss"]["derivative"] == "t"
        need(squared or not facts["strong_convexity"], "program/facts/strong_convexity", "only quadratics have it")
        need(bool(facts["l1"]) == bool(facts["proximal"]), "program/facts/proximal", "does not fit l1")
        for name in self.phases():
            part, reach = facts[name], facts[name]["domain"]["residual"]
            covers = part["grid"]["lo"] <= -reach < reach <= part["grid"]["hi"] and part["strength"] > 0
            fits = covers and part["readout"] in {"gradient": ("mean",), "proximal": ("sum", "rest")}[name]
            need(fits, f"program/facts/{name}", "does not cover its residuals")
        if facts["proximal"]:
            inner, known = facts["proximal"]["domain"], self.known
            square = dict.fromkeys(("samples", "features"), domain["features"]) | {"x": 1.0, "y": 0.0}
            wide = dict.fromkeys(("residual", "absolute"), inner["w"])
            # |Σ f_i·x_ik|/n is at most |f| times |x|, and times √λmax (Cauchy and Schwarz).
            entry = known["x"].min(known["eigenvalue"].sqrt()) * arb(self.claims["gradient"]["size"])
            covers = known["carried"] + known["step_size"] * (entry + known["fixed"]) <= inner["w"]
            need(inner == inner | square | wide and covers, "program/facts/proximal/domain", "is too small")

    def require_as_loaded(self) -> None:
        """What the loader takes from a name, or reads beside what is read here, says the same; and it all fits."""
        facts, domain, capacity = self.facts, self.domain, self.interpreter["facts"]["capacity"]
        loss, (called, _, parameter) = facts["loss"], facts["loss"]["name"].partition("(")
        if called in LOSSES:
            derivative, curvature, link = LOSSES[called]
            name = f"{called}({float(parameter[:-1])!r})" if "{0}" in derivative else called
            known = {"name": name, "derivative": derivative.format(parameter[:-1]), "curvature": curvature}
            need(
                loss == known | {"link": link}, "program/facts/loss", f"is not the {called} that is loaded by its name"
            )
        for name in ("x", "y", "w", "residual", "absolute"):
            held = LEAST <= domain[name] <= MOST or (domain[name] == 0 and name in "xyw")
            need(held, f"program/facts/domain/{name}", f"is not between {LEAST} and {MOST}")
        widest = domain["features"] * domain["x"] * domain["w"] + domain["y"]
        follow = max(domain["residual"], domain["absolute"]) <= widest
        need(follow, "program/facts/domain", "has a residual larger than what it is made of")
        for name in self.phases():
            part, claimed, codes = facts[name], self.claims[name], self.program[f"{name}.codes"]["shape"]
            bands, field = [{"lo": lo, "hi": hi} for lo, hi in part["grid"]["bands"]], f"program/facts/{name}"
            need(name == "gradient" or not bands, f"{field}/grid/bands", "are where nothing jumps")
            same = part["bounds"] == claimed | {"proved": True, "bands": bands}
            need(same, f"{field}/bounds", f"are not what claims/{name} and its grid say")
            need(0 < part["gap"] <= self.gap(name), f"{field}/gap", "is not that of the codes")
            d, code, tokens = part["domain"]["features"], codes[1], len(self.program[f"{name}.values"]["numbers"])
            width = max(d + 2 + code, 2 * d)
            needed = {"features": 2 * (d + 2 + code) + 4 * d, "tokens": codes[0] * tokens, "width": width}
            needed["reach"] = self.claims["line"][-1]["to"]
            fits = all(capacity[each] >= size for each, size in needed.items())
            need(fits, "interpreter/facts/capacity", f"is too small: {name} needs {needed}")

    def require_proved(self) -> None:
        """What is claimed of the softmaxes, the codes and the loss."""
        facts, proofs, start = self.facts, self.content["proofs"], 0.0
        for k, (band, edges) in enumerate(zip(self.claims["line"], proofs["line"], strict=True)):
            where = cells(edges, (-band["to"], band["to"]), [(-start, start)], f"proofs/line/{k}")
            prove(self.line, "t", where, band, f"claims/line/{k}")
            start = band["to"]
        for name, function in self.phases().items():
            softmax, grid, claim = Softmax(self.program, f"{name}."), facts[name]["grid"], self.claims[name]
            where = cells(proofs[name], (grid["lo"], grid["hi"]), grid["bands"], f"proofs/{name}")
            prove(softmax, function, where, claim, f"claims/{name}")
            others, at = facts[name]["domain"]["samples"] - 1, sum(map(arb, proofs["lowest"][name]))
            ahead = softmax.advantage(arb(grid["lo"]), arb(grid["hi"]), at) + SPARE
            leak = others * (ahead - arb(facts[name]["strength"]) * self.gap(name)).exp()
            need(leak <= claim["leak"], f"claims/{name}/leak", "is larger")
        reach = self.reach()
        for left, right in cells(proofs["curvature"], (-reach, reach), self.bands(), "proofs/curvature"):
            need(self.flat(left, right), "program/facts/loss/curvature", f"not proved near t = {left:.6g}")

    def flat(self, left: float, right: float) -> bool:
        """The loss bends no more than is said, and does not jump."""
        loss, swing = self.facts["loss"], self.broken * arb(self.claims["gradient"]["size"])
        return flat(loss["derivative"], left, right, self.facts["negative_curvature"], loss["curvature"], swing)

    def gap(self, name: str) -> Any:
        """How much nearer each sample's code is to itself than to any other."""
        samples, width = self.program[f"{name}.codes"]["shape"]
        rows = arb_mat(samples, width, of(self.program[f"{name}.codes"]))
        table = (rows * rows.transpose()).tolist()
        own, others = [table[i][i] for i in range(samples)], [table[i][j] for i in range(samples) for j in range(i)]
        fit = samples == self.facts[name]["domain"]["samples"] and all(x <= CODE for x in own)
        need(fit, f"program/{name}.codes", "are longer than 1, or not one to a sample")
        return reduce(arb.min, own) - most(others) if others else arb(1)

    def bands(self) -> list[tuple[float, float]]:
        return [(lo, hi) for lo, hi in self.facts["gradient"]["grid"]["bands"]]

    def off(self) -> Any:
        """How far a residual may be from that of the exact path, given how far the program's weights may be."""
        return self.known["features"] * self.known["x"] * arb(self.content["follows"]["bound"]) * (1 + SLACK)

    def reach(self) -> Any:
        """How far from zero residuals of the exact path may be."""
        return arb(self.facts["gradient"]["domain"]["residual"]) + self.off()


def check(text: str, **files: str) -> str:
    """What holds, in a line; `Refused` where something does not. The caller sets flint's precision, of which there is
    one for the whole process: PRECISION bits, ORDER + 1 coefficients."""
    need((ctx.prec, ctx.cap) == (PRECISION, ORDER + 1), "flint", "has another precision")
    certificate = json.loads(text)
    need(certificate["format"] == FORMAT, "format", f"is not {FORMAT!r}")
    need(certificate.keys() == {"format", "sha256", *SECTIONS}, "certificate", "has other entries")
    need(canonical(certificate) == text, "certificate", "is not in canonical form")
    found, stated = hashes(certificate), certificate["sha256"]
    for path in found | stated:
        need(stated.get(path) == found.get(path), path, "was altered: it is not what its sha256 says")
    for name, file in files.items():
        need(canonical(section_of(file)) == canonical(certificate[name]), name, f"is not what is in {file}")
    require_whole(certificate)
    whole = Certificate(certificate)
    whole.require_sound()
    whole.require_as_loaded()
    follows, said = whole.follows(), certificate["follows"]
    for name in follows | said:
        need(said.get(name) == follows.get(name), f"follows/{name}", f"is {json.dumps(follows.get(name))[:400]}")
    whole.require_proved()
    outside, off = "", float(whole.off().upper())
    for words, moved in ((", while residuals stay out of ", off), (", and those of zero weights out of ", 0.0)):
        ends = [(lo - moved, hi + moved) for lo, hi in whole.bands()]
        # Six digits, rounded outwards.
        bands = [f"({lo - abs(lo) * 1e-5:.6g}, {hi + abs(hi) * 1e-5:.6g})" for lo, hi in ends]
        outside += words + " and ".join(bands) if bands else ""
    return f"every weight is within {float(follows['bound']):.3e}{outside}"


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
