"""Algorithms through one frozen interpreter, each beside its exact self: what two claims measure."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emulon.algorithms import ALGORITHMS
from emulon.interpreter import Interpreter, compile
from emulon.run import kind_of, runnable
from reproduce.bounded import largest, normal
from reproduce.claim import Numbers, Setting

SMOOTH_TOLERANCE = 1e-10


def through_one_interpreter(names: Sequence[str], setting: Setting) -> Numbers:
    """Compiles all, builds one interpreter around them, runs all. By name: error, bound, tokens; and the hashes."""
    samples, features, steps = (setting.sizes[key] for key in ("samples", "features", "steps"))
    cases, programs = {}, {}
    for done, name in enumerate(names):
        setting.report_progress(f"compiling {name}", 0.7 * done / len(names))
        algorithm = ALGORITHMS[name](steps=steps)  # type: ignore[call-arg]  # every one that runs takes it
        cases[name] = algorithm, dataset(name, samples, features, setting.seed)
        programs[name] = compile(algorithm, data=cases[name][1], tolerance=SMOOTH_TOLERANCE)
    interpreter = Interpreter.fitting(*programs.values())
    hashes = {interpreter.sha256}
    found: Numbers = {}
    for done, (name, program) in enumerate(programs.items()):
        setting.report_progress(f"running {name}", 0.7 + 0.3 * done / len(names))
        algorithm, data = cases[name]
        run = interpreter.run(program, *data)
        hashes |= set(run.sha256)
        found[name] = {
            "error": largest(run.weights, algorithm.run(*data)),
            "bound": interpreter.certificate(program).bound,
            "kink": bool(program.descent.l1) or program.gradient.grid.way == "piecewise",
            "in_band": run.entered_band,
            "largest_weight": run.weights.abs().max().item(),
        }
    return {"algorithms": found, "hashes": sorted(hashes)}


def all_names() -> list[str]:
    return list(runnable())


def dataset(name: str, samples: int, features: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy values; labels that no plane separates for classifiers; counts for Poisson."""
    draw = torch.Generator().manual_seed(seed)
    x = normal(draw, samples, features)
    score = x @ normal(draw, features)
    noise = normal(draw, samples)
    if name == "poisson_regression":
        return x, torch.poisson((0.3 * score).clamp(max=3).exp(), generator=draw)
    if kind_of(runnable()[name]) == "classification":
        return x, torch.where(score + noise > 0, 1.0, -1.0).double()
    return x, score + noise
