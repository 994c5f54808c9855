"""How tight certificates are, and how many keys a tolerance takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from emulon.algorithms import GradientDescent, Loss, losses
from emulon.certify import Domain
from emulon.certify.domain import eigenvalues
from emulon.constructions import DescentInContext, ResidualMap
from emulon.report.figure import Figure, Panel, Series
from emulon.softmax import approximate
from reproduce.bounded import anywhere, largest, normal, uniform
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.emulation.residual_maps import exact_map

FUNCTIONS = ("t", "sin(10*t)", "exp(t)", "Max(t, 0)", "sign(t)*Max(Abs(t) - 0.3, 0)")
# Ridge regression, a loss that is interpolated and not strongly convex, and one that two keys give exactly.
DESCENTS = ("ridge", "√(1 + t²)", "log-cosh")
DOMAIN = Domain(samples=8, features=2, x=1.0, y=1.0, w=1.0)
KINDS = ("interpolation", "whole", "rounding alone")
INTERPOLATION_ALLOWED, WHOLE_ALLOWED = 10.0, 100.0


def tightness(setting: Setting) -> Numbers:
    """[bound, worst error] by certified object and tolerance; for log-cosh only rounding is certified."""
    found: Numbers = {"interpolation": {}, "whole": {}, "rounding alone": {}}
    for f in FUNCTIONS:
        found["interpolation"][f] = []
        for tolerance in setting.sizes["tolerances"]:
            setting.report_progress(f"{f}, {tolerance:g}", 0.3)
            found["interpolation"][f].append(_scalar(f, tolerance, setting.sizes["points"]))
    for name in ("f(w·x − y)·x", *DESCENTS):
        pairs = found["rounding alone" if name == "log-cosh" else "whole"][name] = []
        for tolerance in setting.sizes["tolerances"]:
            setting.report_progress(f"{name}, {tolerance:g}", 0.7)
            pairs.append((_descent if name in DESCENTS else _residual_map)(name, tolerance, setting))
    return found | {"tolerances": setting.sizes["tolerances"]}


def _scalar(f: str, tolerance: float, points: int) -> list[float]:
    made = approximate(f, (-1, 1), tolerance=tolerance)
    s = torch.linspace(-1, 1, points, dtype=torch.float64)
    return [made.certificate.bound, largest(made(s), made.function(s))]


def _residual_map(name: str, tolerance: float, setting: Setting) -> list[float]:
    module = ResidualMap("sin(t)", DOMAIN, tolerance)
    worst = climb(lambda *data: (module(*data) - exact_map("sin(t)", *data)).abs().amax(dim=(-1, -2)), DOMAIN, setting)
    return [module.certificate.bound, worst]


def _descent(name: str, tolerance: float, setting: Setting) -> list[float]:
    """On data near those that the descent was made for: its domain is a tube around a path."""
    draw = torch.Generator().manual_seed(setting.seed)
    x = normal(draw, 16, 2)
    y = x @ normal(draw, 2) + 0.1 * normal(draw, len(x))
    algorithm = GradientDescent(_loss(name), setting.sizes["steps"], l2=0.1 if name == "ridge" else 0.0)
    # A little shorter than 1/L, so that other data near these may have it, too.
    algorithm = replace(algorithm, step_size=0.9 * algorithm.resolved_step_size(x, y).item())
    module = DescentInContext.of(algorithm, x, y, tolerance)
    count, largest_x, largest_y = setting.sizes["datasets"], x.abs().max().item(), y.abs().max().item()
    xs = (x + uniform(draw, count, *x.shape, bound=0.02)).clamp(-largest_x, largest_x)
    ys = (y + uniform(draw, count, *y.shape, bound=0.02)).clamp(-largest_y, largest_y)
    keep = eigenvalues(xs)[:, 0] >= module.plan.strong_convexity
    xs, ys = (torch.cat([part[keep], own[None]]) for part, own in ((xs, x), (ys, y)))
    return [module.certificate.bound, largest(module(xs, ys), algorithm.run(xs, ys))]


def _loss(name: str) -> Loss:
    if name == "√(1 + t²)":
        return Loss.of("sqrt(1 + t**2)", curvature=1.0)
    return losses.squared() if name == "ridge" else losses.log_cosh()


def climb(error: Callable[..., Tensor], domain: Domain, setting: Setting) -> float:
    """Random data of the domain, the worst of them changed a little, again and again."""
    draw = torch.Generator().manual_seed(setting.seed)
    data = list(anywhere(domain, setting.sizes["datasets"], setting.seed))
    errors = error(*data)
    for reach in torch.logspace(-1, -6, setting.sizes["rounds"]).tolist():
        best = errors.topk(8).indices.repeat(len(errors) // 8)
        moved = [
            (part[best] + uniform(draw, *part[best].shape, bound=reach)).clamp(-limit, limit)
            for part, limit in zip(data, (domain.x, domain.y, domain.w), strict=True)
        ]
        new = error(*moved)
        errors, data = torch.cat([errors, new]), [torch.cat(pair) for pair in zip(data, moved, strict=True)]
        top = errors.topk(len(errors) // 2).indices
        errors, data = errors[top], [part[top] for part in data]
    return errors.max().item()


def judge_tightness(numbers: Numbers) -> Verdict:
    ratios = {kind: _ratios(numbers[kind]) for kind in KINDS}
    broken = [name for each in ratios.values() for name, values in each.items() if min(values) < 1]
    worst = {kind: max(max(values) for values in each.values()) for kind, each in ratios.items()}
    ours = "bound / worst error up to " + ", ".join(f"{value:.2g} ({kind})" for kind, value in worst.items())
    within = worst["interpolation"] <= INTERPOLATION_ALLOWED and worst["whole"] <= WHOLE_ALLOWED
    loosest = max(ratios["whole"], key=lambda name: max(ratios["whole"][name]))
    reason = f"{INTERPOLATION_ALLOWED:g} and {WHOLE_ALLOWED:g} allowed; of the whole, {loosest} is the loosest"
    return Verdict.that(within and not broken, ours, reason + (f"; broken: {', '.join(broken)}" if broken else ""))


def _ratios(kind: Numbers) -> dict[str, list[float]]:
    return {name: [bound / max(error, 1e-300) for bound, error in pairs] for name, pairs in kind.items()}


def draw_tightness(numbers: Numbers) -> Figure:
    panels = []
    for kind in KINDS:
        series = [Series(name, numbers["tolerances"], values) for name, values in _ratios(numbers[kind]).items()]
        panels.append(Panel("tolerance", "bound / worst error found", series, title=kind, log_x=True, log_y=True))
    return Figure(panels)


TOLERANCES = [1e-2, 1e-4, 1e-6]
TIGHTNESS = Claim(
    "ours-tightness",
    "ours, certificates",
    "Certificates are tight: within a factor 10 of the worst error for interpolation, 100 for descents.",
    "at most 10 and 100",
    {
        "small": Scale(0.5, {"tolerances": TOLERANCES, "points": 200_001, "datasets": 512, "rounds": 12, "steps": 50}),
        "paper": Scale(
            3, {"tolerances": [*TOLERANCES, 1e-8], "points": 1_000_001, "datasets": 1024, "rounds": 20, "steps": 100}
        ),
    },
    *(tightness, judge_tightness, draw_tightness),
    differs="The rule is about tolerances above the dtype's floor, where interpolation rules. Where rounding alone is "
    "left it is bounded in the worst case, and the bound lies about 10⁴ above what is seen (reported, not judged).",
)

GRIDS = {"sin(3*t)": ("paper", "spectral"), "Max(t, 0)": ("paper", "spectral", "piecewise")}


def keys(setting: Setting) -> Numbers:
    """Keys by function, kind of grid and tolerance, each with a proof that the tolerance is kept."""
    found: Numbers = {}
    for f, grids in GRIDS.items():
        for grid in grids:
            # Spectral grids converge slowly at a kink.
            floor = {"spectral": 1e-2, "piecewise": setting.sizes["kink_floor"]}.get(grid, 0.0) if "Max" in f else 0.0
            tolerances = [e for e in setting.sizes[grid] if e >= floor]
            count = []
            for tolerance in tolerances:
                setting.report_progress(f"{f}, {grid}, {tolerance:g}", len(found) / 5)
                count.append(approximate(f, (-1.0, 1.0), tolerance=tolerance, grid=grid).keys)
            found[f"{f}, {grid}"] = {"tolerances": tolerances, "keys": count}
    return found


def judge_keys(numbers: Numbers) -> Verdict:
    """The paper's keys grow like 1/ε; ours by at most a few for each factor ten."""
    sine, kink = numbers["sin(3*t), spectral"], numbers["Max(t, 0), piecewise"]
    powers = [_power(each) for name, each in numbers.items() if name.endswith("paper")]
    per_decade = max(_per_decade(sine), _per_decade(kink))
    paper = numbers["sin(3*t), paper"]
    ours = (
        f"sin(3t): {sine['keys'][-1]} keys at {sine['tolerances'][-1]:.0e} (the paper's grid {paper['keys'][-1]} at "
        f"{paper['tolerances'][-1]:.0e}); ReLU: {kink['keys'][-1]} at {kink['tolerances'][-1]:.0e}"
    )
    reason = f"the paper's keys grow like ε^-{min(powers):.2f}, ours by {per_decade:.1f} for a factor ten (3 allowed)"
    return Verdict.that(min(powers) > 0.8 and per_decade <= 3, ours, reason)


