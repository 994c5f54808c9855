"""Runs methods on many planted models, plain and under every obfuscation, and averages the scores."""

from __future__ import annotations

import math
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError, unknown
from emulon.identification.sampling import Interval, bootstrap_means, bounds, intervals
from emulon.planted import OBFUSCATIONS, PlantedModel, obfuscate, sample
from emulon.planted.benchmark.answers import Answers, NotInstalled, method_named
from emulon.planted.benchmark.questions import Questions, ask
from emulon.planted.benchmark.scoring import MEASURES, score
from emulon.planted.benchmark.subject import Subject
from emulon.planted.model import DECOY

PLAIN, ALL = "plain", "all at once"
# A variant's place here is part of its methods' seeds.
VARIANTS = (PLAIN, *OBFUSCATIONS, ALL, DECOY)


@dataclass(frozen=True)
class Row:
    """Scores of one method on one planted model in one variant (plain, or an obfuscation).

    `seconds` are of processor time; `missing` says what must be installed where the method could not run.
    """

    seed: int
    mechanism: str
    variant: str
    method: str
    scores: dict[str, float]
    seconds: float = 0.0
    missing: str = ""


@dataclass(frozen=True)
class Cell:
    """A mean over planted models, their number, and the mean paired difference from the plain variant."""

    method: str
    measure: str
    variant: str
    score: Interval
    models: int
    change: Interval | None

    @property
    def moved(self) -> str:
        """↑ or ↓ where the interval of the change excludes zero."""
        if self.change is None or self.change.low <= 0 <= self.change.high:
            return ""
        return "↑" if self.change.value > 0 else "↓"


def score_models(
    methods: Sequence[str],
    seeds: Sequence[int],
    variants: Sequence[str] = VARIANTS,
    *,
    architecture: str = "gpt2",
    processes: int = 1,
    progress: Progress = silent,
) -> list[Row]:
    """Score methods on planted models.

    Args:
        methods: Names, as `method_named` takes them.
        seeds: One planted model each.
        variants: "plain", names of obfuscations, "all at once", "decoy".
        architecture: Of the models.
        processes: Models in parallel; the result does not depend on it.
        progress: Called with a message and the share that is done.
    Returns:
        One row per seed, variant and method, in this order.
    Raises:
        EmulonError: A method or variant does not exist, or a method failed.
    """
    for name in methods:
        method_named(name)  # refuse a wrong name before any process starts
    for variant in variants:
        if variant not in VARIANTS:
            raise EmulonError(unknown("obfuscation", variant, VARIANTS))
    found, work = list[Row](), partial(_one, methods, variants, architecture)
    each = map(work, seeds) if processes == 1 else _in_processes(work, seeds, processes)
    for done, (seed, rows) in enumerate(zip(seeds, each, strict=True)):
        found += rows
        progress(": ".join([f"planted model {seed}", *(row.mechanism for row in rows[:1])]), (done + 1) / len(seeds))
    return found


def _in_processes(work: Callable[[int], list[Row]], seeds: Sequence[int], processes: int) -> Iterator[list[Row]]:
    # Spawned: a fork of a process that has used torch's threads may deadlock.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        # Ctrl-C reaches every process of a terminal: workers start with it blocked and are killed by this process.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            results = pool.map(work, seeds)
        finally:
            workers = set(multiprocessing.active_children()) - others
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        try:
            yield from results
        except BaseException:  # interrupts included: do not wait for running or queued work
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.kill()
            raise


def _one(methods: Sequence[str], variants: Sequence[str], architecture: str, seed: int) -> list[Row]:
    """The rows of one planted model: the same questions in every variant, with another seed for the method."""
    rows = []
    for variant, mechanism, questions in questions_about(seed, variants, architecture):
        _ = questions.subject.run  # shared by most methods, and counted for none
        for name in methods:
            began, missing, scores = time.process_time(), "", {}
            try:
                answers = answered_by(name, questions.subject, f"planted model {seed}, {variant}")
                scores = score(answers, questions)
            except NotInstalled as error:
                missing = str(error)
            seconds = time.process_time() - began
            rows.append(Row(seed, mechanism, variant, name, scores, seconds, missing))
    return rows


def questions_about(seed: int, variants: Sequence[str], architecture: str) -> Iterator[tuple[str, str, Questions]]:
    """The questions about one planted model in each variant, with its name and the mechanism."""
    planted = sample(seed, architecture=architecture)
    for variant in variants:
        questions = ask(variant_of(planted, variant, seed), seed, draw=VARIANTS.index(variant))
        yield variant, str(planted.mechanism), questions


def variant_of(planted: PlantedModel, variant: str, seed: int) -> PlantedModel:
    """A planted model as it is, under one obfuscation, or under all."""
    if variant == PLAIN:
        return planted
    return obfuscate(planted, seed=seed, only=OBFUSCATIONS if variant == ALL else (variant,))


def answered_by(name: str, subject: Subject, where: str) -> Answers:
    """A method's answers; whatever goes wrong in a user's method becomes a one-line error."""
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
    """Average over planted models.

    Args:
        rows: From `score_models`.
    Returns:
        A cell per method, measure and variant, in the order of `MEASURES`; none where no model could be scored.
    """
    by_key: dict[tuple[str, str, str], dict[int, float]] = {}
    for row in rows:
        for measure, value in row.scores.items():
            scored = by_key.setdefault((row.method, measure, row.variant), {})
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


def over_variants(rows: Sequence[Row], method: str, measure: str) -> tuple[Interval, int] | None:
    """The mean over planted models and variants together, for scores that few models have.

    Args:
        rows: From `score_models`.
        method: One method.
        measure: One measure.
    Returns:
        The mean with a bootstrap interval (models are resampled, each with all its variants) and the number of scores;
        None if there is none.
    """
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
