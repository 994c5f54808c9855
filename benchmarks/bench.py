"""`python -m benchmarks.bench`: how long things take here, as ratios within one run."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.growth import growth, slope
from emulon.core import Progress as Told
from emulon.core import silent
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import provenance, write_atomically, write_json
from emulon.report.figure import Figure, Panel, Series, chart
from emulon.report.terminal import say, table
from reproduce.arguments import Arguments, Progress, run_script

REPEATS = 5
# Whole runs: (algorithm, rows, features).
SIX = ("Ridge", "Lasso", "Fista", "HuberRegression", "LogisticRegression", "LogCoshRegression")
RUNS = [
    *((name, rows, 20) for rows in (10_000, 100_000) for name in SIX),
    ("Lasso", 500, 300),
    *(("Ridge", *shape) for shape in ((500, 600), (5000, 500))),
]
EXAMPLES = """examples, in the root of the repository:
  python -m benchmarks.bench runs                     whole runs, data to weights, beside the exact algorithms
  python -m benchmarks.bench rows --json rows.json    time and memory up to a million rows, with a figure"""


@dataclass(frozen=True)
class Timing:
    """Seconds, the median of several times and the least and most of them; and their ratio to what they stand beside.

    That is the benchmark's first line, or for a whole run the exact algorithm on the same data. NaN says that a busy
    machine left nothing to be seen.
    """

    benchmark: str
    what: str
    seconds: float
    ratio: float = 1.0
    least: float = math.nan
    most: float = math.nan
    rows: int = 0
    """Of a line that is about so many rows, with the memory it took."""
    gigabytes: float = math.nan

    @classmethod
    def of(cls, benchmark: str, what: str, taken: Sequence[float], beside: Sequence[float] | None = None) -> Timing:
        """Ratios are medians of those of neighbours in time: what slows one of them slows both."""
        pairs = zip(taken, beside, strict=True) if beside is not None else ()
        ratio = statistics.median([own / other for own, other in pairs]) if beside is not None else 1.0
        return cls(benchmark, what, statistics.median(taken), ratio, min(taken), max(taken))


def interpreter(report_progress: Told = silent) -> list[Timing]:
    """Ridge on the interpreter: cost per step as samples grow tenfold, beside the faithful path and plain descent."""
    import torch

    from emulon.algorithms import Ridge
    from emulon.interpreter import Interpreter, compile

    x = torch.randn(10_000, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    y = x.sum(dim=-1) + x[:, 0].sin()
    timings = []
    for done, samples in enumerate((1000, 10_000)):
        report_progress(f"steps on {samples} samples", done / 3)
        data = x[:samples], y[:samples]
        program = compile(Ridge(steps=201), data=data)
        machine = Interpreter.fitting(program)

        def run(steps: int, data: Any = data, program: Any = program, machine: Any = machine) -> None:
            machine.run(program.changed(steps=steps), *data)

        def whole(steps: int, data: Any = data) -> None:
            Ridge(steps=steps).run(*data)

        timings.append(_step("interpreter", f"a step, {samples} samples, fast path", run))
        timings.append(_step("interpreter", f"a step, {samples} samples, plain float64", whole))
    report_progress("the faithful path, and compiling", 2 / 3)
    small = compile(Ridge(steps=2), data=(x[:300], y[:300]))
    machine = Interpreter.fitting(small)
    (faithful,) = _together([lambda: machine.run(small.changed(steps=1), x[:300], y[:300], "reference")], 2)
    timings.append(Timing.of("interpreter", "a step, 300 samples, faithful path", faithful))
    timings.append(Timing.of("interpreter", "compiling, 300 samples", _together([_compile_anew], 2)[0]))
    return _ratios(timings)


def runs(report_progress: Told = silent) -> list[Timing]:
    """Whole runs of 200 steps on noisy data, each beside the exact algorithm, and audits beside runs.

    Seconds of one processor: with OMP_NUM_THREADS=1 what else the machine does is not counted.
    """
    from emulon import algorithms
    from emulon.interpreter import Interpreter, compile

    timings = []
    for done, (name, samples, features) in enumerate(RUNS):
        what = f"{name}, 200 steps, {samples:,} × {features:,}"
        report_progress(f"whole runs of {what}", done / len(RUNS))
        algorithm, data = getattr(algorithms, name)(steps=200), _noisy(name, samples, features)
        program = compile(algorithm, data=data)
        machine, made = Interpreter.fitting(program), dict[str, Any]()

        def run(data: Any = data, program: Any = program, machine: Any = machine, made: Any = made) -> None:
            made["run"] = machine.run(program, *data)

        def audit(made: Any = made) -> float:
            bound: float = made["run"].audit.bound
            return bound

        works: list[Callable[[], object]] = [run, partial(algorithm.run, *data), audit]
        own, exact, audited = _together(works, 2 if samples <= 10_000 else 1, time.process_time)
        timings.append(Timing.of("runs", what, own, exact))
        timings.append(Timing.of("runs", f"{what}: the exact algorithm", exact))
        timings.append(Timing.of("runs", f"{what}: the audit, beside the run", audited, own))
    return timings


def step(report_progress: Told = silent) -> list[Timing]:
    """What a step on 100,000 × 20 numbers is made of, beside reading the data twice, as plain descent does.

    Seconds of one processor, as in `runs`.
    """
    timings = []
    for done, name in enumerate(("Ridge", "HuberRegression", "LogisticRegression")):
        report_progress(f"a step of {name}", done / 3)
        timings += _parts_of_step(name, *_noisy(name, 100_000, 20))
    return timings


def _parts_of_step(name: str, x: Any, y: Any) -> list[Timing]:
    from emulon import algorithms
    from emulon.interpreter import Interpreter, compile
    from emulon.interpreter.modes import CachedPhase

    program, w = compile(getattr(algorithms, name)(steps=200), data=(x, y)), x.new_full((1, x.shape[-1]), 0.01)
    begin = time.process_time()
    steps = program.steps_on(Interpreter.fitting(program), program.loss.template_data(x, y), "fast")
    reading, phase = time.process_time() - begin, steps.gradient
    assert isinstance(phase, CachedPhase) and phase.segments is not None
    segments = phase.segments
    asked = [phase._asked(*part, w) for part in phase.parts]
    parts: dict[str, Callable[[], object]] = {
        "X·w and Xᵀ·v, part by part": lambda: [(part[0] @ w[0]) @ part[0] for part, _ in phase.parts],
        "an exponential for every row": lambda: [each.exp() for each in asked],
        "w·x − y": lambda: [phase._asked(*part, w) for part in phase.parts],
        "the softmax, by segments": lambda: [segments.read(each) for each in asked],
        "a whole step": lambda: steps.step(w[0], w[0]),
        "what reading changes, by all keys": lambda: phase._summed(phase._correction, w),
    }
    taken = _together(list(parts.values()), REPEATS, time.process_time)
    rows = [Timing.of("step", f"{name}: {part}", each, taken[0]) for part, each in zip(parts, taken, strict=True)]
    return [*rows, Timing.of("step", f"{name}: reading the data, once", [reading])]


def _noisy(name: str, samples: int, features: int) -> tuple[Any, Any]:
    """Normal numbers, and a plane through them with noise half as large, or its sign."""
    import torch

    draw = torch.Generator().manual_seed(0)
    x, w, noise = (
        torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu")
        for shape in ((samples, features), (features,), (samples,))
    )
    y = x @ w / math.sqrt(features) + 0.5 * noise
    return x, torch.where(y > 0, 1.0, -1.0).to(y.dtype) if name == "LogisticRegression" else y


def machine(report_progress: Told = silent) -> list[Timing]:
    """The register machine's SGD on many sequences, beside plain float64."""
    import torch

    from emulon.algorithms import OnlineSGD
    from emulon.machine.programs import sgd

    draw = torch.Generator().manual_seed(0)
    xs = torch.randn(256, 8, 4, generator=draw, dtype=torch.float64, device="cpu")
    ys = xs.sum(dim=-1)
    model = sgd(features=4, samples=8, step_size=0.05).compile()
    report_progress("the register machine", 0.0)
    taken = _together(
        [
            lambda: model.predict(xs, ys),
            lambda: model.predict(xs[:1], ys[:1]),
            lambda: OnlineSGD(0.05).run(xs[:, :-1], ys[:, :-1]),
        ],
        REPEATS,
    )
    named = ("256 sequences of 8, machine", "one of them, machine", "256 sequences, plain float64")
    return _ratios([Timing.of("machine", what, each) for what, each in zip(named, taken, strict=True)])