def _power(each: Numbers) -> float:
    """p in keys ≈ ε^−p."""
    (few, *_, many), (loose, *_, tight) = each["keys"], each["tolerances"]
    return math.log(float(many) / few) / math.log(loose / tight)


def _per_decade(each: Numbers) -> float:
    (few, *_, many), (loose, *_, tight) = each["keys"], each["tolerances"]
    return float(many - few) / math.log10(loose / tight)


def draw_keys(numbers: Numbers) -> Figure:
    panels = []
    for f in GRIDS:
        named = {name.split(", ")[-1]: each for name, each in numbers.items() if name.startswith(f)}
        series = [Series(grid, each["tolerances"], each["keys"]) for grid, each in named.items()]
        panels.append(Panel("tolerance", "keys", series, title=f, log_x=True, log_y=True))
    return Figure(panels)


PAPER = [0.4, 0.1, 0.025, 0.01, 4e-3]
OURS = [10.0**-k for k in range(1, 11)]
KEYS = Claim(
    "ours-keys",
    "ours, approximation",
    "Soft grids need O(log 1/ε) keys where the paper's need O(1/ε); with gates that holds at kinks, too.",
    "O(1/ε) keys for the grid of Hu et al. 2025, Theorem 3.1 (our inference from its proof)",
    {"small": Scale(0.5, {"paper": PAPER, "spectral": OURS, "piecewise": OURS, "kink_floor": 1e-8})},
    *(keys, judge_keys, draw_keys),
)
