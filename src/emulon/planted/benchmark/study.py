"""Many specimens, plain and in every disguise, under many methods; and what that comes to."""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import torch

from emulon.core.errors import EmulonError, unknown
from emulon.core.progress import Progress, silent
from emulon.identification.curves import Interval, bootstrap_means, bounds, intervals
from emulon.planted import DISGUISES, disguise, sample
from emulon.planted.benchmark.answers import Answers, method_named
from emulon.planted.benchmark.questions import ask
from emulon.planted.benchmark.scores import MEASURES, score
from emulon.planted.benchmark.subject import Subject

PLAIN, ALL = "plain", "all at once"
DRESSES = (PLAIN, *DISGUISES, ALL)


@dataclass(frozen=True)
class Row:
    """One method on one specimen in one dress."""

    seed: int
    mechanism: str
    dress: str
    method: str
    scores: dict[str, float]


@dataclass(frozen=True)
class Cell:
    """A mean over specimens, with how many there were, and its difference from the same specimens undressed."""

    method: str
    measure: str
    dress: str
    score: Interval
    specimens: int
    change: Interval | None

    @property
    def moved(self) -> str:
        """↑ or ↓ where the interval of the change leaves out zero."""
        if self.change is None or self.change.low <= 0 <= self.change.high:
            return ""
        return "↑" if self.change.value > 0 else "↓"


def specimens_scored(
    methods: Sequence[str],
    seeds: Sequence[int],
    dresses: Sequence[str] = DRESSES,
    *,
    processes: int = 1,
    progress: Progress = silent,
) -> list[Row]:
    """Every method on the specimens of these seeds, in every dress; the same whatever the number of processes."""
    for name in methods:
        method_named(name)  # refused here, and not by a process far away
    for dress in dresses:
        if dress not in DRESSES:
            raise EmulonError(unknown("disguise", dress, DRESSES))
    found: dict[int, list[Row]] = {}
    for done, (seed, rows) in enumerate(_each(methods, seeds, dresses, processes)):
        found[seed] = rows
        progress(f"specimen {seed}: {rows[0].mechanism}" if rows else f"specimen {seed}", (done + 1) / len(seeds))
    return [row for seed in seeds for row in found[seed]]


def _each(
    methods: Sequence[str], seeds: Sequence[int], dresses: Sequence[str], processes: int
) -> Iterator[tuple[int, list[Row]]]:
    if processes == 1:
        for seed in seeds:
            yield seed, _one(methods, seed, dresses)
        return
    # Spawned: a fork of a process that has used torch's threads may wait for them for ever.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        # Ctrl-C reaches every process of a terminal: workers are born with it blocked, and end with this one.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            waiting = {pool.submit(_one, methods, seed, dresses): seed for seed in seeds}
        finally:
            workers = set(multiprocessing.active_children()) - others
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        try:
            for ready in as_completed(waiting):
                yield waiting[ready], ready.result()
        except BaseException:  # an interrupt, too: neither what has begun nor what has not is waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            raise


def _one(methods: Sequence[str], seed: int, dresses: Sequence[str]) -> list[Row]:
    """One specimen. In every dress the questions are the same ones; what is random in a method is drawn anew."""
    specimen, rows = sample(seed), []
    for dress in dresses:
        only = DISGUISES if dress == ALL else (dress,)
        dressed = specimen if dress == PLAIN else disguise(specimen, seed=seed, only=only)
        questions = ask(dressed, seed, draw=DRESSES.index(dress))
        for name in methods:
            answers = _answered(name, questions.subject, f"specimen {seed}, {dress}")
            rows.append(Row(seed, str(specimen.mechanism), dress, name, score(answers, questions)))
    return rows


def _answered(name: str, subject: Subject, where: str) -> Answers:
    """A method's answers. One of somebody else's may do anything: what it did wrong is said in one line."""
    chosen = method_named(name)
    try:
        answers = chosen(subject)
    except Exception as error:
        if ":" not in name:
            raise
        raise EmulonError(f"{name} failed ({where}): {type(error).__name__}: {error}; mend it") from error
    if not isinstance(answers, Answers):
        raise EmulonError(
            f"{name} returned a {type(answers).__name__}; a method returns emulon.planted.benchmark.Answers"
        )
    return answers


def summary(rows: Sequence[Row]) -> list[Cell]:
    """By method, measure and dress, as they come; what no specimen could be scored for is left out."""
    by_key: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        for measure, value in row.scores.items():
            scored = by_key.setdefault((row.method, measure, row.dress), {})
            if value == value:
                scored[row.seed] = value
    order = list(MEASURES)
    cells = []
    for key in sorted(by_key, key=lambda key: order.index(key[1])):
        scored = by_key[key]
        if not scored:
            continue
        plain = by_key.get((*key[:2], PLAIN), {}) if key[2] != PLAIN else {}
        changes = [value - plain[seed] for seed, value in scored.items() if seed in plain]
        cells.append(Cell(*key, _mean(list(scored.values())), len(scored), _mean(changes) if changes else None))
    return cells


def over_dresses(rows: Sequence[Row], method: str, measure: str) -> tuple[Interval, int] | None:
    """The mean over specimens and dresses together, and how many of both there were: for what few specimens show, and
    draws anew in every dress. Resampled by specimen, whose dresses go together."""
    by_seed: dict[int, list[float]] = {}
    for row in rows:
        value = row.scores.get(measure, math.nan)
        if row.method == method and value == value:
            by_seed.setdefault(row.seed, []).append(value)
    if not by_seed:
        return None
    sums = torch.tensor([[sum(values), len(values)] for values in by_seed.values()], dtype=torch.float64, device="cpu")
    drawn = bootstrap_means(sums)
    low, high = bounds(drawn[:, :1] / drawn[:, 1:])
    total, count = sums.sum(dim=0).tolist()
    return Interval(total / count, low.item(), high.item()), int(count)


def _mean(values: Sequence[float]) -> Interval:
    return intervals(torch.tensor(values, dtype=torch.float64, device="cpu")[:, None])[0]
