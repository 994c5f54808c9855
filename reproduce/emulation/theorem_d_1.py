"""Theorem D.1: a truncated linear map by H heads that share a range; error against bound over H."""

from __future__ import annotations

import torch

from emulon.constructions import ScalarHeads, TruncatedLinear
from reproduce import bounded
from reproduce.bounded import Row, largest, uniform
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

TOKENS, FEATURES, LOW, HIGH = 12, 3, -1.0, 2.0


def run(setting: Setting) -> Numbers:
    draw = torch.Generator().manual_seed(setting.seed)
    batch = setting.sizes["datasets"]
    wide = uniform(draw, batch, TOKENS, FEATURES), uniform(draw, batch, FEATURES)
    # The paper's heads fall silent outside [a, b]: their bound is asked inside it only.
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
        ],
        "outside": outside(setting),
    }


def outside(setting: Setting) -> Numbers:
    """Errors against the truncation where w·x lies outside [a, b], which is the point of truncating."""
    draw = torch.Generator().manual_seed(setting.seed)
    x = uniform(draw, setting.sizes["datasets"], TOKENS, FEATURES)
    w = 1.4 * HIGH / FEATURES * torch.ones(len(x), FEATURES, dtype=torch.float64)
    score = (x @ w.unsqueeze(-1)).squeeze(-1)
    beyond, exact = (score < LOW) | (score > HIGH), score.clamp(LOW, HIGH)
    paper = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, heads=setting.sizes["heads"][-1], grid="paper")
    ours = TruncatedLinear(TOKENS, FEATURES, LOW, HIGH, setting.sizes["tolerances"][-1])
    # The module refuses such data; its heads are asked themselves.
    silent = paper.heads(x, w.unsqueeze(-2)).squeeze(-1)
    return {
        "tokens": int(beyond.sum()),
        "paper": largest(silent[beyond], exact[beyond]),
        "ours": largest(ours(x, w)[beyond], exact[beyond]),
        "bound": ours.certificate.bound,
    }


def judge(numbers: Numbers) -> Verdict:
    """As every construction, and outside [a, b] ours truncates within its bound."""
    inside, beyond = bounded.judge(numbers), numbers["outside"]
    reason = f"{inside.reason}; outside [a, b] the printed heads are off by {beyond['paper']:.1g}, ours by "
    holds = inside.state == "holds" and beyond["ours"] <= beyond["bound"]
    return Verdict.that(holds, inside.ours, f"{reason}{beyond['ours']:.0e} ({beyond['tokens']} tokens)")


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
    judge=judge,
    figure=bounded.figure,
    correction="Outside [a, b] all printed heads fall silent and give 0, not a or b; and with the printed spacing the "
    "last point is silent. With the spacing (b − a)/(p − 1) the bound holds inside; ours truncates on both sides.",
)
