"""Figure 3, left: learners of 32 units and more match least squares; only the narrowest are nearer to ridge."""

from __future__ import annotations

from emulon.report.figure import Figure
from reproduce.claim import Claim, Numbers, Scale, Setting, SetUp, Verdict
from reproduce.learning.figure_3 import (
    DATA,
    DESCENT,
    FIXED,
    FIXED_RIDGE,
    LEAST,
    QUICK,
    by_size,
    panel,
    phases,
)

# "even modest hidden sizes (32 units) rapidly match OLS"
MODEST = 32


def run(setting: Setting) -> Numbers:
    """Train a learner of every width for every seed, and measure what each phase leaves of it unexplained."""
    return {"width": by_size("width", setting.sizes["widths"], setting)}


def judge(numbers: Numbers) -> Verdict:
    """For every seed, by Figure 3's rule for ties: every width of 32 and more is nearest to least squares, and no width
    is nearest to descent. The fixed λ is told beside it."""
    holds, shown, reasons = True, [], []
    for seed in sorted({row["seed"] for row in numbers["width"]}):
        rows = [row for row in numbers["width"] if row["seed"] == seed]
        sizes, named, fixed = [row["size"] for row in rows], phases(rows), phases(rows, FIXED_RIDGE)
        assert named is not None and fixed is not None  # every run of this claim asks for all
        own = dict(zip(sizes, named, strict=True))
        holds = holds and all(own[size] == LEAST for size in sizes if size >= MODEST) and DESCENT not in named
        shown.append(", ".join(f"{size}: {name}" for size, name in own.items()))
        left = ", ".join(f"{row['unexplained'][LEAST]['value']:.2g}" for row in rows)
        reasons.append(f"seed {seed}: least squares leaves {left}; with λ = {FIXED:g} {', '.join(fixed)}")
    return Verdict.that(holds, f"by width {'; '.join(shown)}", ". ".join(reasons))


def figure(numbers: Numbers) -> Figure:
    return Figure([panel(numbers["width"], "width")])


AT_SCALE = {"recipe": "fast", "task": "linear", "features": 8, "points": 41, "noise": 0.0, "compile": "block"}
AT_SCALE |= {"layers": 16, "width": 512, "heads": 4, "batch": 64, "steps": 5000, "evaluate_every": 5000}
CLAIM = Claim(
    name="learning-figure-3-width",
    source="Akyürek et al. 2022, Figure 3, width",
    statement="Learners of 32 units and more match least squares; only the narrowest are nearer to ridge.",
    theirs="no strong effect of width: 32 units match least squares, very narrow learners are slightly nearer to ridge",
    scales={
        "small": Scale(1.0, {"training": QUICK, "widths": [16, 32, 64], "datasets": 512}, at_source_scale=False),
        "gpu": Scale(
            12,
            {"training": AT_SCALE, "widths": [32, 64, 16, 256, 512, 1024], "datasets": 512, "seeds": 3},
            set_up=(
                DATA,
                SetUp("model", "16 to 1024 wide, depth and heads by search", "16 to 1024 wide, 16 layers, 4 heads"),
                SetUp("optimiser", "Adam, 1e-4, cosine with warm-up", "Muon, 0.01, linear", "does not hold"),
                SetUp("steps × batch", "500,000 × 64", "5,000 × 64", "does not hold"),
                SetUp("seeds", "not stated", "3"),
                SetUp("ridge parameter", "not stated", "the one that fits each learner best"),
            ),
        ),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="On a CPU learners of d = 2 and 4 layers, trained for 1,200 steps.",
)
