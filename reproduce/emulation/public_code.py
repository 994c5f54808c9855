"""The public code's two other experiments: the handcrafted emulator over (d, β) and over the number of tokens."""

from __future__ import annotations

from typing import Any

import torch

from emulon.constructions import HeadInTokens
from emulon.report.figure import Figure, Panel, Series
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.emulation.table_4 import RANGE, exact_head

# att_sim_attn_frozen.py --tune and --plotN, as its README calls them.
TUNE: dict[str, Any] = {"tokens": 12, "points": 66, "features": [4, 8, 12, 16], "betas": [2.0, 4.0, 8.0, 16.0]}
PLOT: dict[str, Any] = {"tokens": [1, 2, 4, 6, 8, 12], "points": 100, "features": 4, "beta": 8.0}


def run(setting: Setting) -> Numbers:
    """Mean squared errors of the paper's grid, and of ours, which chooses its own β."""
    heads = setting.sizes["heads"]
    tuned: Numbers = {}
    for done, d in enumerate(TUNE["features"]):
        setting.report_progress(f"--tune, d = {d}", 0.7 * done / len(TUNE["features"]))
        paper = [error(setting, heads, TUNE["tokens"], d, TUNE["points"], beta) for beta in TUNE["betas"]]
        tuned[str(d)] = {"paper": paper, "ours": error(setting, heads, TUNE["tokens"], d, TUNE["points"])}
    plotted: Numbers = {"paper": [], "ours": []}
    for tokens in PLOT["tokens"]:
        setting.report_progress(f"--plotN, n = {tokens}", 0.8)
        plotted["paper"].append(error(setting, heads, tokens, PLOT["features"], PLOT["points"], PLOT["beta"]))
        plotted["ours"].append(error(setting, heads, tokens, PLOT["features"], PLOT["points"]))
    return {"tune": tuned, "plotN": plotted}


def error(setting: Setting, heads: int, tokens: int, features: int, points: int, beta: float | None = None) -> float:
    """Over heads drawn as for Table 4, in float64; the grid's range grows with √d, as the scores do."""
    draw = torch.Generator().manual_seed(setting.seed)
    x = torch.rand(heads, tokens, features, generator=draw, dtype=torch.float64) * 2 - 1
    weights = list(torch.randn(3, heads, tokens, features, generator=draw, dtype=torch.float64))
    way: dict[str, Any] = {} if beta is None else {"grid": "paper", "grid_beta": beta}
    reach = RANGE * (features / 4) ** 0.5
    module = HeadInTokens(tokens, features, tokens, reach, points=points + 1, **way)
    return float((module(x, *weights) - exact_head(x, *weights)).square().mean())


def judge(numbers: Numbers) -> Verdict:
    """No number is printed to compare with: ours must be below the paper's grid in every cell."""
    cells = [(paper, each["ours"]) for each in numbers["tune"].values() for paper in each["paper"]]
    cells += list(zip(numbers["plotN"]["paper"], numbers["plotN"]["ours"], strict=True))
    below = sum(ours < paper for paper, ours in cells)
    best, worst = (pick(paper for paper, _ in cells) for pick in (min, max))
    shown = (
        f"MSE {best:.0e} to {worst:.0e} with the paper's grid, at most {max(ours for _, ours in cells):.0e} with ours"
    )
    return Verdict.that(below == len(cells), shown, f"ours below the paper's in {below} of {len(cells)} cells")


def figure(numbers: Numbers) -> Figure:
    tune = [Series(f"d = {d}", TUNE["betas"], each["paper"]) for d, each in numbers["tune"].items()]
    plot = [Series(name, PLOT["tokens"], values) for name, values in numbers["plotN"].items()]
    return Figure(
        [
            Panel("β", "mean squared error", tune, title=f"--tune, P = {TUNE['points']}", log_x=True, log_y=True),
            Panel("tokens n", "mean squared error", plot, title=f"--plotN, P = {PLOT['points']}", log_y=True),
        ]
    )


CLAIM = Claim(
    name="emulation-code",
    source="Hu et al. 2025, public code (--tune, --plotN)",
    statement="The handcrafted emulator works over d, β and the number of tokens.",
    theirs="commands without printed numbers: P = 66 over d and β, P = 100 over n",
    scales={"small": Scale(0.2, {"heads": 16})},
    run=run,
    judge=judge,
    figure=figure,
    differs="16 heads a cell, where the code draws 2 to 16; the range of the grid, which is not given, is that which "
    "fits Table 4, times √(d/4).",
)
