"""Error against bound over sizes: measurement, rule and figure of the claims about constructions; and their data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, ScaleName, Setting, Verdict

# A size, the largest error found there, and the bound of the certificate.
Row = tuple[int | float, float, float]
# By the name of a list of sizes: the option that takes each, and whether the grid is the paper's.
WAYS = {
    **{"points": ("points", True), "heads": ("heads", True)},
    **{"soft": ("points", False), "tolerances": ("tolerance", False), "tightest": ("tolerance", False)},
}
# The sources' constructions are of first order, error about 1/size; an exponent below this is asked for.
SLOWEST = -0.7


def curves(
    setting: Setting,
    measured: Callable[..., Row],
    each: Mapping[str, tuple[Any, ...]],
    labels: Mapping[str, str] | None = None,
) -> Numbers:
    """`measured(*arguments, **option)` over a list of sizes, for every curve.

    Args:
        setting: Its sizes have the lists that are named in WAYS; "tightest" is the last of the tolerances.
        measured: A size, the error there and its bound.
        each: By the curve's name: the list of sizes, and arguments of `measured`. The paper's construction comes first.
        labels: What a list of sizes counts; default: keys.
    """
    found = []
    for done, (name, (what, *arguments)) in enumerate(each.items()):
        option, paper = WAYS[what]
        asked = setting.sizes["tolerances"][-1:] if what == "tightest" else setting.sizes[what]
        rows = []
        for size in asked:
            setting.report_progress(f"{name}, {size:g}", done / len(each))
            rows.append(measured(*arguments, **{option: size}, **({"grid": "paper"} if paper else {})))
        sizes, errors, bounds = (list(part) for part in zip(*rows, strict=True))
        label = (labels or {}).get(what, "keys")
        found.append({"name": name, "x": label, "sizes": sizes, "errors": errors, "bounds": bounds})
    return {"curves": found}


def rate(found: Numbers) -> float:
    """The exponent r with error ≈ size^r, from the first size to the last."""
    (first, *_, last), (before, *_, after) = found["sizes"], found["errors"]
    return math.log(max(after, 1e-300) / max(before, 1e-300)) / math.log(last / first)


def kept(found: Numbers) -> bool:
    return all(error <= bound for error, bound in zip(found["errors"], found["bounds"], strict=True))


def judge(numbers: Numbers) -> Verdict:
    """The first curve is the source's own construction, the others are ours: all keep their bounds, the first falls."""
    paper, *ours = numbers["curves"]
    broken = [each["name"] for each in numbers["curves"] if not kept(each)]
    fall = rate(paper)
    reached = "".join(f"; {each['name']} {min(each['errors']):.1e} at {each['sizes'][-1]:g}" for each in ours)
    shown = f"{paper['name']} {paper['errors'][-1]:.1e} at {paper['sizes'][-1]:g} {paper['x']}{reached}"
    bounds = f"bound broken by {', '.join(broken)}" if broken else "no error above its bound"
    return Verdict.that(not broken and fall <= SLOWEST, shown, f"{bounds}; error ~ size^{fall:.2f} ({SLOWEST} asked)")


def figure(numbers: Numbers) -> Figure:
    """One panel for every kind of size; bounds are dashed, in the colour of their errors."""
    panels: dict[str, list[Series]] = {}
    for each in numbers["curves"]:
        series = panels.setdefault(each["x"], [])
        series.append(Series(f"{each['name']}, error", each["sizes"], each["errors"]))
        bound = Series(f"{each['name']}, bound", each["sizes"], each["bounds"], "dashes", of=series[-1].label)
        series.append(bound)
    return Figure([Panel(x, "largest error", series, log_x=True, log_y=True) for x, series in panels.items()])


def claim(
    name: str,
    source: str,
    statement: str,
    run: Callable[[Setting], Numbers],
    scales: Mapping[ScaleName, Scale],
    theirs: str = "error ≤ ε for any ε > 0",
    judge: Callable[[Numbers], Verdict] = judge,
    **words: str,
) -> Claim:
    """A claim of Hu et al. 2025 that is judged and drawn as above."""
    return Claim(name, f"Hu et al. 2025, {source}", statement, theirs, scales, run, judge, figure, **words)


def uniform(draw: torch.Generator, *shape: int, bound: float = 1.0) -> Tensor:
    """Anywhere in ±bound, in float64."""
    return (torch.rand(*shape, dtype=torch.float64, generator=draw) * 2 - 1) * bound


def normal(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def anywhere(domain: Domain, batch: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, y and w anywhere in the domain."""
    draw = torch.Generator().manual_seed(seed)
    n, d = domain.samples, domain.features
    x, y = uniform(draw, batch, n, d, bound=domain.x), uniform(draw, batch, n, bound=domain.y)
    return x, y, uniform(draw, batch, d, bound=domain.w)


def largest(observed: Tensor, exact: Tensor) -> float:
    return (observed.double() - exact).abs().max().item()
