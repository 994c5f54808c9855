"""Figures 3 to 5: AlgoFormers run for more loops, in other shapes, and beside solvers over noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import torch

from emulon.identification import draw, reference_named
from emulon.identification.sampling import intervals
from emulon.models import AlgoFormer, Learner
from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import Linear
from emulon.training import Evaluation, TrainConfig
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict, set_up
from reproduce.learners import trained

# After the most samples an error above this share of saying zero is that of a learner that has learned too little.
UNLEARNED = 0.1
# On a CPU, and the same for all three figures, so that one training serves them in a process.
TRAINING = {"model": "algoformer", "task": "linear", "features": 2, "points": 8, "noise": 0.0, "init": 0.08}
TRAINING |= {"layers": 1, "width": 32, "heads": 4, "loops": 4, "window": 3}
TRAINING |= {"steps": 1200, "lr": 2e-3, "warmup": 100, "schedule": "cosine"}
# The paper's sizes, on a GPU.
AT_SCALE = {"recipe": "fast", "model": "algoformer", "task": "representation", "features": 20, "points": 41}
AT_SCALE |= {"layers": 1, "loops": 20, "window": 15, "steps": 10_000, "evaluate_every": 10_000, "compile": "block"}
# Figures 3 and 4 have more than twenty learners between them.
SHORTER = AT_SCALE | {"steps": 4_000}


def recipe(sizes: Mapping[str, Any]) -> str:
    """Lines of the set-up: optimiser, steps and batch."""
    return f"""optimiser | Adam, 1e-4 | Muon, 0.005, linear | does not hold
