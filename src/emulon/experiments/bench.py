"""How long things take, as ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from emulon.errors import EmulonError, unknown
from emulon.files import provenance, write_json
from emulon.progress import Progress, silent

REPEATS = 5


@dataclass(frozen=True)
class Timing:
    """Seconds, and how many times as long as the benchmark's first line that is."""

    benchmark: str
    what: str
    seconds: float
    ratio: float = 1.0


def interpreter() -> list[Timing]:
    """Ridge on the interpreter: cost per step as samples grow tenfold, beside the faithful path and plain descent."""
    import torch

    from emulon.algorithms import Ridge
    from emulon.interpreter import Interpreter, compile

    x = torch.randn(10_000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = x.sum(dim=-1) + x[:, 0].sin()
    timings = []
    for samples in (1000, 10_000):
        data = x[:samples], y[:samples]
        program = compile(Ridge(steps=51), data=data)
        machine = Interpreter.fitting(program)

        def run(steps: int, data: Any = data, program: Any = program, machine: Any = machine) -> None:
            machine.run(replace(program, steps=steps), *data)

        def whole(steps: int, data: Any = data) -> None:
            Ridge(steps=steps).run(*data)

        timings.append(Timing("interpreter", f"a step, {samples} samples, fast path", _per_step(run)))
        timings.append(Timing("interpreter", f"a step, {samples} samples, plain float64", _per_step(whole)))
    small = compile(Ridge(steps=2), data=(x[:300], y[:300]))
    machine = Interpreter.fitting(small)
    faithful = _seconds(lambda: machine.run(replace(small, steps=1), x[:300], y[:300], "faithful"), 2)
    timings.append(Timing("interpreter", "a step, 300 samples, faithful path", faithful))
    timings.append(Timing("interpreter", "compiling, 300 samples", _seconds(_compile_anew, 2)))
    return _ratios(timings)


def machine() -> list[Timing]:
    """The register machine's SGD on many sequences, beside plain float64."""
    import torch

    from emulon.algorithms import OnlineSGD
    from emulon.machine.programs import sgd

    draw = torch.Generator().manual_seed(0)
    xs = torch.randn(256, 8, 4, generator=draw, dtype=torch.float64)
    ys = xs.sum(dim=-1)
    model = sgd(features=4, samples=8, step_size=0.05).compile()
    return _ratios(
        [
            Timing("machine", "256 sequences of 8, machine", _seconds(lambda: model.predict(xs, ys))),
            Timing("machine", "one of them, machine", _seconds(lambda: model.predict(xs[:1], ys[:1]))),
            Timing(
                "machine", "256 sequences, plain float64", _seconds(lambda: OnlineSGD(0.05).run(xs[:, :-1], ys[:, :-1]))
            ),
        ]
    )


def identification() -> list[Timing]:
    """`identify` on 256 datasets of 40 points, all references, and on a quarter of the datasets."""
    from emulon.algorithms import RidgeRegression
    from emulon.interrogate import identify
    from emulon.tasks import Linear

    def ask(datasets: int) -> None:
        identify(RidgeRegression(0.3), Linear(8), datasets=datasets, points=40)

    return _ratios(
        [
            Timing("identify", "256 datasets × 40 points", _seconds(lambda: ask(256), 2)),
            Timing("identify", "64 datasets × 40 points", _seconds(lambda: ask(64), 2)),
        ]
    )


BENCHMARKS: dict[str, Callable[[], list[Timing]]] = {
    "interpreter": interpreter,
    "machine": machine,
    "identify": identification,
}


def bench(names: Sequence[str] = (), report_progress: Progress = silent) -> list[Timing]:
    """Runs these; all where none is named."""
    for name in names:
        if name not in BENCHMARKS:
            raise EmulonError(unknown("benchmark", name, BENCHMARKS))
    timings = []
    for number, name in enumerate(names or BENCHMARKS):
        report_progress(name, number / len(names or BENCHMARKS))
        timings += BENCHMARKS[name]()
    return timings


def write(timings: Sequence[Timing], path: Path) -> None:
    """The numbers, with machine and commit."""
    write_json(path, provenance() | {"timings": [asdict(timing) for timing in timings]})


def _compile_anew() -> None:
    """On other data every time: nothing that is remembered helps."""
    import torch

    from emulon.algorithms import Ridge
    from emulon.interpreter import compile

    x = torch.randn(300, 10, dtype=torch.float64)
    compile(Ridge(steps=51), data=(x, x.sum(dim=-1)))


def _per_step(run: Callable[[int], None]) -> float:
    """The difference of long and short runs: what is done once does not count."""
    return max(_seconds(lambda: run(51)) - _seconds(lambda: run(1)), 1e-9) / 50


def _seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The median of some runs, after one that does not count."""
    work()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _ratios(timings: list[Timing]) -> list[Timing]:
    return [replace(timing, ratio=timing.seconds / timings[0].seconds) for timing in timings]
