"""Figure 3 of `003_…`: learners of growing depth, and the algorithm each of them runs.

    PYTHONPATH=src python benchmarks/depth_sweep.py --runs runs/depths --out results

Trains one small learner for each depth on noiseless linear functions, all with the same number of steps, identifies
each, and writes depth_sweep.json and depth_sweep.svg. A run that was stopped goes on where it was, and depths may be
trained in several calls, which the file lists. The defaults take about 45 minutes on a free core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import torch

from emulon.claims.provenance import provenance
from emulon.files import write_atomically
from emulon.interrogate import depth_sweep, trainer
from emulon.progress import progress_bar
from emulon.report.phases import phases_figure
from emulon.tasks import Linear
from emulon.training import Evaluation, TrainConfig, load_learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs/depths"), help="the learners' run folders")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--features", type=int, default=4)
    parser.add_argument("--points", type=int, default=11)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--datasets", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = TrainConfig(
        task="linear",
        features=args.features,
        points=args.points,
        noise=0.0,
        width=args.width,
        heads=4,
        init=0.08,
        steps=args.steps,
        lr=1e-3,
        warmup=200,
        schedule="cosine",
        start_features=1,
        feature_every=150,
        evaluation_batch=2048,
        seed=args.seed,
        quiet=True,
    )
    began, make = time.process_time(), trainer(config, args.runs)
    with progress_bar() as told:
        phases = depth_sweep(make, args.depths, Linear(args.features), progress=told, datasets=args.datasets)
    evaluation = Evaluation(config.make_task(), args.seed, config.evaluation_batch, torch.device("cpu"))
    errors = {
        phase.depth: evaluation.curve(load_learner(args.runs / f"depth-{phase.depth:02d}")[0]).tolist()
        for phase in phases
    }
    for phase in phases:
        print(phase, f" mean squared error {sum(errors[phase.depth]) / len(errors[phase.depth]):.4g}")
    calls_file = args.runs / "calls.json"
    calls = json.loads(calls_file.read_text()) if calls_file.exists() else []
    calls.append({"depths": args.depths, "cpu_seconds": round(time.process_time() - began, 1)})
    write_atomically(calls_file, json.dumps(calls).encode())
    numbers = [phase.as_numbers() | {"errors": errors[phase.depth]} for phase in phases]
    record = provenance(torch.device("cpu")) | {
        "config": dataclasses.asdict(config),
        "calls": calls,
        "baselines": evaluation.baselines,
        "phases": numbers,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out / "depth_sweep.json", json.dumps(record, indent=1).encode())
    write_atomically(args.out / "depth_sweep.svg", phases_figure(numbers).encode())


if __name__ == "__main__":
    main()
