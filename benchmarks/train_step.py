"""Steps a second of one training step, six ways, in one run: Hugging Face eager, plain PyTorch, CUDA graphs, ours.

    PYTHONPATH=src python benchmarks/train_step.py --out $OUT                 # the table, about 3 minutes on an H200
    PYTHONPATH=src python benchmarks/train_step.py --out $OUT --check-loss    # 20,000 steps: ours against fp32

The model is Garg et al.'s: 12 layers, width 256, 8 heads, d = 20, 41 points, batch 64, Adam. All rows sample their
batches on the device and train the same number of parameters on the same number of tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from emulon.claims.provenance import provenance
from emulon.tasks import Task, at_step
from emulon.training import Evaluation, Together, TrainConfig, TrainStep

GARG = TrainConfig(model="standard", task="linear", features=20, points=41, layers=12, clip=0.0, lr=1e-4, batch=64)
TINY = dataclasses.replace(GARG, features=3, points=5, layers=2, width=32, heads=2, batch=4)

OURS = "graph + compile, bf16"
TUNED = "graph + compile, bf16, autotuned"
VARIANTS: dict[str, dict[str, object]] = {
    "plain PyTorch, eager fp32": {"graph": False, "fused": False},
    "CUDA graph, fp32": {},
    "CUDA graph, tf32": {"precision": "tf32"},
    "CUDA graph, bf16": {"precision": "bf16"},
    "graph + compiled blocks, bf16": {"precision": "bf16", "compile": "block"},
    OURS: {"precision": "bf16", "compile": "whole"},
    TUNED: {"precision": "bf16", "compile": "autotune"},
}
HUGGING_FACE = "Hugging Face GPT-2, eager fp32"


SEEDS = {"2 seeds together, compiled blocks": 2, "4 seeds together, compiled blocks": 4}


class SeedsStep:
    """Several seeds of the model at once; a step counts once for each."""

    def __init__(self, config: TrainConfig, task: Task, device: torch.device, seeds: int) -> None:
        configs = [dataclasses.replace(config, seed=config.seed + k) for k in range(seeds)]
        self.together = Together([TrainStep(c.make_learner(task), task, c, device) for c in configs])
        self.parameters = [p for step in self.together.steps for p in step.parameters]

    def __call__(self, step: int) -> torch.Tensor:
        return self.together(step)[0]


class HuggingFaceStep:
    """The step everybody writes first: GPT2Model on embeddings, Adam, nothing fused."""

    def __init__(self, config: TrainConfig, task: Task, device: torch.device) -> None:
        from transformers import GPT2Config, GPT2Model

        body = GPT2Model(
            GPT2Config(
                n_positions=task.tokens,
                n_embd=config.width,
                n_layer=config.layers,
                n_head=config.heads,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                use_cache=False,
            )
        )
        del body.wte  # embeddings are given: GPT-2's vocabulary has no part in this
        self.body, self.task, self.config = body.to(device), task, config
        self.read_in = torch.nn.Linear(task.width_in, config.width).to(device)
        self.read_out = torch.nn.Linear(config.width, task.width_out).to(device)
        modules = torch.nn.ModuleList([self.body, self.read_in, self.read_out])
        self.parameters = list(modules.parameters())
        self.optimiser = torch.optim.Adam(self.parameters, lr=config.lr)
        self.generator = torch.Generator(device=device)
        self.device = device

    def __call__(self, step: int) -> torch.Tensor:
        prompts = self.task.sample(at_step(self.generator, self.config.seed, step), self.config.batch)
        self.optimiser.zero_grad()
        states = self.body(inputs_embeds=self.read_in(prompts.tokens)).last_hidden_state
        loss = (self.task.asked(self.read_out(states)) - prompts.targets).square().mean()
        loss.backward()
        self.optimiser.step()
        return loss.detach()


def make_step(
    name: str, config: TrainConfig, task: Task, device: torch.device
) -> TrainStep | HuggingFaceStep | SeedsStep:
    if name == HUGGING_FACE:
        return HuggingFaceStep(config, task, device)
    if name in SEEDS:
        return SeedsStep(dataclasses.replace(config, precision="bf16", compile="block"), task, device, SEEDS[name])
    chosen = dataclasses.replace(config, **VARIANTS[name])  # type: ignore[arg-type]
    return TrainStep(chosen.make_learner(task), task, chosen, device)


def rate(step: Callable[[int], torch.Tensor], device: torch.device, seconds: float) -> dict[str, float]:
    """Steps a second: the median of five stretches, after a warm-up; and how long the first step took."""
    began = time.perf_counter()
    step(0)
    _wait(device)
    first = time.perf_counter() - began
    began, done = time.perf_counter(), 1
    while time.perf_counter() - began < seconds / 5:
        for _ in range(5):
            step(done)
            done += 1
        _wait(device)
    stretch = max(5, int(done * seconds / 5 / (time.perf_counter() - began)))
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        for k in range(stretch):
            loss = step(done + k)
        _wait(device)
        rates.append(stretch / (time.perf_counter() - began))
        done += stretch
    return {
        "steps_per_s": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "first_step_s": first,
        "loss": loss.item(),
    }


def table(
    config: TrainConfig, device: torch.device, seconds: float, names: Sequence[str], save: Callable[[dict], None]
) -> dict:
    rows: dict[str, dict] = {}
    task = config.make_task()
    for name in names:
        print(f"{name} …", flush=True)
        try:
            torch._dynamo.reset()  # every row compiles for itself
            step = make_step(name, config, task, device)
            rows[name] = rate(step, device, seconds) | {"parameters": sum(p.numel() for p in step.parameters)}
            rows[name]["steps_per_s"] *= SEEDS.get(name, 1)
        except Exception as error:  # one way that fails must not cost the others their turn
            traceback.print_exc()
            rows[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(f"    {rows[name]}", flush=True)
        save(rows)
        step = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
    base = rows[HUGGING_FACE].get("steps_per_s")
    print(f"\n{'':<34}{'steps/s':>10}{'ratio':>8}")
    for name, row in rows.items():
        speed = row.get("steps_per_s")
        row["ratio"] = speed / base if speed and base else None
        print(f"{name:<34}{speed:>10.1f}{row['ratio'] or 0:>7.2f}×" if speed else f"{name:<34}    failed")
    save(rows)
    failed = [name for name, row in rows.items() if "error" in row]
    if failed:
        raise SystemExit(f"these rows failed: {', '.join(failed)}")
    return rows


def check_loss(
    config: TrainConfig, device: torch.device, steps: int, compile: str, save: Callable[[dict], None]
) -> dict:
    """Ours and fp32 trained side by side on the same data, with Garg et al.'s curriculum.

    fp32 runs as a CUDA graph, a third of eager's time; that a graph replays what eager does is checked on 50 steps.
    """
    config = dataclasses.replace(config, steps=steps, start_features=min(5, config.features), feature_every=2000)
    task = config.make_task()
    ours = dataclasses.replace(config, precision="bf16", compile=compile)
    report: dict = {"steps": steps, "eager_difference": eager_difference(config, task, device)}
    print(f"graph against eager over 50 steps: largest loss difference {report['eager_difference']:.2e}", flush=True)
    pair = Together([TrainStep(c.make_learner(task), task, c, device) for c in (config, ours)])
    began, curves = time.perf_counter(), []
    every = max(steps // 40, 1)
    for k in range(steps):
        pair(k)
        if k % 50 == 0:
            pair.synchronise()  # keeps the queue short, so that the progress lines tell the truth
        if (k + 1) % every == 0:
            means = [step.mean_loss() for step in pair.steps]
            curves.append({"step": k + 1, "fp32": means[0], "ours": means[1]})
            print(
                f"step {k + 1}: fp32 {means[0]:.5f}, ours {means[1]:.5f}, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
            report["curves"] = curves
            save(report)
    evaluation = Evaluation(task, config.seed, 1280, device)
    errors = [evaluation.curve(step.learner).tolist() for step in pair.steps]
    tail = curves[-2:]
    final = {name: statistics.mean(point[name] for point in tail) for name in ("fp32", "ours")}
    report |= {
        "final_loss": final,
        "ratio": final["ours"] / final["fp32"],
        "held_out": {"fp32": errors[0], "ours": errors[1]},
        "seconds": time.perf_counter() - began,
    }
    save(report)
    print(
        f"loss over the last {2 * every} steps: fp32 {final['fp32']:.5f}, ours {final['ours']:.5f},"
        f" ratio {report['ratio']:.4f}"
    )
    return report


def eager_difference(config: TrainConfig, task: Task, device: torch.device) -> float:
    eager = dataclasses.replace(config, graph=False)
    two = [TrainStep(c.make_learner(task), task, c, device) for c in (config, eager)]
    worst = 0.0
    for k in range(50):
        a, b = (step(k) for step in two)
        _wait(device)
        worst = max(worst, abs(a.item() - b.item()))
    return worst


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seconds", type=float, default=8.0, help="measuring time of each row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-loss", action="store_true")
    parser.add_argument("--steps", type=int, default=20_000, help="for --check-loss")
    parser.add_argument(
        "--compile", default="whole", choices=("off", "block", "whole", "autotune"), help="ours, for --check-loss"
    )
    parser.add_argument("--autotune", action="store_true", help="one more row; minutes to build")
    parser.add_argument("--tiny", action="store_true", help="a model a CPU can run, to try the script")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = dataclasses.replace(TINY if args.tiny else GARG, seed=args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    what = "check_loss" if args.check_loss else "train_step"
    about = provenance(device) | {"config": dataclasses.asdict(config), "seed": args.seed}

    def save(measured: dict) -> None:
        (args.out / f"{what}.json").write_text(json.dumps(about | {what: measured}, indent=1))

    if args.check_loss:
        check_loss(config, device, args.steps, args.compile, save)
    else:
        names = [HUGGING_FACE, *(name for name in VARIANTS if name != TUNED or args.autotune), *SEEDS]
        table(config, device, args.seconds, names, save)


if __name__ == "__main__":
    main()
