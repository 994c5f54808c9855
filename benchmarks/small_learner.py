"""The small learner of `emulon train standard --preset small`, by seeds: its error beside the baselines, its weights.

    PYTHONPATH=src python benchmarks/small_learner.py --out results    # three to four minutes a seed, one core

Writes small_learner.json (a curve.json for each seed, with its ratio to the Bayes ridge predictor after 2d samples),
small_learner.svg (the first seed's picture) and small_learner/ (the first seed's configuration and weights, which
`emulon.training.load_learner` reads).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

from emulon.files import write_atomically
from emulon.report.chart import chart
from emulon.report.curves import keep_curve, run_figure
from emulon.training import PRESETS, save_learner, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    records = []
    for seed in args.seeds:
        config = dataclasses.replace(PRESETS["small"], seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            trained = train(config, run)
            keep_curve(run, trained)
            record = json.loads((run / "curve.json").read_text())
        asked = 2 * config.features
        record["ratio_to_ridge_at_2d"] = trained.curve[asked] / trained.baselines["ridge"][asked]
        print(f"seed {seed}: {record['ratio_to_ridge_at_2d']:.3f}, {record['cpu_seconds']} CPU seconds", flush=True)
        if not records:
            shutil.rmtree(args.out / "small_learner", ignore_errors=True)
            save_learner(trained.learner, config, trained.steps, args.out / "small_learner")
        records.append(record)
        write_atomically(args.out / "small_learner.json", json.dumps(records, indent=1).encode())
    write_atomically(args.out / "small_learner.svg", chart(run_figure(records[0])).encode())


if __name__ == "__main__":
    main()
