"""Forgeries of certificate files that mean something, and an Arb run of the program as their judge.

A forger changes what a certificate is about (functions, data, numbers of the algorithm, keys, codes, cells), and then
computes everything that follows again, by the code of the honest writer: hashes, terms, the bound, the cells of the
curvature; often also all claims, as large as the checker itself sees them.
"""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from flint import arb, arb_series
from fuzz.oracle import descended, dot

from emulon.algorithms import GradientDescent, Loss, as_loss
from emulon.algorithms.losses import Loss as AnyLoss
from emulon.algorithms.losses import TemplateData
from emulon.certify import Domain, checker
from emulon.core.errors import EmulonError
from emulon.expressions import parse
from emulon.expressions.evaluation import ball_arithmetic
from emulon.interpreter import Interpreter, Program, compile, files, save
from emulon.interpreter.certificate_file import _lowest, _of_curvature, certificate_of
from emulon.interpreter.checks import CurvatureWatch
from emulon.interpreter.modes import unit_vectors
from emulon.interpreter.phase import Phase

Content = dict[str, Any]
f64 = torch.float64
DTYPES = {"F64": torch.float64, "F32": torch.float32}
DOMAIN = Domain(samples=2, features=1, x=1.0, y=1.0, w=2.0)


def algorithm(loss: AnyLoss | str, **numbers: Any) -> GradientDescent:
    numbers = {"steps": 3, "step_size": 0.5} | numbers
    return GradientDescent(as_loss(loss) if isinstance(loss, str) else loss, **numbers)


# A program of every kind, small enough that thousands of forgeries are judged in minutes, and its tolerance.
ORIGINALS: dict[str, tuple[Callable[[], GradientDescent], float]] = {
    "huber": (lambda: algorithm("huber(0.5)"), 3e-2),
    "poisson": (lambda: algorithm("poisson", step_size=0.1), 1e-3),
    "logistic": (lambda: algorithm("logistic"), 1e-3),
    "tukey": (lambda: algorithm("tukey(2.0)"), 1e-2),
    "lasso": (lambda: algorithm("squared", l1=0.1), 1e-1),
    "quantile": (lambda: algorithm("quantile(0.3)", steps=2, step_size=0.1), 1e-1),
    "nesterov": (lambda: algorithm("squared", accelerated=True), 1e-3),
    "own": (lambda: algorithm(Loss.of("Abs(t)**3/6 + t**2/2", curvature=5.0), step_size=0.2), 1e-2),
}


@cache
def original(name: str) -> Content:
    """The certificate of one of them."""
    make, tolerance = ORIGINALS[name]
    program = compile(make(), DOMAIN, tolerance=tolerance)
    with TemporaryDirectory() as folder:
        paths = {kind: Path(folder) / kind for kind in ("program", "interpreter")}
        save(program, paths["program"])
        save(Interpreter.fitting(program), paths["interpreter"])
        return certificate_of(program, Interpreter.fitting(program), paths)


def balls() -> Any:
    return ball_arithmetic(checker.PRECISION, checker.ORDER + 1)


def accepted(content: Content) -> str | None:
    """What the checker says of it; None where it does not hold, or cannot be read."""
    with balls():
        try:
            return checker.check(checker.canonical(content))
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError):
            return None


# ---------------------------------------------------------------------------------------------- what is made consistent


def consistent(content: Content, cells: int | None = None) -> Content:
    """With everything computed again that follows from the rest: bounds, follows, curvature, hashes.

    With a number of `cells` all claims about the phases, too, as the checker sees them on these; 0: on those it has.
    """
    content = copy.deepcopy(content)
    with balls(), suppress(checker.Refused, EmulonError, LookupError, TypeError, ValueError, ArithmeticError):
        whole = checker.Certificate(content)
        for name, function in whole.phases().items() if cells is not None else ():
            claim_anew(content, name, function, cells or 0)
        for name in whole.phases():
            part = content["program"]["facts"][name]
            bands = [{"lo": lo, "hi": hi} for lo, hi in part["grid"]["bands"]]
            part["bounds"] = content["claims"][name] | {"proved": True, "bands": bands}
        content["follows"] = checker.Certificate(content).follows()
        content["proofs"]["curvature"] = _of_curvature(checker.Certificate(content))
    return content | {"sha256": checker.hashes(content)}


