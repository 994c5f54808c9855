"""Time and memory of a whole run as the rows grow tenfold, each size in a process of its own.

`python -m benchmarks.growth ROWS` is such a process: it prints what it measured of itself.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from emulon.core import Progress, silent
from emulon.core.errors import WorkFailed

FEATURES, STEPS = 10, 200
ROWS = (1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Size:
    """Seconds to compile ridge and to run it; the most memory held, in GB, above what importing takes and in all."""

    rows: int
    compiling: float
    running: float
    memory: float
    peak: float


def growth(counts: Sequence[int] = ROWS, report_progress: Progress = silent) -> Iterator[Size]:
    for count in counts:
        # The time goes with the rows: most of it is the last.
        report_progress(f"{count:,} rows, {STEPS} steps", count / (2 * max(counts)))
        command = [sys.executable, "-m", "benchmarks.growth", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["killed, perhaps for its memory"])[-1]
            raise WorkFailed(f"the run on {count:,} rows failed: {why}; name fewer, or free some memory")
        yield Size(**json.loads(done.stdout))


def slope(x: Sequence[float | int], y: Sequence[float | int]) -> float:
    """Of log y over log x, by least squares: 1 is in proportion, 2 like a square."""
    across, up = [math.log(each) for each in x], [math.log(each) for each in y]
    middle, level = sum(across) / len(across), sum(up) / len(up)
    shared = sum((a - middle) * (b - level) for a, b in zip(across, up, strict=True))
    return shared / sum((a - middle) ** 2 for a in across)


def _measured(rows: int) -> Size:
    import resource

    import torch

    from emulon.algorithms import Ridge
    from emulon.interpreter import Interpreter, compile

    def held() -> float:
        """In GB; Linux counts kilobytes, macOS bytes."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1e9 if sys.platform == "darwin" else 1e6)

    compile(
        Ridge(steps=2, step_size=0.1),
        data=(torch.eye(4, dtype=torch.float64, device="cpu"), torch.ones(4, device="cpu")),
    )  # imports the rest
    before = held()
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu")
    y = x.sum(dim=-1) + x[:, 0].sin()
    begin = time.perf_counter()
    program = compile(Ridge(steps=STEPS), data=(x, y))
    compiled = time.perf_counter()
    Interpreter.fitting(program).run(program, x, y)
    return Size(rows, compiled - begin, time.perf_counter() - compiled, max(held() - before, 1e-3), held())


if __name__ == "__main__":
    print(json.dumps(asdict(_measured(int(sys.argv[1])))))
