"""Corollary 4.2.1: one frozen two-layer module runs a finite collection of algorithms, chosen by the prompt."""

from __future__ import annotations

from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.library import through_one_interpreter

COLLECTION = ("linear_regression", "ridge", "lasso")
NEAR = 1e-6


def run(setting: Setting) -> Numbers:
    return through_one_interpreter(COLLECTION, setting)


def judge(numbers: Numbers) -> Verdict:
    """One hash throughout, every error within its bound, and small."""
    found = numbers["algorithms"]
    kept = all(each["error"] <= each["bound"] for each in found.values() if not each["in_band"])
    worst = max(each["error"] for each in found.values())
    same = len(numbers["hashes"]) == 1
    ours = ", ".join(f"{name.removesuffix('_regression')} {each['error']:.0e}" for name, each in found.items())
    frozen = f"one module, sha256 {numbers['hashes'][0][:8]}" if same else "the module's hash changed"
    bounds = "no error above its bound" if kept else "a bound is broken"
    return Verdict.that(
        same and kept and worst <= NEAR, ours, f"{frozen}; {bounds}; worst {worst:.0e} ({NEAR:g} asked)"
    )


def figure(numbers: Numbers) -> Figure:
    found = numbers["algorithms"]
    names = [name.removesuffix("_regression").replace("_", "\n") for name in found]
    series = [
        Series(key, names, [max(each[key], 1e-17) for each in found.values()], mark="bars")
        for key in ("error", "bound")
    ]
    return Figure([Panel("", "distance of the final weights", series, log_y=True)])


CLAIM = Claim(
    name="emulation-corollary-4.2.1",
    source="Hu et al. 2025, Corollary 4.2.1",
    statement="One frozen two-layer attention module runs any finite collection of algorithms, chosen by the prompt.",
    theirs="error ≤ ε for any ε > 0",
    scales={
        "small": Scale(0.3, {"samples": 32, "features": 4, "steps": 60}),
        "paper": Scale(0.2, {"samples": 48, "features": 24, "steps": 200}),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="Each algorithm is iterated, its result written back into the prompt, where the corollary speaks of one "
    "pass. Errors are those of the last weights against the exact algorithm in float64.",
)