def identification(report_progress: Told = silent) -> list[Timing]:
    """`identify` on 256 datasets of 40 points, all references, and on a quarter of the datasets."""
    from emulon.algorithms import RidgeRegression
    from emulon.identification import identify
    from emulon.tasks import Linear

    def ask(datasets: int) -> None:
        identify(RidgeRegression(0.3), Linear(8), datasets=datasets, points=40)

    report_progress("identify", 0.0)
    taken = _together([lambda: ask(256), lambda: ask(64)], 2)
    named = ("256 datasets × 40 points", "64 datasets × 40 points")
    return _ratios([Timing.of("identify", what, each) for what, each in zip(named, taken, strict=True)])


def rows(report_progress: Told = silent) -> list[Timing]:
    """200 steps of ridge on up to a million rows: time and memory, each in a process of its own."""
    sizes = growth(report_progress=report_progress)
    return _ratios(
        [
            Timing("rows", f"{one.rows:,} × 10, 200 steps", one.running, rows=one.rows, gigabytes=one.memory)
            for one in sizes
        ]
    )


def slopes(timings: Sequence[Timing]) -> dict[str, float]:
    """How time and memory go with the rows, on a log–log scale, from ten thousand rows on: below, neither does yet."""
    sizes = [one for one in timings if one.rows >= 10_000]
    counts = [float(one.rows) for one in sizes]
    if len(sizes) < 2:
        return {}
    return {name: slope(counts, [getattr(one, name) for one in sizes]) for name in ("seconds", "gigabytes")}


