"""Whole runs on a processor and on a GPU, there step by step and with the step captured as a CUDA graph.

`python -m benchmarks.devices prepare FOLDER` compiles the programs and proves them. `python -m benchmarks.devices
measure FOLDER --out FILE` runs them with torch alone, on a machine that has neither ball
arithmetic nor sympy: there a program is believed for its sha256, which stands in the folder beside it.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.algorithms import Lasso, LogisticRegression, NamedAlgorithm, Ridge
from emulon.attention.codes import circular
from emulon.certify import Domain, Spectrum
from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, provenance, write_json
from emulon.interpreter import Interpreter, Mode, Program, compile, load_program, save
from emulon.interpreter.files import file_sha256
from emulon.interpreter.phase import SPARE
from reproduce.arguments import Arguments, run_script, whole

FEATURES, STEPS, REPEATS = 20, 200, 3
# Rows of the prepared files: codes are made anew for those of the data.
FEW = 64
MANIFEST = "proved.json"
# On a processor: more rows than these are run once, and than those not at all, for they take minutes.
FEW_ROWS, AFFORDABLE = 10_000, 100_000


@dataclass(frozen=True)
class Case:
    """An algorithm, the rows it is run on, and bounds that its data keep whatever their number."""

    algorithm: NamedAlgorithm
    rows: tuple[int, ...]
    domain: Domain
    labels: bool = False

    def data(self, rows: int) -> tuple[Tensor, Tensor]:
        """Normal numbers up to ±4.5, and a noisy plane through them, up to ±6, or its sign."""
        draw = torch.Generator().manual_seed(rows)
        x = torch.randn(rows, FEATURES, generator=draw, dtype=torch.float64, device="cpu").clamp_(-4.5, 4.5)
        plane = torch.where(torch.arange(FEATURES, device="cpu") % 2 == 0, 1.0, -1.0).double() / FEATURES**0.5
        y = x @ plane + torch.randn(rows, generator=draw, dtype=torch.float64, device="cpu")
        return x, torch.where(y > 0, 1.0, -1.0).double() if self.labels else y.clamp_(-6.0, 6.0)


SPECTRUM = Spectrum(largest=1.3)
VALUES = Domain(FEW, FEATURES, 4.5, 6.0, 0.5, residual=12.0, absolute=20.0, spectrum=SPECTRUM)
LABELS = Domain(FEW, FEATURES, 4.5, 1.0, 1.0, residual=12.0, absolute=25.0, spectrum=SPECTRUM)
CASES = {
    "ridge": Case(Ridge(0.1, STEPS, 0.5), (10_000, 100_000, 1_000_000), VALUES),
    "lasso": Case(Lasso(0.05, STEPS, 0.5), (100_000,), VALUES),
    "logistic": Case(LogisticRegression(0.01, STEPS, 2.0), (100_000,), LABELS, labels=True),
}


@dataclass(frozen=True)
class Line:
    """A run from data, which are on the device, to weights: median seconds, and those of the first, with what it loads.

    `one_step` is a run of a single step: reading the data, checks, and the capture where there is one. `off` is how far
    the weights are from the exact algorithm's on the same device, and `ratio` how many times its seconds were taken;
    `apart` is how far they are from those of the case's first line.
    """

    case: str
    rows: int
    where: str
    seconds: float
    first: float
    one_step: float
    runs: int
    off: float
    apart: float
    ratio: float


def prepare(folder: Path) -> None:
    """Each program for its most rows, kept for few, and read back, which proves it."""
    make_folder(folder)
    proved = {}
    for name, case in CASES.items():
        most = replace(case.domain, samples=max(case.rows))
        path = folder / f"{name}.safetensors"
        save(for_rows(compile(case.algorithm, most), FEW), path)
        load_program(path)
        proved[name] = file_sha256(path)
        print(f"{path}: proved, sha256 {proved[name][:12]}…", flush=True)
    write_json(folder / MANIFEST, proved)


def for_rows(program: Program, rows: int) -> Program:
    """The same on data of so many rows: the softmaxes and their proofs stay, codes are made anew.

    Claim: the certificate follows again. Proof. Of all terms, the leak and the sums over samples alone know how many
    there are: codes are given the strength that the leak asks for, and the terms are computed anew. QED
    """
    if program.descent.batch is not None:
        raise EmulonError("a program for batches has its number of rows in its steps; compile it for the other")
    phase, codes = program.gradient, circular(rows, program.dtype)
    ahead = phase.grid.log_normaliser_range + math.log(max(rows - 1, 1) / phase.proved.leak) + SPARE
    domain = replace(phase.domain, samples=rows)
    phase = replace(phase, domain=domain, codes=codes, strength=ahead / codes.gap)
    plan = replace(program.plan, rows=rows, domain=replace(program.domain, samples=rows))
    return replace(program, plan=plan, gradient=phase)


def measure(folder: Path, out: Path, device: str, sizes: Sequence[int] = (), patience: float = 60.0) -> list[Line]:
    """All cases, on the device first and then on the processor for about `patience` seconds; written as they come."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        raise EmulonError(f"{manifest} is missing; write it with: python -m benchmarks.devices prepare FOLDER")
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise EmulonError("there is no GPU here; give --device cpu")
    proved, lines, ends = json.loads(manifest.read_text()), list[Line](), dict[tuple[str, int], Tensor]()
    torch.set_num_threads(1)  # small blocks wait for each other
    for where in dict.fromkeys((device, "cpu")):
        late = time.perf_counter() + patience
        for name, case in CASES.items():
            program = load_program(folder / f"{name}.safetensors", proved[name])
            for rows in sorted(sizes or case.rows):
                if where == "cpu" and (time.perf_counter() > late or rows > AFFORDABLE):
                    continue
                for told, weights, line in _measured(for_rows(program, rows), case.data(rows), torch.device(where)):
                    apart = (weights - ends.setdefault((name, rows), weights)).abs().max().item()
                    lines.append(Line(name, rows, f"{where}, {told}", apart=apart, **line))
                    print(json.dumps(asdict(lines[-1])), flush=True)
                    write_json(out, provenance(device) | {"proved elsewhere": proved, "lines": [*map(asdict, lines)]})
    return lines


