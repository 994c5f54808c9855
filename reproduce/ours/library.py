"""The whole library through one frozen interpreter: the same module, the same hash, another prompt each."""

from __future__ import annotations

from reproduce.claim import Claim, Numbers, Scale, Setting
from reproduce.emulation import corollary_4_2_1
from reproduce.library import all_names, through_one_interpreter


def run(setting: Setting) -> Numbers:
    return through_one_interpreter(all_names(), setting)


CLAIM = Claim(
    name="ours-library",
    source="ours, interpreter",
    statement="One frozen module runs every gradient-descent algorithm of the library, each from its prompt alone.",
    theirs="one module for all; errors within their bounds and at most 1e-6",
    scales={
        "small": Scale(0.5, {"samples": 32, "features": 4, "steps": 60}),
        "paper": Scale(5, {"samples": 128, "features": 10, "steps": 200}),
    },
    run=run,
    judge=corollary_4_2_1.judge,
    figure=corollary_4_2_1.figure,
)