BENCHMARKS: dict[str, Callable[[Told], list[Timing]]] = {
    "interpreter": interpreter,
    "runs": runs,
    "step": step,
    "machine": machine,
    "identify": identification,
    "rows": rows,
}
# Minutes long: measured when asked for by name.
LONG = {"rows", "runs", "step"}


def bench(names: Sequence[str] = (), report_progress: Told = silent) -> list[Timing]:
    """Runs these; all that are not LONG where none is named."""
    for name in names:
        if name not in BENCHMARKS:
            raise EmulonError(unknown("benchmark", name, BENCHMARKS))
    chosen = list(names) or [name for name in BENCHMARKS if name not in LONG]
    timings = []
    for number, name in enumerate(chosen):

        def part(what: str, done: float, number: int = number) -> None:
            report_progress(what, (number + done) / len(chosen))

        timings += BENCHMARKS[name](part)
    return timings


def write(timings: Sequence[Timing], path: Path) -> None:
    """The numbers, with machine and commit."""
    lines = [{name: part for name, part in asdict(timing).items() if part == part} for timing in timings]
    write_json(path, provenance() | {"timings": lines, "slopes": slopes(timings)})


def _compile_anew() -> None:
    """On other data every time: nothing that is remembered helps."""
    import torch

    from emulon.algorithms import Ridge
    from emulon.interpreter import compile

    x = torch.randn(300, 10, dtype=torch.float64, device="cpu")
    compile(Ridge(steps=51), data=(x, x.sum(dim=-1)))


def _step(benchmark: str, what: str, run: Callable[[int], None]) -> Timing:
    """The difference of long and short runs: what is done once does not count. It may drown in a busy machine."""
    long, short = _together([lambda: run(201), lambda: run(1)], REPEATS)
    steps = [(a - b) / 200 for a, b in zip(long, short, strict=True)]
    median = statistics.median(steps)
    return Timing(benchmark, what, median if median > 0 else math.nan, 1.0, min(steps), max(steps))


def _together(
    works: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[list[float]]:
    """Seconds of each, in turn, after a round that does not count: what disturbs one of them disturbs all."""
    taken: list[list[float]] = [[] for _ in works]
    for number in range(repeats + 1):
        for work, seconds in zip(works, taken, strict=True):
            begin = clock()
            work()
            if number:
                seconds.append(clock() - begin)
    return taken


def _ratios(timings: list[Timing]) -> list[Timing]:
    return [replace(timing, ratio=timing.seconds / timings[0].seconds) for timing in timings]


def arguments() -> Arguments:
    parser = Arguments("benchmarks.bench", "Measure how long things take here, as ratios within one run.", EXAMPLES)
    shown = f"{', '.join(BENCHMARKS)}; default: all but {', '.join(sorted(LONG))}, which take minutes"
    parser.add_argument("names", nargs="*", metavar="BENCHMARK", help=shown)
    told = "also write the numbers there, and how they grow with the rows beside them, as an SVG"
    parser.add_argument("--json", type=Path, metavar="FILE", help=told)
    return parser


def main(words: Sequence[str]) -> int:
    options = arguments().read(words)
    # Read when torch is imported: threads that wait do not take the cores from those that work.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    timings = bench(options.names, Progress("bench"))
    import torch

    grown = slopes(timings)
    if options.json is not None:
        write(timings, options.json)
        if grown:
            write_atomically(options.json.with_suffix(".svg"), _drawn(timings))
    columns = ("what", "ms", "least–most", "ratio", *(["GB"] if grown else []))
    rows = [
        (
            one.what,
            _shown(1e3 * one.seconds),
            f"{_shown(1e3 * one.least)}–{_shown(1e3 * one.most)}",
            _shown(one.ratio),
            *([_shown(one.gigabytes)] if grown else []),
        )
        for one in timings
    ]
    title = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    say(table(columns, rows, title=title, words=columns[:1]))
    for name, value in grown.items():
        say(f"{name} grow like rows^{value:.2f} from 10,000 rows on")
    return 0


def _shown(number: float) -> str:
    """A dash where a busy machine left nothing to be seen."""
    return f"{number:.3g}" if number == number else "–"


def _drawn(timings: Sequence[Timing]) -> str:
    sizes = [one for one in timings if one.rows]
    counts = [one.rows for one in sizes]
    time = Series("200 steps of ridge", counts, [one.seconds for one in sizes])
    memory = Series("above what importing takes", counts, [one.gigabytes for one in sizes])
    parts = (("seconds", time), ("GB", memory))
    return chart(Figure([Panel("rows × 10", what, [one], log_x=True, log_y=True) for what, one in parts]))


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.bench", main, sys.argv[1:]))
