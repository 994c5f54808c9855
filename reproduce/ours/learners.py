"""A small learner beside the best predictor of its task; and how the order of learners depends on their training."""

from __future__ import annotations

from functools import partial
from statistics import mean
from typing import Any

from emulon.report.figure import Figure, Panel, Series
from emulon.training import PRESETS, TrainConfig
from reproduce.algoformer.figure_2 import CLAIM as FIGURE_2
from reproduce.algoformer.figure_2 import LAYERS, LOOPS, MODELS, TASKS, learned
from reproduce.claim import Claim, Numbers, Scale, Setting, Verdict
from reproduce.learners import trained

ADAM, MUON = "Adam", "Muon"


def orders(setting: Setting) -> Numbers:
    """The mean error over all in-context samples, by optimiser, task and model, a number a seed."""
    found: Numbers = {name: {task: {model: [] for model in MODELS} for task in TASKS} for name in (ADAM, MUON)}
    for (name, task, model, _), row in learned({name: setting.sizes[name] for name in found}, setting).items():
        found[name][task][model].append(mean(row["curve"]))
    return found


def ordered(models: Numbers, first: str, second: str) -> int:
    """1 where every seed of the first is below every seed of the second, −1 the other way round, 0 otherwise."""
    return int(max(models[first]) < min(models[second])) - int(max(models[second]) < min(models[first]))


def judge_orders(numbers: Numbers) -> Verdict:
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


def draw_orders(numbers: Numbers) -> Figure:
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
OPTIMISER_ORDER = Claim(
    "ours-optimiser-order",
    "ours, learners",
    "Whether AlgoFormer or the looped transformer has the lower error depends on how they are trained.",
    "AlgoFormer below looped on all three tasks, by Adam (Gao et al. 2024, Figure 2)",
    {
        "small": Scale(4, {ADAM: SMALL, MUON: SMALL | {"training": SMALL["training"] | {"recipe": "fast"}}}, False),
        "gpu": Scale(120, {ADAM: BY_ADAM, MUON: FIGURE_2.scales["gpu"].sizes, "seeds": 2}),
    },
    *(orders, judge_orders, draw_orders),
    differs="Adam at 1e-4 for 50,000 steps of 16, 28 and 2 datasets, Muon for 10,000, 8,000 and 3,000 of 64: batch and "
    "number of steps differ with the optimiser. The paper has Adam at 1e-4 for 500,000 steps.",
)

# Times the error of the Bayes ridge predictor after 2d examples.
ASKED = 1.1
BAYES = "ridge"


def small_learner(setting: Setting) -> Numbers:
    """Error curves over the in-context examples and the baselines', by seed, and the processor time of each."""
    config = PRESETS[setting.sizes["preset"]]
    measures = {f"seed {seed}": partial(one_seed, config.changed(seed=seed)) for seed in setting.seeds}
    return {
        "features": config.task.features,
        "steps": config.schedule.steps,
        "seeds": list(setting.parts(measures).values()),
    }


def one_seed(config: TrainConfig, setting: Setting) -> Numbers:
    run = trained(config, setting)
    return {"curve": run.curve, "baselines": run.baselines, "cpu_seconds": run.cpu_seconds}


def ratios(numbers: Numbers) -> list[float]:
    """To the Bayes predictor's error, after 2d examples."""
    place = 2 * numbers["features"]
    return [each["curve"][place] / each["baselines"][BAYES][place] for each in numbers["seeds"]]


def judge_small(numbers: Numbers) -> Verdict:
    every = ratios(numbers)
    shown = ", ".join(f"{ratio:.2f}" for ratio in every)
    ours = f"{shown} times the error of the Bayes ridge predictor after {2 * numbers['features']} examples"
    near = sum(ratio <= ASKED for ratio in every)
    return Verdict.that(near == len(every), ours, f"{near} of {len(every)} seeds within {ASKED:g}")


def draw_small(numbers: Numbers) -> Figure:
    """The learners, and the baselines that stay within a factor ten of them."""
    curves = [each["curve"] for each in numbers["seeds"]]
    low, high = min(map(min, curves)) / 10, 3 * max(map(max, curves))
    series = [Series(f"learner, seed {seed}", range(len(curve)), curve) for seed, curve in enumerate(curves)]
    for name, errors in numbers["seeds"][0]["baselines"].items():
        shown = [(n, error) for n, error in enumerate(errors) if low <= error <= high]
        series.append(Series(name, [n for n, _ in shown], [error for _, error in shown], "dashes"))
    title = f"linear functions, {numbers['steps']} steps"
    return Figure([Panel("in-context samples", "squared error", series, title=title, log_y=True)])


SMALL_LEARNER = Claim(
    "ours-small-learner",
    "ours, learners",
    "A small learner comes near the Bayes predictor of its task in minutes on one core.",
    f"at most {ASKED:g} times the Bayes ridge predictor's error after 2d examples, every seed (our own aim)",
    {"small": Scale(10, {"preset": "small", "seeds": 3})},
    *(small_learner, judge_small, draw_small),
)
