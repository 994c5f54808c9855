"""Corollary 3.1.2: one head and a mean make one step of gradient descent; error against bound."""

from __future__ import annotations

from typing import Any

from emulon.algorithms import losses
from emulon.certify import Domain
from emulon.constructions import GradientStep
from reproduce import bounded
from reproduce.bounded import Row, anywhere, largest
from reproduce.claim import Claim, Numbers, Scale, Setting

DOMAIN = Domain(samples=20, features=8, x=1.0, y=1.0, w=1.0)
STEP_SIZE = 0.5


def run(setting: Setting) -> Numbers:
    x, y, w = anywhere(DOMAIN, setting.sizes["datasets"], setting.seed)

    def measured(name: str, **options: Any) -> Row:
        built = GradientStep(name, DOMAIN, step_size=STEP_SIZE, **options)
        slopes = getattr(losses, name)().slope((x @ w.unsqueeze(-1)).squeeze(-1) - y)
        exact = w - STEP_SIZE * (slopes.unsqueeze(-1) * x).mean(dim=-2)
        return built.f.keys, largest(built(x, y, w), exact), built.certificate.bound

    points, tolerances = setting.sizes["points"], setting.sizes["tolerances"]
    return {
        "curves": [
            bounded.curve(
                setting, "paper's grid, squared", "keys", points, lambda k: measured("squared", points=k, grid="paper")
            ),
            bounded.curve(setting, "ours, squared", "keys", tolerances, lambda e: measured("squared", tolerance=e)),
            bounded.curve(
                setting, "ours, log-cosh", "keys", tolerances[-1:], lambda e: measured("log_cosh", tolerance=e)
            ),
        ]
    }


CLAIM = Claim(
    name="emulation-corollary-3.1.2",
    source="Hu et al. 2025, Corollary 3.1.2",
    statement="One softmax head with a readout by the mean makes one step of gradient descent, to any precision.",
    theirs="error ≤ ε for any ε > 0",
    scales={
        "small": Scale(
            0.2, {"points": [17, 33, 65, 129, 257], "tolerances": [1e-2, 1e-4, 1e-6, 1e-8, 1e-10], "datasets": 50}
        ),
        "paper": Scale(
            0.2, {"points": [17, 65, 257, 1025], "tolerances": [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12], "datasets": 100}
        ),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="The values carry w, without which the readout gives −η∇ and not w − η∇. η is 0.5 and data are uniform on "
    "a stated domain.",
)
