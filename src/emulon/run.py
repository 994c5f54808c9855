"""The experiment: one frozen interpreter runs algorithms on real data, beside their exact selves and other solvers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from emulon.algorithms import ALGORITHMS, LeastSquares, NamedAlgorithm, RidgeRegression, name_of
from emulon.algorithms.losses import Kind
from emulon.core import Progress, silent
from emulon.core.errors import EmulonError, unknown
from emulon.interpreter import Capacity, Interpreter, Mode, Program, Run, compile
from emulon.interpreter.plan import domain_from_data
from emulon.tables import BadData
from emulon.tables.data import Data

# What an algorithm may be set to besides its steps.
Settings = Mapping[str, float]

# The identity grid is never made shorter than this. Its bits depend on its length alone, so that an algorithm gives the
# same bits whether it runs by itself, beside others, or from a file.
REACH = 16384.0
# Data this many times as large are beyond every identity grid; the square is still a float.
LARGEST_MARGIN = 1e60


@dataclass(frozen=True)
class Result:
    """One algorithm's row of the table; `exact` is its path in plain float64, (..., steps + 1, features)."""

    name: str
    run: Run
    exact: Tensor
    score: float
    seconds: float
    theirs: np.ndarray | None = None
    their_distance: float | None = None
    their_score: float | None = None

    @property
    def errors(self) -> Tensor:
        """Sup-norm distance to the exact iterate, after each step."""
        gap = (self.run.iterates.double() - self.exact).abs().amax(dim=-1)
        return gap.reshape(-1, gap.shape[-1]).amax(dim=0)

    @property
    def error(self) -> float:
        return self.errors[-1].item()


@dataclass(frozen=True)
class Experiment:
    """All results, the interpreter that gave them, and what was left out and why."""

    data: Data
    interpreter: Interpreter
    results: tuple[Result, ...]
    left_out: tuple[str, ...]
    sha256: tuple[str, str]


def runnable() -> dict[str, type[NamedAlgorithm]]:
    """The algorithms an interpreter can run: gradient descent under any of its names."""
    return {name: named for name, named in ALGORITHMS.items() if issubclass(named, NamedAlgorithm)}


def algorithm_named(name: str) -> type[NamedAlgorithm]:
    known = runnable()
    short = {name.removesuffix("_regression"): name for name in known}
    name = name.lower().replace("-", "_")
    name = short.get(name, name)
    if name in known:
        return known[name]
    if name in ALGORITHMS:
        raise EmulonError(
            f"{name} is not gradient descent, so the interpreter cannot run it; choose {', '.join(known)}"
        )
    raise EmulonError(unknown("algorithm", name, known))


def algorithms_asked(words: Sequence[str]) -> dict[str, type[NamedAlgorithm]]:
    """Algorithms by the names they were asked for, as files are named; of two names of one algorithm the first."""
    asked: dict[str, type[NamedAlgorithm]] = {}
    for word in words:
        if (named := algorithm_named(word)) not in asked.values():
            asked[word.lower().replace("-", "_")] = named
    return asked


def kind_of(named: type[NamedAlgorithm]) -> Kind:
    return named().descent.loss.link.kind


def common_kind(algorithms: Sequence[type[NamedAlgorithm]]) -> Kind | None:
    """What all of these learn, numbers or classes; None where there are none."""
    names: dict[Kind, list[str]] = {}
    for named in algorithms:
        names.setdefault(kind_of(named), []).append(name_of(named))
    if len(names) == 2:
        numbers, classes = ", ".join(names["regression"]), ", ".join(names["classification"])
        raise EmulonError(f"{numbers} wants numbers and {classes} classes; run them separately")
    return next(iter(names), None)


def algorithm_with(named: type[NamedAlgorithm], steps: int, settings: Settings) -> NamedAlgorithm:
    """The algorithm with those of the settings that it has."""
    own = {field.name for field in fields(named)}  # type: ignore[arg-type]  # every one is a dataclass
    return named(steps=steps, **{name: value for name, value in settings.items() if name in own})  # type: ignore[call-arg]  # as above


def require_taken(algorithms: Sequence[type[NamedAlgorithm]], settings: Settings) -> None:
    """Refuse a setting that none of these algorithms has."""
    for name in settings:
        if not any(name in {field.name for field in fields(each)} for each in algorithms):  # type: ignore[arg-type]  # as above
            asked = ", ".join(map(name_of, algorithms))
            able = [known for known, each in runnable().items() if name in {f.name for f in fields(each)}]  # type: ignore[arg-type]  # as above
            raise EmulonError(f"--{name.replace('_', '-')} is for {', '.join(able)}; {asked} has none")


