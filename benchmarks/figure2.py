"""Figure 2 of `002_…`: standard, looped and AlgoFormer on three tasks, error over in-context samples.

    PYTHONPATH=src python benchmarks/figure2.py --out $OUT --steps 50000 --budget 500

All models and seeds of a task are trained together, each as a CUDA graph on its own stream. A task ends after --steps
or --budget seconds, whichever comes first; figure2_TASK.json is rewritten at every evaluation, so that nothing is lost
when the time ends. As in the paper: 40 in-context samples, d = 20, width 256, Adam at 1e-4, 12 layers for standard and
one for each part of the others, (T, ΔT) = (20, 15). Not in the paper, and chosen here: batch, 8 heads, precision,
clipping at 1, and the scales that the tasks' docstrings give.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import traceback
from pathlib import Path

import torch
from provenance import provenance

from emulon.training import Evaluation, Together, TrainConfig, TrainStep

TASKS = ("representation", "auto_regression", "chain_of_thought")
MODELS: dict[str, dict[str, int]] = {
    "standard": {"layers": 12},
    "looped": {"layers": 1, "loops": 20, "window": 15},
    "algoformer": {"layers": 1, "loops": 20, "window": 15},
}


def configurations(args: argparse.Namespace, task: str) -> dict[str, TrainConfig]:
    """One configuration for each model and seed, by name."""
    base = TrainConfig(
        task=task,
        features=args.features,
        points=args.points,
        steps=args.steps,
        batch=args.batch,
        width=args.width,
        precision=args.precision,
        compile=args.compile,
        lr=1e-4,
    )
    return {
        f"{model}/{seed}": dataclasses.replace(base, model=model, seed=seed, **MODELS[model])
        for model in args.models
        for seed in args.seeds
    }


def run_task(args: argparse.Namespace, task_name: str, device: torch.device) -> None:
    """Trains everything on one task until the steps or the time are used up."""
    began = time.perf_counter()
    torch._dynamo.reset()  # a task's shapes are its own: keep below torch's limit of recompilations
    configs = configurations(args, task_name)
    where = args.out / f"figure2_{task_name}.json"
    report = provenance(device) | {
        "task": task_name,
        "configs": {name: dataclasses.asdict(config) for name, config in configs.items()},
        "history": {name: [] for name in configs},
    }
    task = next(iter(configs.values())).make_task()
    evaluation = Evaluation(
        task, 1_000_003, args.evaluation_batch, device
    )  # the same datasets for every model and seed
    report["baselines"] = evaluation.baselines
    steps = {name: TrainStep(c.make_learner(task), task, c, device) for name, c in configs.items()}
    together = Together(list(steps.values()))
    for k in range(args.steps):
        together(k)
        done = k + 1
        if k == 0:
            together.synchronise()
            print(f"{task_name}: {len(steps)} learners ready after {time.perf_counter() - began:.0f} s", flush=True)
            started = time.perf_counter()
        if done % 50 == 0 or done == args.steps:
            together.synchronise()  # also keeps the queue short, so that the budget means what it says
        late = time.perf_counter() - began > args.budget and done % 50 == 0
        if done % args.evaluate_every == 0 or done == args.steps or late:
            together.synchronise()
            rate = k / (time.perf_counter() - started + 1e-9)
            record(report, steps, evaluation, done, rate, time.perf_counter() - began)
            where.write_text(json.dumps(report))
        if late:
            print(f"{task_name}: the budget of {args.budget:.0f} s ended at step {done}", flush=True)
            break


def record(
    report: dict, steps: dict[str, TrainStep], evaluation: Evaluation, done: int, rate: float, seconds: float
) -> None:
    line = []
    for name, step in steps.items():
        curve = evaluation.curve(step.learner)
        loss = step.loss.item()
        point = {"step": done, "seconds": seconds, "loss": loss, "curve": curve.tolist()}
        report["history"][name].append(point)
        line.append(f"{name} {curve.mean():.4f}/{curve[-1]:.4f}")
    report["steps"], report["rounds_per_s"] = done, rate
    print(
        f"{report['task']} step {done}, {rate:.1f} rounds/s, {seconds:.0f} s, error mean/last: {', '.join(line)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for each task, building included")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--points", type=int, default=41)
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--precision", default="bf16", choices=("fp32", "tf32", "bf16"))
    parser.add_argument("--compile", default="block", choices=("off", "block", "whole"))
    parser.add_argument("--evaluate-every", type=int, default=2500)
    parser.add_argument("--evaluation-batch", type=int, default=512)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for task in args.tasks:
        try:
            run_task(args, task, device)
        except Exception:  # a task that fails must not cost the others their turn
            traceback.print_exc()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
