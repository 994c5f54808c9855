"""How tight certificates are: bounds beside the worst errors that a search finds."""

from __future__ import annotations

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
    """The largest error on data near those that the descent was compiled for: its domain is a tube around a path."""
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
