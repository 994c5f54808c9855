"""Figure 3: learners by depth (descent, ridge, least squares) and by width (least squares from 32 units on)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from emulon.identification import Prefixes, Reference, identify, reference_named
from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import Linear
from emulon.training import TrainConfig
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up
from reproduce.learners import trained

# In the order of the paper's phases.
DESCENT, RIDGE, LEAST = "descent", "ridge", "least squares"
PHASES = (DESCENT, RIDGE, LEAST)
# Beside the fitted ridge parameter: the one that Figure 1 has.
FIXED, FIXED_RIDGE = 0.1, "ridge, λ = 0.1"
DESCENT_ON_THE_SUM = reference_named("gradient descent on the sum")
FITTED_RIDGE = reference_named("ridge")


def one_step(prefixes: Prefixes, integers: torch.Tensor, continuous: torch.Tensor) -> torch.Tensor:
    return DESCENT_ON_THE_SUM.respond(prefixes, torch.ones_like(integers), continuous)


def fixed_ridge(prefixes: Prefixes, integers: torch.Tensor, continuous: torch.Tensor) -> torch.Tensor:
    return FITTED_RIDGE.respond(prefixes, integers, torch.full_like(continuous, FIXED))


# One step on the sum of squares, as the paper has it, with the step size that fits best.
ONE_STEP = Reference("one step of descent", "one step", one_step, continuous=DESCENT_ON_THE_SUM.continuous)
WITH_FIXED = Reference(FIXED_RIDGE, "least squares", fixed_ridge)
REFERENCES = [reference_named("ols"), FITTED_RIDGE, WITH_FIXED, ONE_STEP]
NAMES = {DESCENT: ONE_STEP.name, RIDGE: "ridge", LEAST: "ols", FIXED_RIDGE: WITH_FIXED.name}


def over_depth(setting: Setting) -> Numbers:
    """Train a learner of every depth for every seed, and measure what each phase leaves of it unexplained."""
    return {"layers": by_size("layers", setting.sizes["depths"], setting)}


def by_size(what: str, sizes: Sequence[int], setting: Setting) -> list[Numbers]:
    """One row for every seed and size of `what`, which is a field of TrainConfig."""
    every = {f"{what} {size}, seed {seed}": (size, seed) for size in sizes for seed in setting.seeds}
    measures = {}
    for name, (size, seed) in every.items():
        config = TrainConfig.following(**setting.sizes["training"] | {what: size, "seed": seed})
        measures[name] = partial(left_unexplained, config)
    found = setting.parts(measures).items()
    rows: list[Numbers] = [dict(zip(("size", "seed"), every[name], strict=True)) | row for name, row in found]
    return sorted(rows, key=lambda row: (row["seed"], row["size"]))


def left_unexplained(config: TrainConfig, setting: Setting) -> Numbers:
    """Of one learner: by the nearest of every phase, with bootstrap intervals."""
    fitted = trained(config, setting)
    datasets = setting.sizes["datasets"]
    task = Linear(config.task.features)
    identification = identify(fitted.learner, task, references=REFERENCES, seed=setting.seed, datasets=datasets)
    left = {phase: dataclasses.asdict(identification[name].unexplained) for phase, name in NAMES.items()}
    ridge = identification["ridge"].parameters["ridge"]
    error = fitted.curve[config.task.features] / config.task.features
    return {"unexplained": left, "ridge": ridge, "error_after_d": error, "seconds": fitted.seconds}


def phase(left: dict[str, Any], ridge: str = RIDGE) -> str:
    """The nearest phase. One rule for both ties: ridge has descent and least squares as its limits, so that it is only
    named where it is clearly nearer than either; a limit within the interval of ridge's mean takes its place.
    """
    least = min(PHASES, key=lambda name: left[ridge if name == RIDGE else name]["value"])
    if least != RIDGE:
        return least
    limits = [name for name in (DESCENT, LEAST) if left[name]["value"] <= left[ridge]["high"]]
    return min(limits, key=lambda name: left[name]["value"], default=RIDGE)


def phases(rows: Sequence[Numbers], ridge: str = RIDGE) -> list[str]:
    return [phase(row["unexplained"], ridge) for row in rows]


def by_seed(rows: Sequence[Numbers]) -> dict[int, list[Numbers]]:
    return {seed: [row for row in rows if row["seed"] == seed] for seed in sorted({row["seed"] for row in rows})}


def left_by(rows: Sequence[Numbers]) -> list[float]:
    """What least squares leaves unexplained."""
    return [row["unexplained"][LEAST]["value"] for row in rows]


def with_fixed(rows: Sequence[Numbers]) -> str:
    if any(FIXED_RIDGE not in row["unexplained"] for row in rows):
        return "a fixed λ was not asked for"
    return f"with λ = {FIXED:g} {', '.join(phases(rows, FIXED_RIDGE))}"


def judge_depth(numbers: Numbers) -> Verdict:
    """For every seed, with the fitted λ: all three phases in the paper's order as depth grows, never back; and what
    least squares leaves unexplained falls with every step in depth. The fixed λ is shown beside it."""
    holds, shown, reasons = True, [], []
    for seed, rows in by_seed(numbers["layers"]).items():
        named, left = phases(rows), left_by(rows)
        rises = all(PHASES.index(before) <= PHASES.index(after) for before, after in pairwise(named))
        whole = set(named) == set(PHASES)
        falls = all(before > after for before, after in pairwise(left))
        holds = holds and rises and whole and falls
        shown.append(", ".join(f"{row['size']}: {name}" for row, name in zip(rows, named, strict=True)))
        reasons.append(
            f"seed {seed}: {'rises' if rises else 'does not rise'} with depth, {'' if whole else 'not '}through all "
            f"three phases; least squares leaves {', '.join(f'{each:.2g}' for each in left)}, "
            f"{'falling' if falls else 'not always falling'}; {with_fixed(rows)}"
        )
    return Verdict.that(holds, f"by depth {'; '.join(shown)}", ". ".join(reasons))


def draw_sizes(numbers: Numbers) -> Figure:
    """Of the first seed: what each phase leaves unexplained over the size, with its interval."""
    [(label, rows)] = numbers.items()
    own, series = next(iter(by_seed(rows).values())), []
    for name in (*PHASES, FIXED_RIDGE):
        told = [(row["size"], row["unexplained"][name]) for row in own if name in row["unexplained"]]
        if told:
            value, low, high = ([each[part] for _, each in told] for part in ("value", "low", "high"))
            series.append(Series(name, [size for size, _ in told], value, low=low, high=high))
    return Figure([Panel(label, "unexplained by", series, log_x=True, log_y=True)])


# "even modest hidden sizes (32 units) rapidly match OLS"
MODEST = 32


def over_width(setting: Setting) -> Numbers:
    """Train a learner of every width for every seed, and measure what each phase leaves of it unexplained."""
    return {"width": by_size("width", setting.sizes["widths"], setting)}


def judge_width(numbers: Numbers) -> Verdict:
    """For every seed, by Figure 3's rule for ties: every width of 32 and more is nearest to least squares, and no width
    is nearest to descent. The fixed λ is shown beside it."""
    holds, shown, reasons = True, [], []
    for seed, rows in by_seed(numbers["width"]).items():
        own = dict(zip([row["size"] for row in rows], phases(rows), strict=True))
        holds = holds and all(own[size] == LEAST for size in own if size >= MODEST) and DESCENT not in own.values()
        shown.append(", ".join(f"{size}: {name}" for size, name in own.items()))
        left = ", ".join(f"{each:.2g}" for each in left_by(rows))
        reasons.append(f"seed {seed}: least squares leaves {left}; {with_fixed(rows)}")
    return Verdict.that(holds, f"by width {'; '.join(shown)}", ". ".join(reasons))


TRAINING = {"task": "linear", "noise": 0.0, "layers": 4, "heads": 4, "init": 0.08, "schedule": "cosine", "width": 32}
QUICK = TRAINING | {"features": 2, "points": 8, "steps": 1200, "lr": 2e-3, "warmup": 100}
AT_SCALE = {"recipe": "fast", "task": "linear", "features": 8, "points": 41, "noise": 0.0, "compile": "block"}
AT_SCALE |= {"layers": 16, "heads": 4, "steps": 5000, "evaluate_every": 5000}
DEEP = AT_SCALE | {"width": 256, "batch": 128}
# The paper's model and batch.
WIDE = AT_SCALE | {"width": 512, "batch": 64}
RECIPE = """
data | d = 8, 40 pairs, x and w normal, no noise | the same
optimiser | Adam, 1e-4, cosine with warm-up | Muon, 0.01, linear | does not hold
seeds | not stated | 3
"""
FITTED = "ridge parameter | not stated | the one that fits each learner best"
DEPTH_SET_UP = f"""{RECIPE}{FITTED}
model | 1, 2, 4, 8, 12, 16 layers, width and heads by search | 1 to 16 layers of 256, 4 heads
steps × batch | 500,000 × 64 | 5,000 × 128 | does not hold
"""
WIDTH_SET_UP = f"""{RECIPE}{FITTED}
model | 16 to 1024 wide, depth and heads by search | 16 to 1024 wide, 16 layers, 4 heads
steps × batch | 500,000 × 64 | 5,000 × 64 | does not hold
"""
DEPTH = Claim(
    "learning-figure-3",
    "Akyürek et al. 2022, Figure 3, depth",
    "As depth grows a learner goes from a step of descent over ridge to least squares.",
    "1 layer: descent; middle: ridge; 8 layers and more: least squares",
    {
        "small": Scale(1.0, {"training": QUICK, "depths": [1, 2, 4], "datasets": 512}, at_source_scale=False),
        "gpu": Scale(
            10, {"training": DEEP, "depths": [1, 2, 4, 8, 16], "datasets": 512, "seeds": 3}, set_up=set_up(DEPTH_SET_UP)
        ),
    },
    *(over_depth, judge_depth, draw_sizes),
    differs="Learners of d = 2 trained for 1,200 steps on a CPU. A tie between ridge and one of "
    "its limits, descent and least squares, goes to the limit.",
    reversal="a seed whose depths pass all three phases in order, trained as the paper's were",
)
WIDTH = Claim(
    "learning-figure-3-width",
    "Akyürek et al. 2022, Figure 3, width",
    "Learners of 32 units and more match least squares; only the narrowest are nearer to ridge.",
    "no strong effect of width: 32 units match least squares, very narrow learners are slightly nearer to ridge",
    {
        "small": Scale(1.0, {"training": QUICK, "widths": [16, 32, 64], "datasets": 512}, at_source_scale=False),
        "gpu": Scale(
            12,
            {"training": WIDE, "widths": [32, 64, 16, 256, 512, 1024], "datasets": 512, "seeds": 3},
            set_up=set_up(WIDTH_SET_UP),
        ),
    },
    *(over_width, judge_width, draw_sizes),
    differs="On a CPU learners of d = 2 and 4 layers, trained for 1,200 steps.",
    reversal="every width from 32 on nearest to least squares in every seed, with the paper's optimiser and steps",
)
