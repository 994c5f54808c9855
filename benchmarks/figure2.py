"""Figure 2 of `002_…`: standard, looped and AlgoFormer on three tasks, error over in-context samples.

    PYTHONPATH=src python benchmarks/figure2.py --out $OUT --steps 50000 --budget 500

All models and seeds of a task are trained together, each as a CUDA graph on its own stream. A task ends after --steps
or --budget seconds, whichever comes first; figure2_TASK.json is rewritten at every evaluation, so that nothing is lost
when the time ends. With --state DIR the learners are kept there too, and a second call continues them.

    PYTHONPATH=src python benchmarks/figure2.py --draw --out results    # figure2.svg, from the numbers alone

As in the paper: 40 in-context samples, d = 20, width 256, Adam at 1e-4, 12 layers for standard and one for each part
of the others, (T, ΔT) = (20, 15). Not in the paper, and chosen here: batch, 8 heads, precision, clipping at 1, and the
scales that the tasks' docstrings give.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
import traceback
from pathlib import Path

import torch

from emulon.claims.provenance import provenance
from emulon.files import write_atomically
from emulon.training import Evaluation, Together, TrainConfig, TrainStep
from emulon.training.checkpoint import read_checkpoint, write_checkpoint

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
    report: dict = provenance(device) | {
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
    start = restore(args, report, steps)
    for k in range(start, args.steps):
        together(k)
        done = k + 1
        if k == start:
            together.synchronise()
            print(f"{task_name}: {len(steps)} learners ready after {time.perf_counter() - began:.0f} s", flush=True)
            started = time.perf_counter()
        if done % 50 == 0 or done == args.steps:
            together.synchronise()  # also keeps the queue short, so that the budget means what it says
        late = time.perf_counter() - began > args.budget and done % 50 == 0
        if done % args.evaluate_every == 0 or done == args.steps or late:
            together.synchronise()
            rate = (k - start) / (time.perf_counter() - started + 1e-9)
            record(report, steps, evaluation, done, rate, time.perf_counter() - began)
            write_atomically(args.out / f"figure2_{task_name}.json", json.dumps(report).encode())
        if late or done == args.steps:
            keep(args, report, steps, done)
        if late:
            print(f"{task_name}: the budget of {args.budget:.0f} s ended at step {done}", flush=True)
            break


def keep(args: argparse.Namespace, report: dict, steps: dict[str, TrainStep], done: int) -> None:
    """All learners and the curves so far, for a later call."""
    if args.state is None:
        return
    for name, step in steps.items():
        folder = args.state / report["task"] / name.replace("/", "-")
        folder.mkdir(parents=True, exist_ok=True)
        write_checkpoint(folder, done, step.state(), {})
    write_atomically(args.state / report["task"] / "history.json", json.dumps(report["history"]).encode())


def restore(args: argparse.Namespace, report: dict, steps: dict[str, TrainStep]) -> int:
    """Puts everything back where `keep` left it; the step to go on with."""
    if args.state is None or not (args.state / report["task"] / "history.json").exists():
        return 0
    found = {name: read_checkpoint(args.state / report["task"] / name.replace("/", "-")) for name in steps}
    if any(one is None for one in found.values()) or len({one[0] for one in found.values() if one}) != 1:
        print("the kept learners do not belong together; starting again", flush=True)
        return 0
    for name, one in found.items():
        assert one is not None
        start, tensors, _ = one
        steps[name].load(tensors)
    report["history"] = json.loads((args.state / report["task"] / "history.json").read_text())
    print(f"{report['task']}: going on from step {start}", flush=True)
    return start


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


def draw(args: argparse.Namespace) -> None:
    from emulon.report.chart import chart  # needs matplotlib, which a machine for training may lack
    from emulon.report.curves import models_figure

    records = [json.loads((args.out / f"figure2_{task}.json").read_text()) for task in args.tasks]
    write_atomically(args.out / "figure2.svg", chart(models_figure(records)).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--draw", action="store_true", help="train nothing: draw figure2.svg from the JSON in --out")
    parser.add_argument("--state", type=Path, help="keep the learners here, and go on from what is here")
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
    if args.draw:
        draw(args)
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    failed = []
    for task in args.tasks:
        try:
            run_task(args, task, device)
        except Exception:  # a task that fails must not cost the others their turn
            traceback.print_exc()
            failed.append(task)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if failed:
        raise SystemExit(f"these tasks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
