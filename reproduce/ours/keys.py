"""How many keys a softmax needs for a tolerance: the paper's grid, and ours."""

from __future__ import annotations

import math

from emulon.report.figure import Figure, Panel, Series
from emulon.softmax import approximate
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

FUNCTIONS = {"sin(3*t)": ("paper", "spectral"), "Max(t, 0)": ("paper", "spectral", "piecewise")}
INTERVAL = (-1.0, 1.0)


def run(setting: Setting) -> Numbers:
    """Keys by function, kind of grid and tolerance, each with a proof that the tolerance is kept."""
    found: Numbers = {}
    for f, grids in FUNCTIONS.items():
        for grid in grids:
            tolerances = [e for e in setting.sizes[grid] if not (grid == "spectral" and "Max" in f) or e >= 1e-2]
            if "Max" in f and grid == "piecewise":
                tolerances = [e for e in tolerances if e >= setting.sizes["kink_floor"]]
            keys = []
            for tolerance in tolerances:
                setting.report_progress(f"{f}, {grid}, {tolerance:g}", len(found) / 5)
                keys.append(approximate(f, INTERVAL, tolerance=tolerance, grid=grid).keys)
            found[f"{f}, {grid}"] = {"tolerances": tolerances, "keys": keys}
    return found


def judge(numbers: Numbers) -> Verdict:
    """The paper's keys grow like 1/ε; ours by at most a few for each factor ten."""
    sine, kink = numbers["sin(3*t), spectral"], numbers["Max(t, 0), piecewise"]
    powers = [_power(each) for name, each in numbers.items() if name.endswith("paper")]
    per_decade = max(_per_decade(sine), _per_decade(kink))
    paper = numbers["sin(3*t), paper"]
    ours = (
        f"sin(3t): {sine['keys'][-1]} keys at {sine['tolerances'][-1]:.0e} (the paper's grid {paper['keys'][-1]} at "
        f"{paper['tolerances'][-1]:.0e}); ReLU: {kink['keys'][-1]} at {kink['tolerances'][-1]:.0e}"
    )
    reason = f"the paper's keys grow like ε^-{min(powers):.2f}, ours by {per_decade:.1f} for a factor ten (3 allowed)"
    return Verdict.that(min(powers) > 0.8 and per_decade <= 3, ours, reason)


def _power(each: Numbers) -> float:
    """p in keys ≈ ε^−p."""
    (few, *_, many), (loose, *_, tight) = each["keys"], each["tolerances"]
    return math.log(float(many) / few) / math.log(loose / tight)


def _per_decade(each: Numbers) -> float:
    (few, *_, many), (loose, *_, tight) = each["keys"], each["tolerances"]
    return float(many - few) / math.log10(loose / tight)


def figure(numbers: Numbers) -> Figure:
    panels = []
    for f in FUNCTIONS:
        named = {name.split(", ")[-1]: each for name, each in numbers.items() if name.startswith(f)}
        series = [Series(grid, each["tolerances"], each["keys"]) for grid, each in named.items()]
        panels.append(Panel("tolerance", "keys", series, title=f, log_x=True, log_y=True))
    return Figure(panels)


PAPER = [0.4, 0.1, 0.025, 0.01]
OURS = [10.0**-k for k in range(1, 11)]
CLAIM = Claim(
    name="ours-keys",
    source="ours, approximation",
    statement="Soft grids need O(log 1/ε) keys where the paper's need O(1/ε); with gates that holds at kinks, too.",
    theirs="O(1/ε) keys for the grid of Hu et al. 2025, Theorem 3.1 (our inference from its proof)",
    scales={
        "small": Scale(0.5, {"paper": PAPER, "spectral": OURS, "piecewise": OURS, "kink_floor": 1e-7}),
        "paper": Scale(0.5, {"paper": [*PAPER, 4e-3], "spectral": OURS, "piecewise": OURS, "kink_floor": 1e-8}),
    },
    run=run,
    judge=judge,
    figure=figure,
)
