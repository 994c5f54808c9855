"""Theorem 3.1: one softmax head gives f(w·x − y)·x for every sample; error against bound over the grid's points."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from emulon.certify import Domain
from emulon.constructions import HopfieldResidualMap, ResidualMap
from emulon.expressions import parse
from reproduce import bounded
from reproduce.bounded import Row, anywhere, largest
from reproduce.claim import Claim, Numbers, Scale, ScaleName, Setting

# The sizes of section 5.1: sequences of 20, 24 features.
DOMAIN = Domain(samples=20, features=24, x=1.0, y=1.0, w=0.5)
Map = Callable[..., ResidualMap | HopfieldResidualMap]


def curves(construct: Map, setting: Setting) -> Numbers:
    """The paper's grid over its points, ours over the keys that a tolerance takes."""
    data = anywhere(DOMAIN, setting.sizes["datasets"], setting.seed)

    def measured(f: str, **options: object) -> Row:
        built = construct(f, DOMAIN, **options)
        return built.f.keys, largest(built(*data), exact_map(f, *data)), built.certificate.bound

    points, tolerances = setting.sizes["points"], setting.sizes["tolerances"]
    tanh, sin = "tanh(t)", "sin(t)"
    return {
        "curves": [
            bounded.curve(
                setting, "paper's grid, tanh", "keys", points, lambda k: measured(tanh, points=k, grid="paper")
            ),
            bounded.curve(
                setting, "paper's grid, sin", "keys", points, lambda k: measured(sin, points=k, grid="paper")
            ),
            bounded.curve(setting, "ours, tanh", "keys", tolerances[-1:], lambda e: measured(tanh, tolerance=e)),
            bounded.curve(setting, "ours, sin", "keys", tolerances, lambda e: measured(sin, tolerance=e)),
        ]
    }


def exact_map(f: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    residual = (x @ w.unsqueeze(-1)).squeeze(-1) - y
    return parse(f)(residual).unsqueeze(-1) * x


def run(setting: Setting) -> Numbers:
    return curves(ResidualMap, setting)


TOLERANCES = [1e-2, 1e-4, 1e-6, 1e-8, 1e-10]
SCALES: dict[ScaleName, Scale] = {
    "small": Scale(0.3, {"points": [33, 65, 129, 257, 513], "tolerances": TOLERANCES, "datasets": 20}),
    "paper": Scale(2, {"points": [65, 257, 1025, 2049], "tolerances": TOLERANCES, "datasets": 100}),
}
CLAIM = Claim(
    name="emulation-theorem-3.1",
    source="Hu et al. 2025, Theorem 3.1",
    statement="One softmax head with a linear layer gives f(w·x − y)·x for every sample, to any precision.",
    theirs="error ≤ ε for any ε > 0 (P = O(1/ε) grid points: our inference from the proof)",
    scales=SCALES,
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="The routing constant is the corrected one (the printed one is half of what its own footnote derives). "
    "Data are uniform on a stated domain, |x|, |y| ≤ 1 and |w| ≤ ½, as a bound needs one.",
)
