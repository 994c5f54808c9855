"""Theorem D.1: a truncated linear map by H heads that share a range; error against bound over H."""

from __future__ import annotations

import torch

from emulon.claims import bounded
from emulon.claims.bounded import Row, largest, uniform
from emulon.claims.claim import Claim, Numbers, Scale, Setting
from emulon.constructions import ScalarHeads, TruncatedLinear

TOKENS, FEATURES, LOW, HIGH = 12, 3, -1.0, 2.0


def run(setting: Setting) -> Numbers:
    draw = torch.Generator().manual_seed(setting.seed)
    batch = setting.sizes["datasets"]
    wide = uniform(draw, batch, TOKENS, FEATURES), uniform(draw, batch, FEATURES)
    # The paper's heads fall silent outside [a, b]: they are asked inside it only.
    narrow = uniform(draw, batch, TOKENS, FEATURES, bound=0.6), uniform(draw, batch, FEATURES, bound=0.55)

    def sharp(heads: int) -> Row:
        built = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, heads=heads, grid="paper")
        x, w = narrow
        return heads, largest(built(x, w), (x @ w.unsqueeze(-1)).squeeze(-1)), built.certificate.bound

    def soft(tolerance: float) -> Row:
        built = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, tolerance)
        x, w = wide
        exact = (x @ w.unsqueeze(-1)).squeeze(-1).clamp(LOW, HIGH)
        assert isinstance(built.heads, ScalarHeads)
        return built.heads.f.keys, largest(built(x, w), exact), built.certificate.bound

    return {
        "curves": [
            bounded.curve(setting, "paper's heads", "heads of 12 tokens", setting.sizes["heads"], sharp),
            bounded.curve(setting, "ours, one head, clipping", "keys", setting.sizes["tolerances"], soft),
        ]
    }


CLAIM = Claim(
    name="emulation-theorem-d.1",
    source="Hu et al. 2025, Theorem D.1",
    statement="H softmax heads of n tokens give a truncated linear function of every token.",
    theirs="error ≤ ε with H = 2(b − a)/((n − 2)ε) heads of n tokens",
    scales={
        "small": Scale(0.1, {"heads": [4, 8, 16, 32, 64], "tolerances": [1e-2, 1e-4, 1e-6], "datasets": 200}),
        "paper": Scale(0.1, {"heads": [4, 16, 64, 256], "tolerances": [1e-2, 1e-4, 1e-6, 2e-7], "datasets": 1000}),
    },
    run=run,
    judge=bounded.judge,
    figure=bounded.figure,
    differs="The spacing is (b − a)/(p − 1), as with the printed one the last point is silent; outside [a, b] the "
    "paper's heads give 0, not a or b, and are asked inside it only. Ours clips on both sides.",
)
