"""Error against bound over sizes: what the claims about constructions measure, judge and draw alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from emulon.certify import Domain
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Numbers, Setting, Verdict

Asked = TypeVar("Asked", int, float)
# A size, the largest error found there, and what the certificate promises.
Row = tuple[int | float, float, float]
# The sources' constructions are of first order: error about 1/size. This much of it must be seen.
SLOWEST = -0.7


def curve(
    setting: Setting, name: str, x_label: str, asked: Sequence[Asked], measured: Callable[[Asked], Row]
) -> Numbers:
    """`measured` for everything that is asked for: a number of points or heads, or a tolerance."""
    rows = []
    for done, each in enumerate(asked):
        setting.report_progress(f"{name}, {each:g}", done / len(asked))
        rows.append(measured(each))
    sizes, errors, bounds = (list(part) for part in zip(*rows, strict=True))
    return {"name": name, "x": x_label, "sizes": sizes, "errors": errors, "bounds": bounds}


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
