"""`python -m benchmarks.networks`: networks by prompt beside PyTorch, and their audits beside their runs."""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from emulon.core.files import provenance, write_json
from emulon.report.terminal import say, table
from reproduce.arguments import Arguments, Progress, run_script

SEED, REPEATS = 0, 4
# Of the learner, whose audit takes a second a row, few.
ROWS, FEW_ROWS = 256, 16
LEARNER = Path("results/learners/small_learner")


def cases() -> dict[str, tuple[Any, Any]]:
    """Perceptrons 64-64-10 and convolutions on digits, an encoder layer, and the trained learner on a few prompts."""
    import torch
    from torch import nn

    from emulon.training import RunFolder, load_learner
    from reproduce.emulation.section_4_3 import digits

    torch.manual_seed(SEED)
    images = digits()[:ROWS]
    kinds = {"tanh": nn.Tanh(), "ReLU": nn.ReLU(), "GELU": nn.GELU()}
    found: dict[str, tuple[Any, Any]] = {
        name: (nn.Sequential(nn.Linear(64, 64), kind, nn.Linear(64, 10)).double(), images.flatten(1))
        for name, kind in kinds.items()
    }
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten()]
    found["convolutions, ReLU"] = nn.Sequential(*layers, nn.Linear(32, 10)).double(), images
    encoder = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True).double().eval()
    found["encoder layer"] = encoder, torch.randn(ROWS, 8, 16, dtype=torch.float64)
    learner, _ = load_learner(LEARNER)
    task: Any = RunFolder(LEARNER).config().make_task()
    points = (learner.tokens + 1) // 2
    drawn = task.held_out(SEED + 1, ROWS, points)
    prompts = learner._prompt(drawn.xs, drawn.ys[:, :-1]).double()
    return found | {"trained learner": (learner.double(), prompts)}


def measured(network: Any, x: Any, rows: int) -> dict[str, float]:
    """Seconds of PyTorch, of a run in mode "fast" and of its audit, each in turn; medians, and of ratios of neighbours.

    The program and the interpreter are there before; a run includes its certificate.
    """
    import torch

    from emulon import Interpreter, compile_network

    program = compile_network(network, data=x, margin=0.5)
    interpreter, plain, x = Interpreter.fitting(program), copy.deepcopy(network).double(), x[:rows]
    taken: dict[str, list[float]] = {"pytorch": [], "run": [], "audit": []}

    @torch.no_grad()
    def forward() -> None:
        plain(x)

    for number in range(REPEATS + 1):
        own = {"pytorch": seconds(lambda: [forward() for _ in range(10)]) / 10}
        own["run"] = seconds(lambda: interpreter.run(program, x))
        own["audit"] = seconds(partial(getattr, interpreter.run(program, x), "audit"))
        for name, each in own.items() if number else ():
            taken[name].append(each)
    found = {name: statistics.median(each) for name, each in taken.items()}
    pairs = {"run / pytorch": ("run", "pytorch"), "audit / run": ("audit", "run")}
    for name, (above, below) in pairs.items():
        found[name] = statistics.median([a / b for a, b in zip(taken[above], taken[below], strict=True)])
    return found


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main(words: Sequence[str]) -> int:
    parser = Arguments("benchmarks.networks", "Measure networks by prompt beside PyTorch, and audits beside runs.")
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="those whose name has this word; default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    options = parser.read(words)
    chosen = {
        name: case for name, case in cases().items() if not options.names or any(word in name for word in options.names)
    }
    progress, rows = Progress("networks"), list[dict[str, Any]]()
    for done, (name, (network, x)) in enumerate(chosen.items()):
        progress(name, done / len(chosen))
        count = FEW_ROWS if name == "trained learner" else ROWS
        rows.append({"network": name, "rows": count, **measured(network, x, count)})
    if options.json is not None:
        write_json(options.json, provenance() | {"seed": SEED, "repeats": REPEATS, "networks": rows})
    columns = ("network", "PyTorch ms", "run ms", "audit ms", "run / PyTorch", "audit / run")
    cells = [
        (
            row["network"],
            *(f"{1e3 * row[name]:.3g}" for name in ("pytorch", "run", "audit")),
            f"{row['run / pytorch']:.0f}",
            f"{row['audit / run']:.2f}",
        )
        for row in rows
    ]
    say(table(columns, cells, words=columns[:1]))
    return 0


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.networks", main, sys.argv[1:]))
