"""The order of AlgoFormer, looped and standard learners depends on optimiser, batch and steps of their training."""

from __future__ import annotations

from statistics import mean
from typing import Any

from emulon.report.figure import Figure, Panel, Series
from reproduce.algoformer.figure_2 import CLAIM as FIGURE_2
from reproduce.algoformer.figure_2 import LAYERS, LOOPS, MODELS, TASKS, curves_of
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict

ADAM, MUON = "Adam", "Muon"


def run(setting: Setting) -> Numbers:
    """The mean error over all in-context samples, by optimiser, task and model, a number a seed."""
    found = curves_of(setting.sizes, setting)
    return {
        optimiser: {
            task: {model: [mean(curve) for curve in curves] for model, curves in models.items()}
            for task, models in tasks.items()
        }
        for optimiser, tasks in found.items()
    }


def ordered(models: Numbers, first: str, second: str) -> int:
    """1 where every seed of the first is below every seed of the second, −1 the other way round, 0 otherwise."""
    return int(max(models[first]) < min(models[second])) - int(max(models[second]) < min(models[first]))


def judge(numbers: Numbers) -> Verdict:
    """On one task at least the seeds of AlgoFormer and looped learners are apart under both trainings, in one order by
    Adam and in the other by Muon."""
    told, turned = [], []
    for task in numbers[ADAM]:
        orders = {name: ordered(numbers[name][task], "algoformer", "looped") for name in (ADAM, MUON)}
        words = {1: "AlgoFormer below looped", -1: "looped below AlgoFormer", 0: "not apart"}
        told.append(f"{TASKS[task]}: {words[orders[ADAM]]} by {ADAM}, {words[orders[MUON]]} by {MUON}")
        turned += [task] if orders[ADAM] * orders[MUON] == -1 else []
    shown = "; ".join(
        f"{name} {', '.join('/'.join(f'{mean(models[m]):.3f}' for m in MODELS) for models in numbers[name].values())}"
        for name in (ADAM, MUON)
    )
    return Verdict.that(bool(turned), f"standard/looped/AlgoFormer on three tasks: {shown}", "; ".join(told))


def figure(numbers: Numbers) -> Figure:
    panels = []
    for task in numbers[ADAM]:
        bars = [
            Series(name, list(MODELS), [mean(numbers[name][task][model]) for model in MODELS], "bars")
            for name in (ADAM, MUON)
        ]
        panels.append(Panel("", "mean squared error", bars, title=TASKS[task]))
    return Figure(panels)


BY_ADAM: dict[str, Any] = {
    "training": {"features": 20, "points": 41, "lr": 1e-4, "precision": "bf16", "compile": "block"},
    "models": {model: LAYERS[model] | LOOPS[model] for model in MODELS},
    "tasks": {task: {"steps": 50_000, "batch": batch} for task, batch in zip(TASKS, (16, 28, 2), strict=True)},
}
SMALL: dict[str, Any] = {**FIGURE_2.scales["small"].sizes}
CLAIM = Claim(
    name="ours-optimiser-order",
    source="ours, learners",
    statement="Whether AlgoFormer or the looped transformer has the lower error depends on how they are trained.",
    theirs="AlgoFormer below looped on all three tasks, by Adam (Gao et al. 2024, Figure 2)",
    scales={
        "small": Scale(4, {ADAM: SMALL, MUON: SMALL | {"training": SMALL["training"] | {"recipe": "fast"}}}, False),
        "gpu": Scale(120, {ADAM: BY_ADAM, MUON: FIGURE_2.scales["gpu"].sizes, "seeds": 2}),
    },
    run=run,
    judge=judge,
    figure=figure,
    differs="Adam at 1e-4 for 50,000 steps of 16, 28 and 2 datasets, Muon for 10,000, 8,000 and 3,000 of 64: batch and "
    "number of steps differ with the optimiser. The paper has Adam at 1e-4 for 500,000 steps.",
)
