"""How blocks, width and seconds of planted Llamas grow with features and samples, to 16 features and 64 samples.

    python -m benchmarks.planted_growth

Results go to results/bench/planted_growth.json and .svg. Each mechanism grows in one of the two from 4 features and 8
samples, then in both. `seconds` is from the mechanism to the weights, `proving` from there to the bound (null: nothing
is proved). Then both are doubled for as long as weights and bound are there within a minute, each model in a process of
its own with at most three quarters of the memory: `within_a_minute`.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

import torch

from emulon.core.errors import EmulonError
from emulon.core.files import provenance, write_atomically, write_json
from emulon.machine.targets.llama_registers import compile_registers
from emulon.planted import mechanism_named
from emulon.report.figure import Figure, Panel, Series, chart

RESULTS = Path(__file__).parents[1] / "results" / "bench"
MECHANISMS = ("sgd", "batch descent", "ridge")
FEATURES, SAMPLES, LARGEST = (1, 2, 4, 8, 16), (4, 8, 16, 32, 64), (16, 64)
FIXED = {"features": 4, "samples": 8}
SHOWN = ("blocks", "width", "seconds")
MINUTE = 60


def main() -> None:
    torch.set_num_threads(1)
    measured(MECHANISMS[0], 1, 2)  # warm
    rows = []
    for name in MECHANISMS:
        sizes = [(d, FIXED["samples"]) for d in FEATURES] + [(FIXED["features"], n) for n in SAMPLES] + [LARGEST]
        for features, samples in dict.fromkeys(sizes):
            rows.append(measured(name, features, samples))
            print(rows[-1], flush=True)
    largest = []
    for name in MECHANISMS:
        largest.append(largest_within(MINUTE, name))
        print(largest[-1], flush=True)
    write_json(RESULTS / "planted_growth.json", {**provenance(), "rows": rows, "within_a_minute": largest})
    write_atomically(RESULTS / "planted_growth.svg", chart(drawn(rows)))


def measured(name: str, features: int, samples: int) -> dict[str, Any]:
    """One model: its sizes, and seconds; or why it cannot be made."""
    begun = time.perf_counter()
    try:
        machine = compile_registers(mechanism_named(name, features=features, samples=samples).program())
        made = time.perf_counter()
        bound = machine.certificate.bound
        proved = bound if math.isfinite(bound) else None
    except EmulonError as error:
        return {"mechanism": name, "features": features, "samples": samples, "refused": str(error)}
    sizes = {"blocks": machine.depth, "width": machine.width, "heads": machine.heads, "neurons": machine.inner}
    seconds = {"seconds": made - begun, "proving": time.perf_counter() - made}
    return {"mechanism": name, "features": features, "samples": samples, **sizes, **seconds, "bound": proved}


def largest_within(seconds: int, name: str) -> dict[str, Any]:
    """The last model, features and samples doubled from `LARGEST`, and why there is none larger."""
    (features, samples), row = LARGEST, dict[str, Any]()
    while True:
        asked = f"{features} features and {samples} samples"
        try:
            found = alone(name, features, samples, seconds)
        except (MemoryError, RuntimeError) as error:
            if "memory" not in str(error) and not isinstance(error, MemoryError):
                raise
            return {**row, "ended": f"{asked} take more memory than there is"}
        if found is None:
            return {**row, "ended": f"{asked} take more than {seconds} s"}
        if "refused" in found:
            return {**row, "ended": found["refused"]}
        row, features, samples = found, 2 * features, 2 * samples


def alone(name: str, features: int, samples: int, seconds: int) -> dict[str, Any] | None:
    """`measured` in a process of its own; None where it takes longer."""
    with multiprocessing.get_context("spawn").Pool(1, bounded) as pool:
        pool.apply(measured, (name, 1, 2))  # imports and first calls
        try:
            return pool.apply_async(measured, (name, features, samples)).get(timeout=seconds)
        except multiprocessing.TimeoutError:
            return None


def bounded() -> None:
    torch.set_num_threads(1)
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def drawn(rows: list[dict[str, Any]]) -> Figure:
    """Over features and over samples, a line for every mechanism."""
    panels = []
    for over, other in (("features", "samples"), ("samples", "features")):
        for what in SHOWN:
            series = []
            for name in MECHANISMS:
                line = [row for row in rows if row["mechanism"] == name and row[other] == FIXED[other] and what in row]
                line.sort(key=lambda row: int(row[over]))
                series.append(Series(name, [row[over] for row in line], [row[what] for row in line]))
            title = f"{FIXED[other]} {other}"
            panels.append(Panel(over, what, series, title=title, log_x=True, log_y=True))
    return Figure(panels)


if __name__ == "__main__":
    main()
