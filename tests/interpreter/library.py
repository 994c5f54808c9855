"""The library on small data: a case for every algorithm. As a script: compile them all and save them into a folder."""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from emulon.algorithms import ALGORITHMS, Algorithm, GradientDescent, Loss
from emulon.interpreter import compile, save

SAMPLES, FEATURES, STEPS = 40, 4, 60
KINKS = {"lasso", "fista", "elastic_net", "huber_regression", "squared_hinge"}
JUMPS = {"quantile_regression", "perceptron"}
# Those that cannot keep the tolerance below, and say so.
MISSED = KINKS | {"heavy_ball", "nesterov", "log_cosh_regression", "any_loss"}
LABELS = {"logistic_regression", "squared_hinge", "perceptron"}


@dataclass(frozen=True)
class Case:
    name: str
    algorithm: Algorithm
    x: Tensor
    y: Tensor

    @property
    def smooth(self) -> bool:
        return self.name not in KINKS | JUMPS


def dataset(kind: str, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Noisy values, labels that no plane separates, or counts."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    score = x @ torch.tensor([1.0, -0.5, 0.05, 0.3], dtype=torch.float64)
    noise = torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
    if kind == "label":
        return x, torch.where(score + noise > 0, 1.0, -1.0).double()
    if kind == "count":
        return x, torch.poisson((0.5 * score).exp(), generator=generator)
    return x, score + noise


def case(name: str, steps: int = STEPS) -> Case:
    kind = "label" if name in LABELS else "count" if name == "poisson_regression" else "value"
    if name == "any_loss":
        return Case(name, GradientDescent(Loss.of("sqrt(1 + t**2)", curvature=1.0), steps), *dataset(kind))
    return Case(name, ALGORITHMS[name](steps=steps), *dataset(kind))


NAMES = [name for name in ALGORITHMS if name != "newton_least_squares"] + ["any_loss"]

if __name__ == "__main__":
    for each in map(case, NAMES):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            program = compile(each.algorithm, data=(each.x, each.y), tolerance=1e-10)
        assert bool(told) == (each.name in MISSED), f"{each.name}: {[str(one.message) for one in told]}"
        save(program, Path(sys.argv[1]) / f"{each.name}.safetensors")
