"""What a training step costs: Hugging Face, plain PyTorch, CUDA graphs, ours."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from emulon.report.figure import Figure, Panel, Series
from emulon.tasks import Task, at_step
from emulon.training import TrainConfig, TrainStep
from reproduce.claim import CannotTest, Claim, Numbers, Scale, Setting, Verdict
from reproduce.learners import best_device

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