steps × batch | 500,000 × not stated | {sizes["steps"]:,} × 64 | does not hold"""


def learned(setting: Setting, **options: Any) -> tuple[Learner, Evaluation, list[float], float]:
    """A trained learner, datasets that its training never saw, its error curve on them, and the error after the most
    samples as a share of saying zero."""
    config = TrainConfig.following(**setting.sizes["training"] | {"seed": setting.seed} | options)
    learner = trained(config, setting).learner
    device = next(learner.parameters()).device
    evaluation = Evaluation(config.make_task(), config.seed, setting.sizes["datasets"], device)
    curve = evaluation.curve(learner).tolist()
    return learner, evaluation, curve, curve[-1] / evaluation.baselines["zero"][-1]


@torch.no_grad()
def by_loops(learner: AlgoFormer, evaluation: Evaluation, loops: int) -> list[float]:
    """The mean squared error after 1, …, loops turns, more than it was trained for if asked."""
    kept, learner.loops = learner.loops, loops
    try:
        said = learner.read_out(learner.states(learner.embed(evaluation.prompts.tokens), window=loops))
    finally:
        learner.loops = kept
    errors = (evaluation.task.asked(said).float() - evaluation.prompts.truth).square()
    return errors.double().mean(dim=(1, 2, 3)).tolist()


def too_early(shares: dict[str, float]) -> Verdict | None:
    """Nothing can be said about learners that have not learned."""
    late = {name: share for name, share in shares.items() if share > UNLEARNED}
    if not late:
        return None
    shown = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return Verdict(
        "not tested at scale",
        f"error left of saying zero: {shown}",
        f"a training this short leaves {', '.join(late)} above {UNLEARNED} of the error of saying zero; the paper "
        "trains 500,000 steps on a GPU",
    )


# Figure 3: more loops than in training

# An error that grows by less than this from T loops to the last is stable.
STABLE = 1.2
# Two of these within this much cannot be told apart.
ALIKE = 0.05


def over_windows(setting: Setting) -> Numbers:
    """A learner for every T and every ΔT of at most T."""
    loops = setting.sizes.get("trained", [setting.sizes["training"]["loops"]])
    measures = {
        f"T = {most}, ΔT = {window}": partial(over_loops, most, window)
        for most, window in product(loops, setting.sizes["windows"])
    }
    return {"learners": list(setting.parts(measures).values())}


def over_loops(loops: int, window: int, setting: Setting) -> Numbers:
    learner, evaluation, _, left = learned(setting, loops=loops, window=window)
    assert isinstance(learner, AlgoFormer)
    errors = by_loops(learner, evaluation, setting.sizes["loops"])
    return {"window": window, "trained": loops, "errors": errors, "left": left}


def grown(learner: Numbers) -> float:
    """The error after the most loops over that after as many as it was trained for."""
    return float(learner["errors"][-1] / learner["errors"][learner["trained"] - 1])


def judge_windows(numbers: Numbers) -> Verdict:
    """For every T: with the largest ΔT the error is stable, and looping had lowered it; with the smallest it grows
    clearly more. Where the smallest ΔT is as stable as the largest there is nothing for a larger one to improve."""
    found = numbers["learners"]
    early = too_early({f"T = {each['trained']}, ΔT = {each['window']}": each["left"] for each in found})
    if early:
        return early
    parts = {"stable": True, "looped": True, "calmer": True}
    alike, shown = True, []
    for loops in dict.fromkeys(each["trained"] for each in found):
        own = [each for each in found if each["trained"] == loops]
        first, last = own[0], own[-1]
        parts["stable"] &= grown(last) <= STABLE
        parts["looped"] &= last["errors"][loops - 1] < last["errors"][0]
        parts["calmer"] &= grown(last) < grown(first)
        alike &= abs(grown(first) - grown(last)) <= ALIKE
        ratios = ", ".join(f"ΔT = {each['window']}: ×{grown(each):.2f}" for each in own)
        shown.append(f"T = {loops}: {ratios}")
    ours = f"error after {len(found[0]['errors'])} loops over that after T: {'; '.join(shown)}"
    told = {name: "yes" if held else "no" for name, held in parts.items()}
    reason = f"stable with the largest ΔT (×{STABLE} asked): {told['stable']}; "
    reason += f"T loops lower the error of one: {told['looped']}; "
    if parts["looped"] and parts["stable"] and alike:
        alike_too = "the learner is as stable with the smallest ΔT, which leaves a larger one nothing to improve"
        return Verdict("not tested at scale", ours, reason + alike_too)
    return Verdict.that(all(parts.values()), ours, f"{reason}calmer than the smallest: {told['calmer']}")


def draw_windows(numbers: Numbers) -> Figure:
    series = [
        Series(f"T = {each['trained']}, ΔT = {each['window']}", range(1, len(each["errors"]) + 1), each["errors"])
        for each in numbers["learners"]
    ]
    return Figure([Panel("loops", "squared error", series)])


FEW_WINDOWS = {"training": TRAINING, "windows": [1, 3], "loops": 60, "datasets": 1024}
WINDOWS = {"training": SHORTER, "trained": [20, 12, 30, 50], "windows": [5, 10, 15], "loops": 200, "datasets": 512}
WINDOWS_SET_UP = f"""{recipe(SHORTER)}
data | regression with representation, d = 20, 40 pairs, no noise | the same
model | pre, loop, post of one layer, Eq. 2 | the same, with injection | both
seeds | not stated | 1
"""
FIGURE_3 = Claim(
    "algoformer-figure-3",
    "Gao et al. 2024, Figure 3",
    "An AlgoFormer stays stable far beyond the loops it was trained for, the more so with a larger ΔT.",
    "error falls until T and stays there up to 200 loops for ΔT = 10 and 15; less so for ΔT = 5",
    {"small": Scale(1.2, FEW_WINDOWS, at_source_scale=False), "gpu": Scale(20, WINDOWS, set_up=set_up(WINDOWS_SET_UP))},
    *(over_windows, judge_windows, draw_windows),
    differs="On a CPU AlgoFormers of width 32 with T = 4 on linear functions of 2 features, after 1,200 steps.",
    reversal="for each T an error stable with the largest ΔT and grows more with the smallest, as set up there",
)


# Figure 4: heads and layers

# pre, loop and post have so many layers together.
PARTS = 3
# More heads than this "may exhibit suboptimal performance".
FALLS_UNTIL = 8


def over_shapes(setting: Setting) -> Numbers:
    sizes = setting.sizes
    usual = sizes["training"]["heads"]
    shapes: dict[str, dict[str, Any]] = {
        f"AlgoFormer, {n} layer{'s' * (n > 1)}": {"layers": n} for n in sizes["layers"]
    }
    shapes |= {f"AlgoFormer, {n} head{'s' * (n > 1)}": {"heads": n} for n in sizes["heads"] if n != usual}
    standard = {"model": "standard", "loops": None, "window": None}
    shapes |= {f"standard, {n} layers": {**standard, "layers": n} for n in sizes["standard"]}
    measures = {name: partial(one_shape, options) for name, options in shapes.items()}
    return setting.parts(measures)


def one_shape(options: dict[str, Any], setting: Setting) -> Numbers:
    _, _, curve, left = learned(setting, **options)
    whole = setting.sizes["training"] | options
    return {key: whole[key] for key in ("model", "layers", "heads")} | {"curve": curve, "left": left}


def judge_shapes(numbers: Numbers) -> Verdict:
    """AlgoFormer's error falls with heads (16 left out, as in the paper) and with layers, and is below a standard one's
    of as many layers; one layer a part is below all that are deeper, too."""
    early = too_early({name: each["left"] for name, each in numbers.items()})
    if early:
        return early
    own = [each for each in numbers.values() if each["model"] == "algoformer"]
    layers, heads = (sorted({each[key] for each in own}) for key in ("layers", "heads"))
    usual = next(each["heads"] for each in own)
    error = {(each["model"], each["layers"], each["heads"]): mean(each["curve"]) for each in numbers.values()}
    by_layers = [error["algoformer", n, usual] for n in layers]
    by_heads = [error["algoformer", layers[0], n] for n in heads if n <= FALLS_UNTIL]
    against = [error.get(("standard", PARTS * n, usual), math.inf) for n in layers]
    deeper = [each for (model, n, _), each in error.items() if model == "standard" and n > PARTS * layers[-1]]
    parts = {
        "falls with heads": by_heads == sorted(by_heads, reverse=True),
        "falls with layers": len(layers) > 1 and by_layers == sorted(by_layers, reverse=True),
        "below standard with as many layers": all(a < b for a, b in zip(by_layers, against, strict=True)),
        "one layer below deeper standard ones": all(by_layers[0] < each for each in deeper),
    }
    shown = ", ".join(f"{name} {mean(each['curve']):.3f}" for name, each in numbers.items())
    told = ", ".join(f"{name}: {'yes' if held else 'no'}" for name, held in parts.items())
    return Verdict.that(all(parts.values()), f"mean error: {shown}", told)


def draw_shapes(numbers: Numbers) -> Figure:
    series = [Series(name, range(len(each["curve"])), each["curve"]) for name, each in numbers.items()]
    return Figure([Panel("in-context samples", "squared error", series, log_y=True)])


FEW_SHAPES = {"training": TRAINING, "layers": [1, 2], "heads": [1, 4], "standard": [3, 6], "datasets": 1024}
SHAPES = {"training": SHORTER | {"heads": 8}, "layers": [1, 2], "heads": [2, 4, 8, 16], "datasets": 1024}
SHAPES |= {"standard": [3, 6, 12, 14, 20, 22]}
SHAPES_SET_UP = f"""{recipe(SHORTER)}
data | regression with representation, d = 20, 40 pairs, no noise | the same
model | (20, 15), Eq. 2; standard of 3, 12, 14, 20, 22 layers | with injection; 6 layers, too
seeds | not stated | 1 | both
"""
FIGURE_4 = Claim(
    "algoformer-figure-4",
    "Gao et al. 2024, Figure 4",
    "More heads and layers lower AlgoFormer's error; it is below standard transformers' of as many layers.",
    "2 layers below 1; more heads lower (16 excepted); AlgoFormer below standard of 3 to 22 layers",
    {"small": Scale(3, FEW_SHAPES, at_source_scale=False), "gpu": Scale(13, SHAPES, set_up=set_up(SHAPES_SET_UP))},
    *(over_shapes, judge_shapes, draw_shapes),
    differs="On a CPU learners of width 32 with T = 4 on linear functions of 2 features, 1,200 steps.",
    reversal="all four parts of the rule in several seeds, with the paper's optimiser and steps",
)


# Figure 5: solvers

SOLVERS = {"Newton": reference_named("newton"), "descent": reference_named("gradient descent, safe steps")}
ALGOFORMER = "AlgoFormer"
# Squared error that float64 cannot tell from none.
MACHINE = 1e-20


def beside_solvers(setting: Setting) -> Numbers:
    """A cell for every noise and every (T, ΔT)."""
    sizes = setting.sizes
    training = sizes["training"]
    trained = sizes.get("trained", [[training["loops"], training["window"]]])
    measures = {
        f"σ = {noise:g}, T = {loops}": partial(one_cell, noise, loops, window)
        for noise, (loops, window) in product(sizes["noises"], trained)
    }
    return {"features": training["features"], "cells": list(setting.parts(measures).values())}


def one_cell(noise: float, loops: int, window: int, setting: Setting) -> Numbers:
    """Mean squared errors over the datasets after every number of examples, and the paired differences of AlgoFormer
    from every solver on the same datasets, mean over the numbers above one."""
    sizes = setting.sizes
    learner, _, _, left = learned(setting, noise=noise, loops=loops, window=window)
    drawn = draw(
        Linear(sizes["training"]["features"], noise=noise), learner, seed=setting.seed, datasets=sizes["datasets"]
    )
    targets = drawn.ys[:, list(drawn.counts)]
    said = {ALGOFORMER: drawn.answers(learner)} | {
        f"{name}, {steps} steps": solver.predict(drawn, {"steps": steps})
        for name, solver in SOLVERS.items()
        for steps in sizes["iterations"]
    }
    squared = {name: (answers - targets).square() for name, answers in said.items()}
    above_one = [place for place, count in enumerate(drawn.counts) if count > 1]
    paired = {
        name: asdict(intervals((squared[ALGOFORMER] - each)[:, above_one].mean(dim=1, keepdim=True))[0])
        for name, each in squared.items()
        if name != ALGOFORMER
    }
    errors = {name: each.mean(dim=0).tolist() for name, each in squared.items()}
    cell = {"noise": noise, "loops": loops, "window": window, "examples": list(drawn.counts)}
    return cell | {"errors": errors, "paired": paired, "left": left}


def judge_solvers(numbers: Numbers) -> Verdict:
    """Without noise Newton ends at machine precision and no AlgoFormer does; with the most noise every AlgoFormer is
    below every solver: the paired difference, mean over the numbers of examples above one, has a 95 % interval below
    zero. Differences without an interval decide nothing."""
    cells = numbers["cells"]
    early = too_early({f"σ = {each['noise']:g}": each["left"] for each in cells if each["noise"] == 0})
    if early:
        return early
    least, most = (choose(each["noise"] for each in cells) for choose in (min, max))
    quiet, loud = ([each for each in cells if each["noise"] == noise] for noise in (least, most))
    if least > 0 or most == 0:
        return Verdict("not tested at scale", "–", "a cell without noise and one with noise are needed")
    newton = min(each[-1] for name, each in quiet[0]["errors"].items() if name.startswith("Newton"))
    own = [each["errors"][ALGOFORMER][-1] for each in quiet]
    precise = newton <= MACHINE < min(own)
    told, better = [], True
    for each in loud:
        paired = each.get("paired")
        if paired is not None:
            lost = [name for name, one in paired.items() if one["high"] >= 0]
            worst = max(paired, key=lambda name: paired[name]["high"])
            gap = ", ".join(f"{paired[worst][part]:.3f}" for part in ("low", "high"))
            told.append(f"T = {each['loops']}: {'not ' if lost else ''}below every solver (nearest {worst}, [{gap}])")
            better = better and not lost
        told.append(f"at single numbers of examples below every one {below_everywhere(each)}")
    ours = f"σ = {least:g}: AlgoFormer {', '.join(f'{each:.1e}' for each in own)}, Newton {newton:.1e} after "
    ours += f"{quiet[0]['examples'][-1]} examples; σ = {most:g}: "
    ours += ", ".join(f"AlgoFormer (T = {each['loops']}) {whole(each, ALGOFORMER):.2f}" for each in loud)
    nearest = min((name for name in loud[0]["errors"] if name != ALGOFORMER), key=partial(whole, loud[0]))
    ours += f", best solver {whole(loud[0], nearest):.2f} ({nearest})"
    reason = f"Newton exact without noise and AlgoFormer not: {'yes' if precise else 'no'}; {'; '.join(told)}"
    if any("paired" not in each for each in loud):
        return Verdict("not tested as printed", ours, f"{reason}; small differences, of which no interval was kept")
    return Verdict.that(precise and better, ours, reason)


def whole(cell: Numbers, name: str) -> float:
    return float(mean(cell["errors"][name]))


def below_everywhere(cell: Numbers) -> str:
    """How often AlgoFormer's mean is below the best of all solvers at one number of examples, picked anew each time."""
    solvers = [errors for name, errors in cell["errors"].items() if name != ALGOFORMER]
    floor = [min(at) for at in zip(*solvers, strict=True)]
    later = [place for place, count in enumerate(cell["examples"]) if count > 1]
    below = sum(cell["errors"][ALGOFORMER][place] < floor[place] for place in later)
    return f"after {below} of {len(later)}"


