"""Gradient descent and Newton–Schulz as looped transformers, at the size of AlgoFormer: distance to least squares.

    PYTHONPATH=src python benchmarks/convergence.py --out results    # under two minutes on a CPU

Writes convergence.json (the numbers) and convergence.svg (both curves in one figure, drawn from the numbers alone).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch

from emulon.claims.provenance import provenance
from emulon.looped import convergence
from emulon.report.convergence import convergence_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--features", type=int, default=20)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(args.seed)
    xs = torch.randn(args.samples, args.features, dtype=torch.float64, generator=generator)
    w, x_query = torch.randn(2, args.features, dtype=torch.float64, generator=generator)
    start = time.perf_counter()
    curves = convergence(xs, xs @ w, x_query, gradient_loops=600, newton_loops=24)
    numbers = {
        **provenance(torch.device("cpu")),
        "seed": args.seed,
        "samples": args.samples,
        "features": args.features,
        "seconds": time.perf_counter() - start,
        "loops_to_1e-7": {curve.name: curve.reaches(1e-7) for curve in curves},
        "curves": [asdict(curve) for curve in curves],
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "convergence.json").write_text(json.dumps(numbers, indent=1))
    (args.out / "convergence.svg").write_text(convergence_figure(curves))
    print(numbers["loops_to_1e-7"])


if __name__ == "__main__":
    main()