def _measured(
    program: Program, data: tuple[Tensor, Tensor], device: torch.device
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """How it ran, the weights it ended with, and the rest of its line."""
    x, y = (part.to(device) for part in data)
    interpreter = Interpreter.fitting(program).on(device)
    repeats = REPEATS if device.type == "cuda" or len(x) <= FEW_ROWS else 1
    _, beside, exact = _timed(lambda: program.descent.run(x, y), device, repeats)
    ways: dict[Mode, str] = {"fast": "step by step"}
    if device.type == "cuda":
        ways["cuda_graph"] = "as a CUDA graph"
    for path, told in ways.items():

        def run(steps: int, path: Mode = path) -> Tensor:
            return interpreter.run(program.changed(steps=steps), x, y, path).last

        first, seconds, weights = _timed(partial(run, STEPS), device, repeats)
        _, once, _ = _timed(partial(run, 1), device, repeats)
        off = (weights - exact).abs().max().item()
        line = {"seconds": seconds, "first": first, "one_step": once, "runs": repeats, "ratio": seconds / beside}
        yield told, weights.cpu(), line | {"off": off}


def _timed(work: Callable[[], Any], device: torch.device, repeats: int) -> tuple[float, float, Any]:
    """(seconds of the first time, median of the others, what came of it); of one time alone, that twice."""
    taken = []
    for _ in range(repeats + (repeats > 1)):
        _wait(device)
        begin = time.perf_counter()
        answer = work()
        _wait(device)
        taken.append(time.perf_counter() - begin)
    return taken[0], statistics.median(taken[1:] or taken), answer


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def arguments() -> Arguments:
    parser = Arguments("benchmarks.devices", "Whole runs on a processor and on a GPU.")
    parser.add_argument("what", choices=("prepare", "measure"), help="compile and prove programs, or run them")
    parser.add_argument("folder", type=Path, help="of the programs")
    parser.add_argument("--out", type=Path, default=Path("results/bench/devices.json"), metavar="FILE")
    parser.add_argument("--device", default="cuda", help="beside the processor")
    parser.add_argument("--rows", type=whole(1), action="append", default=[], help="default: those of each case")
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    if options.what == "prepare":
        prepare(options.folder)
    else:
        measure(options.folder, options.out, options.device, options.rows)
    return 0


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.devices", main, sys.argv[1:]))
