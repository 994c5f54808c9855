"""What needs a GPU, in one call: claims in parts, shared by at most three processes, and the speedrun by itself.

`python -m benchmarks.gpu --minutes 9` works through JOBS in order until the time is up. Finished parts and attempts are
kept in --out, so that the next call resumes; every call ends with the results of what is complete. Three small
learners at once fill a GPU; more slow each other down. The speedrun's clock counts only with nothing beside it.
It needs torch and numpy alone.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from benchmarks import speedrun
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import make_folder
from reproduce.arguments import Arguments, Progress, run_script, whole
from reproduce.claim import SCALES, ScaleName, claim_named
from reproduce.record import beside, measure, take_parts, write

RECORDS = ("standard", "open")
RATES = "adam-rates"
# Most informative for the time first.
CLAIMS = (
    *("learning-figure-3-width", "learning-figure-4", "emulation-table-1", "emulation-section-5.1"),
    *("emulation-table-3", "emulation-table-2", "algoformer-figure-5", "algoformer-figure-4", "algoformer-figure-3"),
    *("algoformer-figure-2", "learning-figure-3", "learning-figure-1", "learning-figure-2"),
)
JOBS = (*RECORDS, RATES, *CLAIMS)
MOST = 3


def arguments() -> Arguments:
    parser = Arguments("benchmarks.gpu", "Measure claims and speedruns on a GPU until the time is up.")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"default: all, in this order: {', '.join(JOBS)}")
    parser.add_argument("--minutes", type=whole(0), required=True, help="after these nothing further is begun")
    parser.add_argument("--processes", type=int, choices=range(1, MOST + 1), default=MOST, help=f"default: {MOST}")
    parser.add_argument("--scale", choices=SCALES, default="gpu", help="of the claims (default: gpu)")
    parser.add_argument("--seeds", type=whole(1), default=len(speedrun.SEEDS), help="of a speedrun (default: 8)")
    parser.add_argument("--steps", type=whole(0), default=0, help="of a speedrun; default: the track's own")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: ./results")
    return parser


def main(words: Sequence[str]) -> int:
    """0 when every job could be begun or put off; 1 when one crashed, after the others."""
    options = arguments().read(words)
    for job in options.jobs:
        if job not in JOBS:
            raise EmulonError(unknown("job", job, JOBS))
    deadline = time.time() + 60 * options.minutes
    make_folder(options.out / "bench")
    crashed = []
    for alone, some in groupby(options.jobs or JOBS, key=lambda job: job in RECORDS):
        jobs = list(some)
        if not alone:
            share(jobs, options.scale, options.steps, options.out, options.processes, deadline)
        for job in jobs:
            try:
                finish(job, options.scale, options.seeds, options.steps, options.out, deadline)
            except EmulonError as error:
                print(f"{job}: {error}", flush=True)
            except Exception:
                traceback.print_exc()
                crashed.append(job)
    if crashed:
        print(f"benchmarks.gpu: crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def share(jobs: Sequence[str], scale: ScaleName, steps: int, out: Path, processes: int, deadline: float) -> None:
    """Works through the jobs' parts, this process and `processes - 1` beside it; each takes what no other has."""
    given = (list(jobs), scale, steps, out, processes, deadline)
    with beside(processes - 1, work, given):
        work(*given)


def work(jobs: Sequence[str], scale: ScaleName, steps: int, out: Path, processes: int, deadline: float) -> None:
    """One process's share. A part that crashes leaves the other jobs to do."""
    for job in jobs:
        try:
            if job == RATES:
                speedrun.adam_rates(out, steps=steps, report_progress=Progress(job), deadline=deadline, wait=False)
            else:
                take_parts(claim_named(job), scale, 0, out, Progress(job), processes, deadline)
        except Exception:
            traceback.print_exc()


def finish(job: str, scale: ScaleName, seeds: int, steps: int, out: Path, deadline: float) -> None:
    """Measures a speedrun, or puts together what there is of a shared job, and prints and keeps the result."""
    if job in RECORDS:
        record = speedrun.speedrun(
            job, out, seeds=range(seeds), steps=steps, report_progress=Progress(job), deadline=deadline
        )
        print(job, *speedrun.lines(record), speedrun.keep(job, record, out), sep="\n", flush=True)
    elif job == RATES:
        for row in speedrun.adam_rates(out, steps=steps, deadline=0.0):
            print(
                f"{job}: rate {row['rate']:g}, after d {row['after_d']:.5f}, after 2d {row['after_2d']:.6f}", flush=True
            )
    else:
        claim = claim_named(job)
        result = measure(claim, scale, 0, out, deadline=0.0)
        verdict = result.verdict(claim)
        print(f"{job}: {verdict.state} ({verdict.reason})", flush=True)
        if "cannot" not in result.numbers:
            print(f"    ours  {verdict.ours}\n    {result.seconds:.1f} s, {write(result, out)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.gpu", main, sys.argv[1:]))
