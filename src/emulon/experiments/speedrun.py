"""The speedrun: in-context linear regression, from nothing to a fixed error, against the clock.

The rule. Task: 20 features, 41 points, no noise. Goal: squared error / d at most 0.02 after d examples and 0.0006 after
2d, on 4096 datasets that no training saw, evaluated in fp32, for every one of three seeds. The clock counts training
alone; building (compilation, capturing the step) is written beside it. Tracks: `standard` is a decoder of 12 layers of
width 256; `open` any transformer of this library. `python -m emulon.experiments.speedrun` needs torch alone.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emulon.errors import EmulonError, unknown
from emulon.files import make_folder, provenance, write_json
from emulon.progress import Progress, silent
from emulon.training import TrainConfig, Trained, device_of, fit

AFTER_D, AFTER_2D = 0.02, 0.0006
SEEDS = (0, 1, 2)
EVALUATIONS = 24
TASK: dict[str, Any] = {"task": "linear", "features": 20, "points": 41, "noise": 0.0, "evaluation_batch": 4096}
TRACKS = {
    "standard": TrainConfig.following("fast", "standard", **TASK, batch=256, steps=6800, early_weight=0.1),
    "open": TrainConfig.following("fast", "looped", **TASK, batch=64, steps=9800, early_weight=0.1),
}
# The standard track's model as it is usually trained; same schedule and curriculum, so that only the optimiser differs.
ADAM = TrainConfig.following("fast", "standard", **TASK, optimiser="adam", lr=1e-4, batch=64, steps=19_000)


def speedrun(
    track: str,
    *,
    seeds: Sequence[int] = SEEDS,
    compare: bool = True,
    steps: int = 0,
    report_progress: Progress = silent,
) -> dict[str, Any]:
    """One attempt a seed, and beside them Adam, as the ratio of the times to the error that Adam ends with."""
    if track not in TRACKS:
        raise EmulonError(unknown("track", track, TRACKS))
    runs = [dataclasses.replace(TRACKS[track], seed=seed) for seed in seeds]
    runs += [dataclasses.replace(ADAM, seed=seeds[0])] if compare else []
    attempts = []
    for done, config in enumerate(runs):
        config = dataclasses.replace(config, steps=steps or config.steps)
        config = dataclasses.replace(config, evaluate_every=max(config.steps // EVALUATIONS, 1))

        def told(what: str, part: float, done: int = done, seed: int = config.seed) -> None:
            report_progress(f"{track}, seed {seed}: {what}", (done + part) / len(runs))

        attempts.append(attempt(fit(config, report_progress=told)))
    record: dict[str, Any] = {"track": track, "goal": {"after_d": AFTER_D, "after_2d": AFTER_2D}}
    record |= provenance(device_of(runs[0])) | {"config": dataclasses.asdict(runs[0])}
    if compare:
        record["adam"] = compared(attempts[0], attempts.pop())
    return record | {"attempts": attempts, "reached": all(each["reached"] for each in attempts)}


def attempt(trained: Trained) -> dict[str, Any]:
    d = trained.config.features
    last = {"after_d": trained.curve[d] / d, "after_2d": trained.curve[2 * d] / d}
    history = [
        {"step": each["step"], "seconds": round(each["seconds"], 3)}
        | {"after_d": each["curve"][d] / d, "after_2d": each["curve"][2 * d] / d}
        for each in trained.history
    ]
    return {
        "seed": trained.config.seed,
        "steps": trained.steps,
        "seconds": round(trained.seconds, 2),
        "compile_seconds": round(trained.build_seconds, 2),
        **last,
        "reached": last["after_d"] <= AFTER_D and last["after_2d"] <= AFTER_2D,
        "history": history,
    }


def compared(ours: dict[str, Any], adam: dict[str, Any]) -> dict[str, Any]:
    """How many times as long Adam took to the error after d examples that it ends with."""
    equal = adam["after_d"]
    until = next((each["seconds"] for each in ours["history"] if each["after_d"] <= equal), None)
    return adam | {"ours_seconds": until, "ratio": None if until is None else adam["seconds"] / until}


def keep(record: dict[str, Any], results: Path) -> Path:
    """Beside the other tracks in results/bench/speedrun.json."""
    path = make_folder(results / "bench") / "speedrun.json"
    tracks = json.loads(path.read_text()) if path.exists() else {}
    write_json(path, tracks | {record["track"]: record})
    return path


def lines(record: dict[str, Any]) -> list[str]:
    """The table, a line an attempt."""
    shown = [f"{'seed':>4} {'steps':>7} {'seconds':>8} {'compile':>8} {'after d':>9} {'after 2d':>9}"]
    for each in record["attempts"]:
        shown.append(
            f"{each['seed']:>4} {each['steps']:>7} {each['seconds']:>8.1f} {each['compile_seconds']:>8.1f}"
            f" {each['after_d']:>9.5f} {each['after_2d']:>9.6f}{'' if each['reached'] else '  not reached'}"
        )
    if adam := record.get("adam"):
        ratio = f"{adam['ratio']:.1f} times ours" if adam["ratio"] else "which ours never reached"
        shown.append(f"Adam 1e-4: {adam['after_d']:.4f} after d examples in {adam['seconds']:.1f} s, {ratio}")
    return shown


def main(words: Sequence[str]) -> int:
    """TRACK [RESULTS]: for machines without the command line's packages."""
    track, results = (*words, "standard")[0], Path((*words, "", "results")[1] or "results")
    record = speedrun(track, report_progress=lambda what, done: None)
    print("\n".join(lines(record)), keep(record, results), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
