"""Seeds of one configuration as stacked parameters (torch.func, one batched product a layer) against one after another.

    PYTHONPATH=src python benchmarks/stacked_seeds.py --out results    # a minute on one CPU core

CPU seconds, so that a shared machine does not matter. Both ways draw the same data, clip each seed by its own norm and
take the same Adam step; after three steps the losses are compared.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from emulon.claims.provenance import provenance
from emulon.files import write_atomically
from emulon.models import Learner
from emulon.tasks import Task, at_step
from emulon.training import Together, TrainConfig, TrainStep

SIZES: dict[str, dict[str, int]] = {
    "small": {"width": 48, "layers": 4, "heads": 4, "batch": 64},
    "small, batch 8": {"width": 48, "layers": 4, "heads": 4, "batch": 8},
    "tiny, batch 8": {"width": 16, "layers": 2, "heads": 2, "batch": 8},
}


class Loss(nn.Module):
    """A learner's loss as its forward, which is what `functional_call` calls."""

    def __init__(self, learner: Learner, task: Task) -> None:
        super().__init__()
        self.learner, self.task = learner, task

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.learner.loss(tokens, targets, self.task.asked)


class Stacked:
    """All seeds in one step."""

    def __init__(self, configs: list[TrainConfig], task: Task) -> None:
        self.configs, self.task, self.generator = configs, task, torch.Generator()
        # the readable attention: torch has no batched rule for the fused CPU kernel and would call it seed by seed
        losses = [Loss(dataclasses.replace(config, fused=False).make_learner(task), task) for config in configs]
        self.parameters = stack_module_state(losses)[0]
        one = losses[0].to("meta")
        self.gradients = vmap(grad_and_value(lambda weights, *data: functional_call(one, weights, data)))
        self.optimiser = torch.optim.Adam(self.parameters.values(), lr=configs[0].lr, fused=True)

    def __call__(self, step: int) -> Tensor:
        drawn = [self.task.sample(at_step(self.generator, c.seed, step), c.batch) for c in self.configs]
        tokens, targets = torch.stack([d.tokens for d in drawn]), torch.stack([d.targets for d in drawn])
        with torch.no_grad():
            found, loss = self.gradients({n: p.detach() for n, p in self.parameters.items()}, tokens, targets)
            norm = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
            scale = (self.configs[0].clip / (norm + 1e-6)).clamp(max=1.0)
            for name, parameter in self.parameters.items():
                parameter.grad = found[name] * scale.reshape(-1, *[1] * (parameter.ndim - 1))
        self.optimiser.step()
        return loss


def cpu_ms(step: Callable[[int], object], count: int = 40) -> float:
    began = time.process_time()
    for k in range(3, 3 + count):
        step(k)
    return (time.process_time() - began) / count * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name, size in SIZES.items():
        for seeds in (2, 4):
            base = TrainConfig(features=5, points=11, noise=0.5, init=0.08, lr=2e-3, **size)
            configs, task = [dataclasses.replace(base, seed=seed) for seed in range(seeds)], base.make_task()
            apart = Together([TrainStep(c.make_learner(task), task, c, torch.device("cpu")) for c in configs])
            stacked = Stacked(configs, task)
            for k in range(3):
                one, other = torch.stack(apart(k)), stacked(k)
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            took = cpu_ms(apart), cpu_ms(stacked)
            row = {"size": name, "seeds": seeds, "apart_ms": took[0], "stacked_ms": took[1], "ratio": took[0] / took[1]}
            print(f"{name}, {seeds} seeds: apart {took[0]:.1f} ms, stacked {took[1]:.1f} ms, {row['ratio']:.2f}×")
            rows.append(row)
    report = provenance(torch.device("cpu")) | {"sizes": SIZES, "rows": rows}
    write_atomically(args.out / "stacked_seeds.json", json.dumps(report, indent=1).encode())


if __name__ == "__main__":
    main()
