"""A run that takes a second, and a process of its own for those that must be killed."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from emulon.training import TrainConfig
from emulon.training.run_folder import checkpoints, read_checkpoint

TINY = TrainConfig.of(
    features=3,
    points=5,
    noise=0.5,
    width=16,
    heads=2,
    layers=1,
    steps=60,
    batch=8,
    lr=1e-3,
    evaluate_every=20,
    evaluation_batch=32,
    log_every=1,
    checkpoint_every=7,
    device="cpu",
    threads=1,
    quiet=True,
)

FAST = TINY.changed(optimiser="muon", schedule="linear", warmup=5, init=0.0, bias=False, zero_output=True, beta2=0.99)

SOURCE = Path(__file__).parents[2] / "src"


def in_a_process(code: str, **environment: str) -> subprocess.Popen:
    """Python running `code`, with `TINY` and `train` in scope."""
    paths = os.pathsep.join([str(SOURCE), str(Path(__file__).parent)])
    header = "from emulon.training import train, resume\nfrom tiny_runs import FAST, TINY\n"
    return subprocess.Popen(
        [sys.executable, "-c", header + code],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def final_state(folder: Path) -> dict[str, torch.Tensor]:
    """The newest checkpoint's tensors: weights and optimiser."""
    found = read_checkpoint(folder / "checkpoints")
    assert found is not None
    return found[1]


def assert_identical(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


__all__ = ["FAST", "TINY", "assert_identical", "checkpoints", "final_state", "in_a_process"]
