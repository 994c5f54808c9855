"""All formers at the paper's size, a line each: PYTHONPATH=src python tests/algoformer/measured.py (one minute)."""

import time

import torch
from exact_solvers import gradient_descent, leaky, newton, prefix_gradient_descent, regression
from test_series_and_chains import chain_domain, chain_task, series_task

from emulon.algoformer import (
    AutoRegressionFormer,
    CausalGradientDescentFormer,
    CausalNewtonFormer,
    ChainOfThoughtFormer,
    GradientDescentFormer,
    NewtonFormer,
    convergence,
)
from emulon.algoformer.newton_step import start_scale
from emulon.certify import Domain

SEEDS, LOOPS = range(4), 50


def line(name: str, former, got, want, audit, seconds: float) -> None:
    errors = (got.double() - want).abs().reshape(LOOPS + 1, -1).amax(dim=1)
    inside = all(former.certificate(loops).bound >= errors[loops] for loops in range(LOOPS + 1))
    print(
        f"{name:34s} pairs {former.pairs}  T=1 {errors[1]:.1e}  T=20 {errors[20]:.1e}  T=50 {errors[50]:.1e}  worst "
        f"{errors.max():.1e}  certificate(50) {former.certificate(50).bound:.1e}  audit(50) {audit.bound:.1e}  "
        f"within at every T: {inside and audit.bound >= errors[50]}  {seconds:.1f} s"
    )


def solvers(dtype: torch.dtype, tolerances) -> None:
    for seed in SEEDS:
        xs, ys, x_query = (tensor.to(dtype) for tensor in regression(40, 20, seed=seed))
        domain, wide = Domain.covering(xs, ys, x_query), (xs.double(), ys.double(), x_query.double())
        for kind in (GradientDescentFormer, NewtonFormer, CausalGradientDescentFormer):
            for tolerance in tolerances:
                start = time.perf_counter()
                former = kind(domain, tolerance, dtype=dtype)
                got = former.predictions(xs, ys, x_query, loops=LOOPS)
                seconds = time.perf_counter() - start
                if kind is GradientDescentFormer:
                    want = gradient_descent(wide[0], wide[1].unsqueeze(-1), wide[2], former.step_size, LOOPS).squeeze(
                        -1
                    )
                elif kind is NewtonFormer:
                    want = newton(*wide, start_scale(domain), LOOPS)
                else:
                    want = prefix_gradient_descent(*wide, former.step_size, LOOPS)
                audit = former.audit(xs, ys, x_query, loops=LOOPS)
                line(f"{kind.__name__} {dtype} seed {seed}"[:34], former, got, want, audit, seconds)


def series_and_chains(dtype: torch.dtype) -> None:
    phi, series, _ = series_task()
    series = series.to(dtype)
    padded = torch.cat([torch.zeros(3, 20, dtype=torch.float64), series.double()])
    features = phi(torch.stack([padded[t : t + 3].flatten() for t in range(41)]))
    former = AutoRegressionFormer(Domain.covering(features[:-1], series.double(), features[-1]), phi, dtype=dtype)
    want = gradient_descent(features[:-1], series.double(), features[-1], former.step_size, LOOPS)
    start = time.perf_counter()
    got = former.predictions(series, loops=LOOPS)
    line(f"AR(3) {dtype}", former, got, want, former.audit(series, loops=LOOPS), time.perf_counter() - start)
    chains = chain_task().to(dtype)
    wide = chains.double()
    former = ChainOfThoughtFormer(chain_domain(wide, 0.1), dtype=dtype)
    for known in range(1, 7):
        labels = leaky(wide[:-1, known], 10.0)
        want = leaky(gradient_descent(wide[:-1, known - 1], labels, wide[-1, known - 1], former.step_size, LOOPS), 0.1)
        start = time.perf_counter()
        got = former.predictions(chains[:-1], chains[-1, :known], loops=LOOPS)
        seconds = time.perf_counter() - start
        audit = former.audit(chains[:-1], chains[-1, :known], loops=LOOPS)
        line(f"chain of thought, step {known} {dtype}", former, got, want, audit, seconds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    solvers(torch.float64, (None, 1e-2))
    solvers(torch.float32, (None,))
    for dtype in (torch.float64, torch.float32):
        series_and_chains(dtype)
    for seed in SEEDS:
        for curve in convergence(*regression(40, 20, seed=seed), gradient_loops=700, newton_loops=20):
            print(
                f"{curve.name}, seed {seed}: loops to 1e-7 of least squares, transformer, exact: {curve.reaches(1e-7)}"
            )
    xs, ys, x_query = (tensor / 3 for tensor in regression(12, 4, seed=0))
    domain = Domain.covering(xs, ys, x_query)
    former = CausalNewtonFormer(domain, 0.1 * domain.norm**2)
    print("causal Newton, d=4, N=12:", former.certificate(), former.frame.heads, former.slots.width)