def claim_anew(content: Content, name: str, function: str, cells: int) -> None:
    """Several cells are halved where |F − f| is largest; claimed is the most that the checker finds on any."""
    facts, whole = content["program"]["facts"][name], checker.Certificate(content)
    softmax, grid, bands = checker.Softmax(content["program"], f"{name}."), facts["grid"], facts["grid"]["bands"]
    inside = {edge for band in bands for edge in band if grid["lo"] < edge < grid["hi"]}
    uniform = {grid["lo"] + (grid["hi"] - grid["lo"]) * k / cells for k in range(cells)} | {grid["hi"]} | inside
    stops = sorted(uniform) if cells > 1 else centred(grid["hi"]) if cells else content["proofs"][name]
    found = {pair: bounds(softmax, function, pair, bands) for pair in pairwise(stops)}
    for _ in range(cells // 2):
        left, right = worst = max(found, key=lambda pair: found[pair][0])
        found.pop(worst)
        for pair in ((left, (left + right) / 2), ((left + right) / 2, right)):
            found[pair] = bounds(softmax, function, pair, bands)
    claim = content["claims"][name]
    for k, each in enumerate(checker.PROVED):
        claim[each] = max(one[k] for one in found.values()) * (1 + 1e-12)
    content["proofs"][name] = sorted({edge for pair in found for edge in pair})
    content["proofs"]["lowest"][name] = _lowest(softmax, grid["lo"], grid["hi"])
    at, gap = sum(map(arb, content["proofs"]["lowest"][name])), whole.gap(name)
    ahead = softmax.advantage(arb(grid["lo"]), arb(grid["hi"]), at) + checker.SPARE
    leak = (facts["domain"]["samples"] - 1) * (ahead - arb(facts["strength"]) * gap).exp()
    facts["gap"], claim["leak"] = float(gap) * (1 - 1e-15), max(float(leak.upper()) * (1 + 1e-12), 1e-300)


def centred(end: float) -> list[float]:
    """The ends of a cell beyond ±end of which the checker takes 0 itself for the centre."""
    half = end * (1 + 1e-6)
    right = float(arb(0, half).rad())
    return [right - 2 * half, right]


def bounds(softmax: checker.Softmax, function: str, cell: tuple[float, float], bands: list[list[float]]) -> list[float]:
    if any(lo <= cell[0] and cell[1] <= hi for lo, hi in bands):
        return [0.0] * 3
    with suppress(ZeroDivisionError):
        return [float(bound.upper()) for bound in softmax.cell(function, *cell)[0]]
    return [math.inf] * 3


# --------------------------------------------------------------------------------------------------- what is changed


FUNCTIONS = (
    *("2**t", "E**t - 1", "2**(t*0)", "{0}*2**(t - t)", "({0})**1", "Abs(t)**t", "sqrt(t**2)", "t**(1 + t*0)"),
    *("t", "tanh(t)", "exp(t)", "sin(3*t)", "-({0})", "0", "1", "0.999*({0})", "{0} + 0.001", "{0} + sin(50*t)/1000"),
    *("Piecewise((0, t == 0), ({0}, True))", "Piecewise((1, t != 0), ({0}, True))", "Max({0}, t, key=0)"),
    *("Piecewise(({0}, t < 0), ({0} + 0.01, True))", "Piecewise(({0}, t < 0.25), (1, t <= 0.25), ({0}, True))"),
    *("{0} + 0.01*sign(t - 0.3)", "{0} - Heaviside(t)/100", "{0} + 0.01*sign(t)*t", "Max({0}, -0.2)", "Min({0}, 0.2)"),
    *("t + atan(1/t)/1000", "({0})*t/t", "Abs({0})", "sign(t)/2 + 1/5", "sign(t)/2", "t(0) + {0}", "{0} + (t < 0)"),
)
NUMBERS = ("step_size", "l1", "l2", "momentum", *checker.CURVATURE, "curvature_reach")


def scaled(draw: random.Random, number: float) -> float:
    factor = draw.choice((0.0, 0.5, 0.9, 0.999, 1 + 1e-6, 1.1, 2.0, 10.0, -1.0, 1e-6, 1e6))
    return draw.choice((number * factor, number + draw.choice((1e-3, 0.1, 1.0))))


def of_function(content: Content, draw: random.Random) -> None:
    loss = content["program"]["facts"]["loss"]
    loss["derivative"] = draw.choice(FUNCTIONS).replace("{0}", loss["derivative"])
    if draw.random() < 0.8:
        loss["name"] = "own"
    if draw.random() < 0.5:
        loss["curvature"] = draw.choice((1.0, 4.0, 50.0, math.inf))
    if draw.random() < 0.3:  # a constant: what the checker takes the function for at 0
        values = content["program"]["gradient.values"]["numbers"]
        with balls(), suppress(checker.Refused, LookupError, TypeError, ValueError, ArithmeticError):
            values[:] = [float(checker.evaluated(loss["derivative"], t=arb_series([0, 1]))[0]).hex()] * len(values)
            loss["curvature"] = math.inf


def of_link(content: Content, draw: random.Random) -> None:
    facts = content["program"]["facts"]
    facts["loss"]["link"] = draw.choice(("residual", "margin", "rate"))
    fit_domain(content)


def of_curvature(content: Content, draw: random.Random) -> None:
    loss = content["program"]["facts"]["loss"]
    loss["curvature"] = draw.choice((math.inf, 1.0, min(loss["curvature"], 9.0) * draw.choice((0.5, 0.999, 2.0))))


def of_algorithm(content: Content, draw: random.Random) -> None:
    facts, name = content["program"]["facts"], draw.choice((*NUMBERS, "steps", "rows", "accelerated"))
    if name == "accelerated":
        facts[name] = not facts[name]
    elif name in ("steps", "rows"):
        facts[name] = draw.choice((0, 1, 2, 3, 4, 6, 10))
    else:
        facts[name] = abs(scaled(draw, facts[name]))


def of_bands(content: Content, draw: random.Random) -> None:
    grid = content["program"]["facts"][draw.choice(phases(content))]["grid"]
    grid["bands"] = [band for band in grid["bands"] if draw.random() < 0.7]
    for band in grid["bands"]:
        by, width = draw.choice((0.0, 1e-7, 1e-3)), draw.choice((0.01, 0.5, 1.0, 2.0, 100.0))
        middle, half = (band[0] + band[1]) / 2 + by, (band[1] - band[0]) / 2 * width
        band[:] = [middle - half, middle + half]
    if draw.random() < 0.5:
        at, half = draw.uniform(grid["lo"], grid["hi"]), draw.choice((1e-7, 1e-3, 0.1, 5.0))
        grid["bands"].append([at - half, at + half])


def of_domain(content: Content, draw: random.Random) -> None:
    facts = content["program"]["facts"]
    name = draw.choice(("x", "y", "w", "residual", "absolute", "spectrum"))
    if name == "spectrum":
        facts["domain"]["spectrum"][draw.choice(("norm", "largest", "smallest"))] = draw.choice((1e-4, 0.1, 1.0, 9.0))
    else:
        facts["domain"][name] = abs(scaled(draw, facts["domain"][name]))
    if draw.random() < 0.8:
        fit_domain(content)


def fit_domain(content: Content) -> None:
    """The gradient phase's domain is what the program's is under its link."""
    facts = content["program"]["facts"]
    with suppress(EmulonError, TypeError, ValueError):
        facts["gradient"]["domain"] = files.asdict(
            files.LINKS.named(facts["loss"]["link"]).template_domain(files._domain(facts["domain"]))
        )


def of_keys(content: Content, draw: random.Random) -> None:
    """Of a phase, now and then of the identity grid: one key, or all; or a key more."""
    line = draw.random() < 0.1
    section, prefix = content["interpreter" if line else "program"], "" if line else f"{draw.choice(phases(content))}."
    keys = [section[prefix + part] for part in checker.KEYS]
    if draw.random() < 0.2:
        more = (draw.choice((0.0, 1e3, 1e9)), draw.uniform(-5, 1), draw.uniform(-2, 2))
        for part, number in zip(keys, more, strict=True):
            part["numbers"].append(float(number).hex())
            part["shape"] = [len(part["numbers"])]
        return
    part, by = draw.choice(keys), draw.choice((1e-9, 1e-4, 1e-2, 0.5))
    which = range(len(part["numbers"]))
    for r in which if draw.random() < 0.3 else [draw.choice(which)]:
        part["numbers"][r] = (float.fromhex(part["numbers"][r]) * (1 + by)).hex()


def of_claims(content: Content, draw: random.Random) -> None:
    claim = draw.choice([content["claims"][name] for name in phases(content)] + content["claims"]["line"])
    name = draw.choice([*claim])
    if name == "matter":
        claim[name] = claim[name][:: draw.choice((1, -1, 2))][1:]
    else:
        claim[name] *= draw.choice((0.0, 0.5, 0.9, 0.999, 1.5))


def phases(content: Content) -> list[str]:
    return ["gradient", "proximal"] if content["program"]["facts"]["proximal"] else ["gradient"]


KINDS: dict[str, Callable[[Content, random.Random], None]] = {
    **{"function": of_function, "link": of_link, "curvature": of_curvature, "algorithm": of_algorithm},
    **{"bands": of_bands, "domain": of_domain, "keys": of_keys, "claims": of_claims},
}
WEIGHTS = {"function": 3, "bands": 2, "algorithm": 2, "domain": 2, "keys": 2}


def forged(number: int) -> tuple[str, list[str], Content]:
    """The forgery of this number: whose certificate, what was changed in it, and the file."""
    draw = random.Random(number)
    name = draw.choice([*ORIGINALS])
    content, changes = copy.deepcopy(original(name)), draw.choice((1, 1, 1, 2, 3))
    kinds = draw.choices([*KINDS], [WEIGHTS.get(kind, 1) for kind in KINDS], k=changes)
    for kind in kinds:
        KINDS[kind](content, draw)
    anew = draw.random() < (0.2 if "claims" in kinds else 0.7)
    return name, kinds, consistent(content, draw.choice((0, 1, 16)) if anew else None)


# ----------------------------------------------------------------------------------------------------------- the judge


def deviations(content: Content, said: str, seed: int = 0) -> Iterator[tuple[float, float]]:
    """(how far an Arb run of the program ends from exact descent, the bound), for data that the promise is about.

    What a run checks of its data and its path is asked of the run's own checks; which residuals the promise leaves out,
    of what the checker said.
    """
    program, bound = program_of(content), float(content["follows"]["bound"])
    ends = [float(end) for pair in re.findall(r"\(([^ ]+), ([^ ]+)\)", said) for end in pair]
    bands = list(zip(ends[::2], ends[1::2], strict=True))
    later, first = bands[: len(bands) // 2], bands[len(bands) // 2 :]
    draw = random.Random(seed)
    for number in range(4):
        x, y = data_for(program, draw, number)
        with ball_arithmetic(192), suppress(EmulonError):
            path = emulated(content, program, x, y)
            if later and number % 2 and program.steps > 1:  # at the edge of a band, in the second step
                lo, hi = draw.choice(later)
                first_residual = (x @ torch.tensor([float(a) for a in path[1]], dtype=f64) - y)[0]
                y = y + first_residual - draw.choice((lo, hi)) * 1.001
                path = emulated(content, program, x, y)
            require_promised(program, path, x, y, bound, (first, later))
            *given, fixed = exact_arguments(content, program, x, y)
            exact = descended(*given, fixed=fixed)
            yield max(float(abs(a - b).lower()) for a, b in zip(path[-1], exact, strict=True)), bound


def program_of(content: Content) -> Program:
    """As the loader makes it of a file, but for its proofs."""
    section = content["program"]
    tensors = {
        name: torch.tensor([float.fromhex(x) for x in part["numbers"]], dtype=DTYPES[part["dtype"]]).reshape(
            part["shape"]
        )
        for name, part in section.items()
        if name not in ("kind", "format", "facts")
    }
    plain = {name: float(section["facts"][name]) for name, kind in files.PLAIN.items() if kind is float}
    return files._program_from_parts("the program", tensors, section["facts"] | plain)


def data_for(program: Program, draw: random.Random, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """At the edges of the domain, or inside; targets of the program's kind."""
    domain, rows = program.domain, program.rows
    size = 1.0 if number < 2 else draw.choice((1.0, 0.3, 0.01))
    x = [[domain.x * (draw.choice((-1, 1)) if number < 3 else draw.uniform(-1, 1))] for _ in range(rows)]
    y = [domain.y * size * (draw.choice((-1, 1)) if number < 2 else draw.uniform(-1, 1)) for _ in range(rows)]
    if program.loss.link.name == "margin":
        y = [math.copysign(1.0, one) for one in y]
    if program.loss.link.name == "rate":
        y = [abs(one) for one in y]
    return torch.tensor(x, dtype=f64), torch.tensor(y, dtype=f64)


def exact_arguments(content: Content, program: Program, x: torch.Tensor, y: torch.Tensor) -> tuple[Any, ...]:
    """For the judge's own descent: the loss is what the certificate says, not what a name stands for."""
    facts = content["program"]["facts"]
    function, link = parse(facts["loss"]["derivative"]), files.LINKS.named(facts["loss"]["link"])
    data = link.template_data(x, y)
    rows, targets = [[arb(a) for a in row] for row in data.x.tolist()], [arb(a) for a in data.y.tolist()]
    numbers = {name: float(facts[name]) for name in ("step_size", "l2", "l1", "momentum", "accelerated")}
    numbers["batch"] = float(facts["domain"]["samples"])
    fixed = None if data.fixed is None else [arb(a) for a in data.fixed.mean(dim=0).tolist()]
    if fixed is not None and program.descent.batch is not None:
        raise EmulonError("the judge has one fixed part for all batches")
    return rows, targets, function.arb_value, numbers, facts["steps"], fixed


def require_promised(
    program: Program, path: list[list[Any]], x: torch.Tensor, y: torch.Tensor, bound: float, bands: tuple[Any, Any]
) -> None:
    """Refuse (EmulonError) data that a run would refuse, and a path into a band."""
    states = torch.tensor([[float(a) for a in w] for w in path], dtype=f64)
    starts = program.descent.starts(states[:-1]) if program.steps else states[:0]
    batches = program.plan.batches(program.loss.template_data(x, y))
    watches = [CurvatureWatch(program.plan, part.x, part.y, bound) for part in batches]
    for k, w in enumerate(starts):
        watches[k % len(watches)].before_step(w, k)
        part = batches[k % len(batches)]
        for residual in (part.x @ w - part.y).tolist():
            if any(lo < residual < hi for lo, hi in bands[k > 0]):
                raise EmulonError("in a band")


def emulated(content: Content, program: Program, x: torch.Tensor, y: torch.Tensor) -> list[list[Any]]:
    """All states of an Arb run: the identity grid reads every number of the emulated head, and nothing is rounded."""
    keys = [[arb(float.fromhex(n)) for n in content["interpreter"][part]["numbers"]] for part in checker.KEYS]

    @cache
    def line(mantissa: int, exponent: int) -> Any:
        s = arb(mantissa) * arb(2) ** exponent
        return averaged([a * s + b for a, b in zip(*keys[:2], strict=True)], keys[2])

    def read(number: Any) -> Any:
        if not number.is_finite():
            raise EmulonError("the path leaves everything that is judged")
        exact = number.mid().man_exp()
        return line(int(exact[0]), int(exact[1]))

    w = [arb(0)] * x.shape[-1]
    path = [w]
    batches = program.plan.batches(program.loss.template_data(x, y))
    for k in range(program.steps):
        before = path[max(k - 1, 0)]
        start = path[-1]
        if program.descent.accelerated:
            start = [a + (a - b) * k / (k + 3) for a, b in zip(start, before, strict=True)]
        w = applied(program.gradient, batches[k % len(batches)], start, before, read)
        if program.proximal is not None:
            units = unit_vectors(torch.zeros(len(w), dtype=f64))
            w = applied(program.proximal, units, w, w, read)
        path.append(w)
    return path


def applied(phase: Phase, data: TemplateData, w: list[Any], before: list[Any], read: Callable[[Any], Any]) -> list[Any]:
    """One application of the interpreter: both layers on the phase's prompt, read out."""
    d, scales, root = phase.domain.features, phase.scales, arb(phase.code_factors[0])
    held = phase.values
    step, shrink, momentum = arb(held.step), arb(held.shrink) + arb(held.momentum), arb(held.momentum)
    value_scale, state_scale = map(arb, phase.reading_scales)
    slopes, intercepts, values = (
        [arb(n) for n in part.tolist()] for part in (phase.grid.slopes, phase.grid.intercepts, phase.grid.values)
    )
    codes = [[read(root * arb(n)) for n in row] for row in phase.codes.vectors.tolist()]
    rows, targets = data.x.tolist(), data.y.tolist()
    fixed = [[0.0] * d for _ in rows] if data.fixed is None else data.fixed.tolist()
    state = [read(state_scale * (shrink * a - momentum * b)) for a, b in zip(w, before, strict=True)]
    tokens = []
    for i, row in enumerate(rows):
        for a, b, v in zip(slopes, intercepts, values, strict=True):
            key = [read(a * arb(scales.x) * arb(n)) for n in row]
            key += [read(a * arb(scales.y) * arb(targets[i])), read(arb(scales.bias) * b), *codes[i]]
            value = [
                read(value_scale * (step * arb(g) - step * v * arb(n))) for n, g in zip(row, fixed[i], strict=True)
            ]
            tokens.append((key, value))
    asked = [read(a / arb(scales.x)) for a in w] + [read(-1 / arb(scales.y)), read(1 / arb(scales.bias))]
    outputs = []
    for code in codes:
        scores = [dot(key, [*asked, *code]) for key, _ in tokens]
        outputs.append([averaged(scores, [value[k] for _, value in tokens]) for k in range(d)])
    gradient = [sum(column) / value_scale for column in zip(*outputs, strict=True)]
    if phase.readout == "mean":
        gradient = [g / len(rows) for g in gradient]
    return gradient if phase.readout == "sum" else [g + s / state_scale for g, s in zip(gradient, state, strict=True)]


def averaged(scores: list[Any], values: list[Any]) -> Any:
    top = max(scores, key=float)
    weights = [(score - top).exp() for score in scores]
    return dot(weights, values) / sum(weights)