def program_for(algorithm: NamedAlgorithm, data: Data, tolerance: float | None, margin: float = 1.0) -> Program:
    """Compiled on the training rows. Refuses (BadData) where the targets do not suit the algorithm.

    A margin above 1 widens the certified domain by this factor. The step size is then fixed, short enough for such
    data, instead of chosen by the data.
    """
    x, y = data.problem(algorithm.descent.loss)
    if not margin <= LARGEST_MARGIN:
        raise EmulonError(
            f"a margin of {margin:g} is above {LARGEST_MARGIN:g}, more than a program has room for; lower it"
        )
    if margin == 1:  # with the domain of the data, as the table says whether there is an intercept
        return compile(algorithm, domain_from_data(algorithm.descent, x, y), tolerance, data=(x, y))
    if vars(algorithm)["step_size"] is None:
        step_size = algorithm.resolved_step_size(x, y).min().item() / margin**2
        algorithm = replace(algorithm, step_size=step_size)  # type: ignore[type-var]  # every one is a dataclass
    tight = domain_from_data(algorithm.descent, x, y)
    bounds = {name: margin * getattr(tight, name) for name in ("x", "y", "w")}
    wide = {name: margin**2 * getattr(tight, name) for name in ("residual", "absolute")}
    domain = replace(tight, **bounds, **wide, spectrum=tight.spectrum.widened(margin**2))
    return compile(algorithm, domain, tolerance)


def interpreter_for(programs: Sequence[Program], mode: Mode = "fast") -> Interpreter:
    """One interpreter that all these programs fit into.

    The time of mode reference is in proportion to the keys of the identity grid: it gets the shortest.
    """
    if mode == "reference":
        return Interpreter.fitting(*programs)
    capacity = Capacity(1, 1, 1, REACH)
    for program in programs:
        capacity = capacity | program.capacity
    return Interpreter(capacity, programs[0].dtype)


def run_program(
    interpreter: Interpreter, program: Program, data: Data, mode: Mode = "fast", report_progress: Progress = silent
) -> Run:
    return interpreter.run(program, *data.problem(program.loss), mode, report_progress)


def held_out_score(run: Run, data: Data) -> float:
    return data.score(answers(run, data, data.x_test))


def answers(run: Run, data: Data, x: Tensor) -> np.ndarray:
    """What the run's weights say about these rows, in the target's units."""
    loss = run.program.loss
    rows = data.design(loss, x)
    queries = rows.expand(*run.weights.shape[:-1], *rows.shape)  # the same for every class
    return data.read(run.predict(queries), loss)


class RunOptions(TypedDict, total=False):
    """Options of an experiment; by default 200 steps, no tolerance, margin 1 and mode fast."""

    steps: int
    tolerance: float | None
    settings: Settings
    margin: float
    mode: Mode
    report_progress: Progress


def run_experiment(algorithms: Sequence[type[NamedAlgorithm]], data: Data, **options: Unpack[RunOptions]) -> Experiment:
    """Compile all, build one interpreter, run all, compare."""
    return run_experiments(algorithms, [data], **options)[0]


def run_experiments(
    algorithms: Sequence[type[NamedAlgorithm]], every: Sequence[Data], **options: Unpack[RunOptions]
) -> tuple[Experiment, ...]:
    """Like `run_experiment` for several targets: one interpreter for all of them."""
    mode, report_progress = options.get("mode", "fast"), options.get("report_progress", silent)
    compiled = []
    for number, data in enumerate(every):
        compiled.append(_compiled(algorithms, data, options, part_of(report_progress, number, 2 * len(every))))
    programs = [job.program for jobs, _ in compiled for job in jobs]
    interpreter = interpreter_for(programs, mode)
    before, done, found = interpreter.sha256, len(programs), []
    for data, (jobs, left_out) in zip(every, compiled, strict=True):
        results = []
        for job in jobs:
            progress = part_of(report_progress, done, 2 * len(programs), f"running {job.name}: ")
            progress("starting", 0.0)
            results.append(_result(job, interpreter, data, mode, progress))
            done += 1
        found.append((data, tuple(results), left_out))
    report_progress("done", 1.0)
    after = interpreter.sha256
    return tuple(Experiment(data, interpreter, results, left, (before, after)) for data, results, left in found)


def part_of(report_progress: Progress, number: int, parts: int, prefix: str = "") -> Progress:
    """Progress of one of so many parts of the whole."""
    return lambda what, done: report_progress(f"{prefix}{what}", (number + done) / parts)


