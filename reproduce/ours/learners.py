"""Small learners, the order of learners by optimiser, and the cost of a training step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import torch

from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import Task, at_step
from emulon.training import PRESETS, TrainConfig, TrainStep
from reproduce.algoformer.figure_2 import CLAIM as FIGURE_2
from reproduce.algoformer.figure_2 import LAYERS, LOOPS, MODELS, TASKS, learned, one_learner
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.drawing import band
from reproduce.interval import all_at_most, ratios, shown
from reproduce.learners import best_device, trained

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

# The loops of the representation's learners: Gao et al. 2024, Eq. 2, sees the prompt once, Yang et al.'s at every turn.
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "looped": ("looped", {}),
    "Eq. 2": ("algoformer", {"inject": False}),
    "injected": ("algoformer", {}),
}


def forms(setting: Setting) -> Numbers:
    """Error curves by noise and form, one a seed."""
    sizes, measures, places = setting.sizes, {}, {}
    for noise, (form, (model, changes)), seed in product(sizes["noises"], FORMS.items(), setting.seeds):
        training = sizes["training"] | changes | {"noise": noise}
        name = f"σ = {noise:g}, {form}, seed {seed}"
        places[name] = f"σ = {noise:g}", form
        measures[name] = partial(one_learner, {**sizes, "training": training}, "representation", model, seed)
    rows, found = setting.parts(measures), Numbers()
    for name, (noise, form) in places.items():
        found.setdefault(noise, {}).setdefault(form, []).append(rows[name]["curve"])
    return found


def judge_forms(numbers: Numbers) -> Verdict:
    """At every noise the mean error of Eq. 2 over that of the looped learner, paired by seed, is below 1 by its
    interval; the injected form is shown beside it."""
    judged, told = [], []
    for noise, curves in numbers.items():
        errors = {form: [mean(curve) for curve in every] for form, every in curves.items()}
        printed, injected = (ratios(errors[form], errors["looped"]) for form in ("Eq. 2", "injected"))
        judged.append(printed)
        told.append(f"{noise}: Eq. 2 {shown(printed, exp=True)}, injected {shown(injected, exp=True)}")
    return Verdict(
        all_at_most(0.0, judged), "; ".join(told), "mean error over the looped learner's (below 1 asked of Eq. 2)"
    )


def draw_forms(numbers: Numbers) -> Figure:
    panels = []
    for noise, curves in numbers.items():
        series = [band(form, range(len(every[0])), every) for form, every in curves.items()]
        panels.append(Panel("in-context samples", "squared error", series, title=noise, log_y=True))
    return Figure(panels)


NOISES = {"noises": [0.0, 0.1, 1.0]}
LOOP_FORMS = Claim(
    "ours-loop-forms",
    "ours, learners",
    "On regression with representation AlgoFormer's loop, as printed in Eq. 2, comes below the looped transformer at "
    "every noise.",
    "AlgoFormer lowest at σ = 0 (Gao et al. 2024, Figure 2); σ = 0.1 and 1 are mentioned without numbers",
    {
        "small": Scale(3, SMALL | NOISES | {"seeds": 3}, at_source_scale=False),
        "gpu": Scale(20, {**FIGURE_2.scales["gpu"].sizes, **NOISES, "seeds": 3}),
    },
    *(forms, judge_forms, draw_forms),
    differs="Muon for 10,000 steps on a GPU; the paper has Adam at 1e-4 for 500,000.",
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


def over_bayes(numbers: Numbers) -> list[float]:
    """To the Bayes predictor's error, after 2d examples."""
    place = 2 * numbers["features"]
    return [each["curve"][place] / each["baselines"][BAYES][place] for each in numbers["seeds"]]


def judge_small(numbers: Numbers) -> Verdict:
    every = over_bayes(numbers)
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


# Garg et al.'s model and task, as far as they fit a step's cost.
GARG: dict[str, Any] = {"task": "linear", "features": 20, "points": 41, "layers": 12, "lr": 1e-4, "batch": 64}
TINY = GARG | {"features": 3, "points": 5, "layers": 2, "width": 32, "heads": 2, "batch": 4}
HUGGING_FACE, OURS = "Hugging Face GPT-2, eager fp32", "graph + compile, bf16"
WAYS: dict[str, dict[str, Any]] = {
    "plain PyTorch, eager fp32": {"graph": False, "fused": False},
    "CUDA graph, fp32": {},
    "CUDA graph, tf32": {"precision": "tf32"},
    "CUDA graph, bf16": {"precision": "bf16"},
    "graph + compiled blocks, bf16": {"precision": "bf16", "compile": "block"},
    OURS: {"precision": "bf16", "compile": "whole"},
}
FASTER = 6.0
STRETCHES = 5

