"""What needs a GPU, in one call: claims in parts, shared by at most three processes, and the speedrun by itself.

`python -m benchmarks.gpu --minutes 9` works through JOBS in order until the time is up. Finished parts and attempts are
kept in --out, so that the next call resumes; every call ends with the results of what is complete. On a machine that
may go away at any time, --archive FILE has all of them in one file, read at the start and written every few seconds:
copy it often. Three small learners at once fill a GPU; more slow each other down. The speedrun's clock counts only with
nothing beside it. It needs torch and numpy alone.
"""

from __future__ import annotations

import multiprocessing
import sys
import tarfile
import threading
import time
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from benchmarks import speedrun
from emulon.core.errors import EmulonError, unknown
from emulon.core.files import make_folder
from reproduce.arguments import Arguments, Progress, run_script, whole
from reproduce.claim import SCALES, ScaleName, claim_named
from reproduce.record import measure, superseded, take_parts, write

RECORDS = ("standard", "open")
# Most informative for the time first.
CLAIMS = (
    *("learning-figure-3-width", "learning-figure-4", "emulation-table-1", "emulation-section-5.1"),
    *("emulation-table-3", "emulation-table-2", "algoformer-figure-5", "algoformer-figure-4", "algoformer-figure-3"),
    *("ours-loop-forms", "algoformer-figure-2", "learning-figure-3", "learning-figure-1", "learning-figure-2"),
)
JOBS = (*RECORDS, *speedrun.COMPARED, *CLAIMS)
MOST = 3
# Between two looks at what is to be archived.
SECONDS = 5.0


def arguments() -> Arguments:
    parser = Arguments("benchmarks.gpu", "Measure claims and speedruns on a GPU until the time is up.")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"default: all, in this order: {', '.join(JOBS)}")
    parser.add_argument("--minutes", type=whole(0), required=True, help="after these nothing further is begun")
    parser.add_argument("--processes", type=int, choices=range(1, MOST + 1), default=MOST, help=f"default: {MOST}")
    parser.add_argument("--scale", choices=SCALES, default="gpu", help="of the claims (default: gpu)")
    parser.add_argument("--seeds", type=whole(1), default=len(speedrun.SEEDS), help="of a speedrun (default: 8)")
    parser.add_argument("--steps", type=whole(0), default=0, help="of a speedrun; default: the track's own")
    parser.add_argument("--out", type=Path, default=Path("results"), metavar="DIR", help="default: ./results")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="finished parts as one .tar, in and out of --out")
    return parser


def main(words: Sequence[str]) -> int:
    """0 when every job could be begun or put off; 1 when one crashed, after the others."""
    options = arguments().read(words)
    for job in options.jobs:
        if job not in JOBS:
            raise EmulonError(unknown("job", job, JOBS))
    deadline = time.time() + 60 * options.minutes
    make_folder(options.out / "bench")
    with archived(options.archive, options.out) if options.archive else nullcontext():
        crashed = work_through(options, deadline)
    if crashed:
        print(f"benchmarks.gpu: crashed: {', '.join(crashed)}", file=sys.stderr)
    return 1 if crashed else 0


def work_through(options: Namespace, deadline: float) -> list[str]:
    """The names of the jobs that crashed."""
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
    return crashed


@contextmanager
def archived(file: Path, results: Path) -> Iterator[None]:
    """Unpacks the archive, where there is one, and keeps in it what the work inside adds to the results."""
    make_folder(file.parent)

    def written() -> set[tuple[Path, int]]:
        paths = [path for pattern in ("claims/**/*.json", "bench/**/*.json") for path in results.glob(pattern)]
        return {(path, path.stat().st_mtime_ns) for path in paths if path.exists()}

    before, over = written(), threading.Event()
    if file.exists():
        try:
            with tarfile.open(file) as old:
                old.extractall(results, filter="data")
        except tarfile.TarError as error:
            raise EmulonError(f"{file} is not an archive of finished parts ({error}); give another name") from None

    def keep() -> None:
        kept: set[tuple[Path, int]] = set()
        while True:
            last, new = over.wait(SECONDS), written() - before
            if new != kept:
                kept = new
                part = file.with_name(f".{file.name}")
                with tarfile.open(part, "w") as archive:
                    for path in sorted(path for path, _ in new if path.exists()):
                        archive.add(path, path.relative_to(results))
                part.replace(file)
            if last:
                return

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()


def share(jobs: Sequence[str], scale: ScaleName, steps: int, out: Path, processes: int, deadline: float) -> None:
    """Works through the jobs' parts, this process and `processes - 1` beside it; each takes what no other has."""
    given = (list(jobs), scale, steps, out, processes, deadline)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=work, args=given) for _ in range(processes - 1)]
    for process in others:
        process.start()
    try:
        work(*given)
    except BaseException:
        for process in others:
            process.terminate()
        raise
    finally:
        for process in others:
            process.join()


def work(jobs: Sequence[str], scale: ScaleName, steps: int, out: Path, processes: int, deadline: float) -> None:
    """One process's share. A part that crashes leaves the other jobs to do."""
    for job in jobs:
        try:
            if job in speedrun.COMPARED:
                shown = Progress(job)
                speedrun.compared(job, out, steps=steps, report_progress=shown, deadline=deadline, wait=False)
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
    elif job in speedrun.COMPARED:
        for name, row in speedrun.compared(job, out, steps=steps, deadline=0.0).items():
            print(f"{name}: after d {row['after_d']:.5f}, after 2d {row['after_2d']:.6f}", flush=True)
    else:
        claim = claim_named(job)
        result = measure(claim, scale, 0, out, deadline=0.0)
        if superseded(result, claim, out):
            return print(f"{job}: its complete result stays", flush=True)
        verdict = result.verdict(claim)
        print(f"{job}: {verdict.state} ({verdict.reason})", flush=True)
        if result.tested:
            print(f"    ours  {verdict.ours}\n    {result.seconds:.1f} s, {write(result, out)}", flush=True)


if __name__ == "__main__":
    sys.exit(run_script("benchmarks.gpu", main, sys.argv[1:]))
