"""A run of a network looked at phase by phase: how much each was given, how long it took, how far off it is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from torch import Tensor

from emulon.attention import Trace
from emulon.networks.exactly import ArbNetwork
from emulon.networks.phase import NetworkPhase
from emulon.networks.program import TELLS, NetworkRun, enclosures
from emulon.networks.ranges import reading

# Rows of a run that are looked at.
ROWS = 16
BITS = 256


@dataclass(frozen=True)
class PhaseSeen:
    """`tokens` are those of all its prompts, `keys` those of one, which a query may look at.

    `off` bounds how far the register that it wrote is from the exact network's, errors of all phases before it
    included; infinite where nothing is known. `looks` (queries, keys) is where the queries of its first prompt look:
    the weights of layer 2.
    """

    phase: NetworkPhase
    tokens: int
    keys: int
    seconds: float
    off: float
    looks: Tensor | None


def seen(run: NetworkRun) -> list[PhaseSeen]:
    """Every phase once more, by the same path, on the first rows."""
    program, registers = run.program, [run.inputs[:ROWS]]
    found = list[PhaseSeen]()
    for phase in program.phases:
        given = reading(phase.layer, registers)
        sizes = [prompt.tokens.shape for prompt in phase.prompts(given)]
        tokens, keys = sum(size[0] * size[1] for size in sizes), max((size[1] for size in sizes), default=0)
        start = time.perf_counter()
        registers.append(phase.run(run.interpreter, given, run.mode))
        taken = time.perf_counter() - start
        found.append(PhaseSeen(phase, tokens, keys, taken, math.inf, _looks(run, phase, given[:1])))
    return [replace(each, off=off) for each, off in zip(found, _off(run, registers[1:]), strict=True)]


def _looks(run: NetworkRun, phase: NetworkPhase, x: Tensor) -> Tensor | None:
    """On the first row alone, so that nothing large is kept."""
    with Trace() as trace:
        phase.run(run.interpreter, x, run.mode)
    records = [record for record in trace.records if record.name == "layer 2"]
    return records[0].weights.reshape(-1, *records[0].weights.shape[-2:])[0] if records else None


def _off(run: NetworkRun, registers: list[Tensor]) -> list[float]:
    """By balls of twice the precision on all rows; by Arb, on the first row, from where these are too wide to tell."""
    layers, x = run.program.layers, run.inputs[:ROWS]
    balls = enclosures(layers, x)[1:]
    wide = [ball.radius.nan_to_num(nan=math.inf).max().item() for ball in balls]
    off = [
        ball.distance_from(own).nan_to_num(nan=math.inf).max().item()
        for ball, own in zip(balls, registers, strict=True)
    ]
    tells = [math.isfinite(away) and width <= TELLS * away for width, away in zip(wide, off, strict=True)]
    if all(tells):
        return off
    exact = ArbNetwork(layers).away(x[0], [own[0] for own in registers], BITS)
    return [away if told else one for told, away, one in zip(tells, off, exact, strict=True)]