Step = Callable[[int], torch.Tensor]


class HuggingFaceStep:
    """The step everybody writes first: GPT2Model on embeddings, Adam, nothing fused."""

    def __init__(self, config: TrainConfig, task: Task, device: torch.device) -> None:
        try:
            from transformers import GPT2Config, GPT2Model
        except ImportError:
            raise CannotTest("needs Hugging Face's transformers: pip install 'emulon[hf]'") from None
        sizes: dict[str, Any] = {"n_positions": task.tokens, "n_embd": config.model.width}
        sizes |= {"n_layer": config.model.layers, "n_head": config.model.heads}
        body: Any = GPT2Model(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))  # type: ignore[no-untyped-call]  # transformers'
        del body.wte  # embeddings are given: GPT-2's vocabulary has no part in this
        self.body, self.task, self.config = body.to(device), task, config
        self.read_in = torch.nn.Linear(task.width_in, config.model.width).to(device)
        self.read_out = torch.nn.Linear(config.model.width, task.width_out).to(device)
        modules = torch.nn.ModuleList([self.body, self.read_in, self.read_out])
        self.optimiser = torch.optim.Adam(modules.parameters(), lr=config.optimiser.lr)
        self.generator = torch.Generator(device=device)

    def __call__(self, step: int) -> torch.Tensor:
        prompts = self.task.sample(at_step(self.generator, self.config.seed, step), self.config.schedule.batch)
        self.optimiser.zero_grad()
        states = self.body(inputs_embeds=self.read_in(prompts.tokens)).last_hidden_state
        loss: torch.Tensor = (self.task.asked(self.read_out(states)) - prompts.targets).square().mean()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def make_step(name: str, config: TrainConfig, device: torch.device) -> Step:
    task = config.make_task()
    if name == HUGGING_FACE:
        return HuggingFaceStep(config, task, device)
    chosen = config.changed(**WAYS[name])
    return TrainStep(chosen.make_learner(task), task, chosen, device)


def rate(step: Step, device: torch.device, seconds: float) -> Numbers:
    """Steps a second: the median of five stretches, after one that does not count."""
    rates, number = list[float](), 0
    for _ in range(1 + STRETCHES):
        begun, first = time.perf_counter(), number
        while time.perf_counter() - begun < seconds / STRETCHES:
            for _ in range(5):
                step(number)
                number += 1
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        rates.append((number - first) / (time.perf_counter() - begun))
    return {"steps_per_s": statistics.median(rates[1:]), "slowest": min(rates[1:]), "fastest": max(rates[1:])}


def step_rates(setting: Setting) -> Numbers:
    device, config = best_device(), TrainConfig.of(**setting.sizes["training"], clip=0.0, seed=setting.seed)
    ways = setting.sizes["ways"]
    rows: Numbers = {}
    for done, name in enumerate(ways):
        setting.report_progress(name, done / len(ways))
        torch._dynamo.reset()  # every row compiles for itself
        rows[name] = rate(make_step(name, config, device), device, setting.sizes["seconds"])
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return rows


def judge_rates(numbers: Numbers) -> Verdict:
    speed = {name: row["steps_per_s"] for name, row in numbers.items()}
    best = max((name for name in WAYS if name in speed), key=lambda name: speed[name])
    ratio = speed[best] / speed[HUGGING_FACE]
    ours = f"{speed[best]:.0f} steps/s ({best}), Hugging Face {speed[HUGGING_FACE]:.0f} in the same run"
    return Verdict.that(ratio >= FASTER, ours, f"{ratio:.2f} times as many ({FASTER:g} asked)")


def draw_rates(numbers: Numbers) -> Figure:
    names = [name.replace(", ", ",\n").replace(" + ", " +\n") for name in numbers]
    bars = Series("steps/s", names, [row["steps_per_s"] for row in numbers.values()], "bars")
    return Figure([Panel("", "steps a second", [bars])])


TINY_WAYS = [HUGGING_FACE, "plain PyTorch, eager fp32", "CUDA graph, fp32"]
TRAIN_STEP = Claim(
    "ours-train-step",
    "ours, training",
    "A training step of Garg et al.'s model takes a sixth of Hugging Face's time, or less.",
    f"{FASTER:g} times Hugging Face's eager fp32, same model, batch and run (our own aim)",
    {
        "small": Scale(0.3, {"training": TINY, "ways": TINY_WAYS, "seconds": 2.0}, at_source_scale=False),
        "gpu": Scale(3, {"training": GARG, "ways": [HUGGING_FACE, *WAYS], "seconds": 8.0}),
    },
    *(step_rates, judge_rates, draw_rates),
    differs="On a CPU there is no graph to replay: the small scale shows that the rows run, on a tiny model.",
)