def draw_solvers(numbers: Numbers) -> Figure:
    panels = []
    for each in numbers["cells"]:
        series = [
            Series(name, each["examples"], errors, "line" if name == ALGOFORMER else "dashes")
            for name, errors in each["errors"].items()
        ]
        title = f"σ = {each['noise']:g}, T = {each['loops']}"
        panels.append(Panel("in-context samples", "squared error", series, title=title, log_y=True))
    return Figure(panels)


FEW_NOISES = {"training": TRAINING, "noises": [0.0, 1.0], "iterations": [5, 10, 20], "datasets": 1024}
NOISES = {"training": AT_SCALE | {"task": "linear"}, "noises": [1.0, 0.0, 0.1], "datasets": 2048}
NOISES |= {"trained": [[20, 15], [10, 10]], "iterations": [5, 10, 15, 20]}
NOISES_SET_UP = f"""{recipe(AT_SCALE)}
data | d = 20, 40 pairs, σ = 0, 0.1, 1 | the same
model | pre, loop, post of one layer, Eq. 2; (20, 15), (10, 10) | the same, with injection
seeds | not stated | 1
descent | “iterations”; the step is not stated | the safe step 1/L on every prefix
"""
FIGURE_5 = Claim(
    "algoformer-figure-5",
    "Gao et al. 2024, Figure 5",
    "Newton's method is exact on noiseless regression, AlgoFormer is not; with noise AlgoFormer is better.",
    "σ = 0: Newton at machine precision, AlgoFormer about 1e-3; σ = 1: AlgoFormer below Newton and descent",
    {"small": Scale(1.4, FEW_NOISES, at_source_scale=False), "gpu": Scale(10, NOISES, set_up=set_up(NOISES_SET_UP))},
    *(beside_solvers, judge_solvers, draw_solvers),
    differs="On a CPU an AlgoFormer of width 32 with 4 loops, d = 2, after 1,200 steps.",
    reversal="at σ = 1 a paired interval below zero against every solver and for every T, trained as the paper's were",
)
