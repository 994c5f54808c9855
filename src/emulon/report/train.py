"""`emulon train` with a pen in its hand: a finished run gets curve.json and curve.svg."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from emulon.claims.provenance import provenance
from emulon.files import write_atomically
from emulon.report.chart import chart
from emulon.report.learning_curves import run_figure
from emulon.training import RunFolder, Trained, command


def main(words: Sequence[str]) -> int:
    return command.main(list(words), keep_curve)


def keep_curve(folder: Path, trained: Trained) -> None:
    """The learner's error beside the baselines', what it took, and the picture of it."""
    device = next(trained.learner.parameters()).device
    record = provenance(device) | {
        "config": dataclasses.asdict(RunFolder(folder).config()),
        "steps": trained.steps,
        "from_step": trained.start,  # a resumed run's seconds are of its last part alone
        "seconds": round(trained.seconds, 3),
        "cpu_seconds": round(trained.cpu_seconds, 3),
        "curve": trained.curve,
        "baselines": trained.baselines,
    }
    write_atomically(folder / "curve.json", json.dumps(record, indent=1).encode())
    draw_curve(folder)


def draw_curve(folder: Path) -> None:
    """curve.svg, from curve.json alone."""
    record = json.loads((folder / "curve.json").read_text())
    write_atomically(folder / "curve.svg", chart(run_figure(record)).encode())