class _Job(NamedTuple):
    """An algorithm, its program, and the seconds that compiling it took."""

    algorithm: NamedAlgorithm
    program: Program
    seconds: float

    @property
    def name(self) -> str:
        return name_of(type(self.algorithm))


def _compiled(
    algorithms: Sequence[type[NamedAlgorithm]], data: Data, options: RunOptions, report_progress: Progress
) -> tuple[list[_Job], tuple[str, ...]]:
    """Programs for these data, and why others were left out; an algorithm that was asked for by name is refused."""
    chosen = algorithms or [named for named in runnable().values() if kind_of(named) == data.kind]
    settings = options.get("settings", {})
    require_taken(chosen, settings)
    jobs, left_out = [], []
    for number, named in enumerate(chosen):
        report_progress(f"compiling {name_of(named)}", number / len(chosen))
        begin = time.perf_counter()
        try:
            algorithm = algorithm_with(named, options.get("steps", 200), settings)
            program = program_for(algorithm, data, options.get("tolerance"), options.get("margin", 1.0))
            jobs.append(_Job(algorithm, program, time.perf_counter() - begin))
        except BadData as error:
            if algorithms:
                raise BadData(f"{name_of(named)} {error}") from None
            left_out.append(f"{name_of(named)}: {error}")
    return jobs, tuple(left_out)


def _result(job: _Job, interpreter: Interpreter, data: Data, mode: Mode, report_progress: Progress) -> Result:
    algorithm, program, seconds = job
    begin = time.perf_counter()
    run = run_program(interpreter, program, data, mode, report_progress)
    seconds += time.perf_counter() - begin
    loss = program.loss
    x, y = data.problem(loss)
    algorithm = replace(algorithm, step_size=program.step_size)  # type: ignore[type-var]  # every one is a dataclass
    exact = algorithm.iterates(x, y)
    result = Result(name_of(type(algorithm)), run, exact, held_out_score(run, data), seconds)
    weights = solved_directly(algorithm, data.design(loss, data.x_train), y)
    if weights is None:
        return result
    scores = (data.design(loss, data.x_test) @ weights.unsqueeze(-1)).squeeze(-1)
    answered = data.read(algorithm.mean_response(scores), loss)
    distance = (run.weights.double() - weights).abs().max().item()
    return replace(result, theirs=weights.numpy(), their_distance=distance, their_score=data.score(answered))


def solved_directly(algorithm: NamedAlgorithm, x: Tensor, y: Tensor) -> Tensor | None:
    """The weights that a solver of the same objective ends at: linear algebra for squares, scikit-learn's for others.

    Args:
        algorithm: A named algorithm.
        x: Rows, (samples, features).
        y: A target a row; or several such rows, which are solved one by one.
    Returns:
        The weights, or None where there is no such solver.

    Example:
        >>> solved_directly(Ridge(0.1), x, y)
    """
    descent = algorithm.descent
    if descent.loss.derivative == "t" and not descent.l1:
        return (RidgeRegression(len(x) * descent.l2) if descent.l2 else LeastSquares()).run(x, y)
    model = counterpart(algorithm, len(x))
    if model is None:
        return None
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        rows = [np.ravel(model.fit(x.numpy(), row).coef_).copy() for row in np.atleast_2d(y.numpy())]
    return torch.from_numpy(rows[0] if y.ndim == 1 else np.stack(rows))


def counterpart(algorithm: NamedAlgorithm, samples: int) -> Any | None:
    """scikit-learn's solver of the same objective, where it has one; parameters as the docstrings say."""
    from sklearn import linear_model, svm

    settings = vars(algorithm)
    penalty = settings.get("penalty", 0.0)
    plain: dict[str, Any] = {"fit_intercept": False}
    tight: dict[str, Any] = {**plain, "tol": 1e-10, "max_iter": 100_000}
    makers: dict[str, Callable[[], Any]] = {
        "lasso": lambda: linear_model.Lasso(alpha=penalty, **tight),
        "fista": lambda: linear_model.Lasso(alpha=penalty, **tight),
        "elastic_net": lambda: linear_model.ElasticNet(alpha=penalty, l1_ratio=settings["l1_ratio"], **tight),
        "quantile_regression": lambda: linear_model.QuantileRegressor(quantile=settings["tau"], alpha=0.0, **plain),
        "poisson_regression": lambda: linear_model.PoissonRegressor(alpha=penalty, **tight),
        "logistic_regression": lambda: linear_model.LogisticRegression(C=1 / (samples * penalty), **tight),
        "squared_hinge": lambda: svm.LinearSVC(C=1 / (samples * penalty), dual=False, **tight),
    }
    maker = makers.get(name_of(type(algorithm)))
    return None if maker is None else maker()
