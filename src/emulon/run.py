"""Runs of algorithms on a table by one frozen interpreter, compared with the exact algorithms and other solvers."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

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
    """The algorithm of this name, with or without `_regression` behind it."""
    known, name = runnable(), name.lower().replace("-", "_")
    for full in (name, f"{name}_regression"):
        if full in known:
            return known[full]
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
    """The target kind that these algorithms share; None for an empty list."""
    names: dict[Kind, list[str]] = {}
    for named in algorithms:
        names.setdefault(kind_of(named), []).append(name_of(named))
    if len(names) == 2:
        numbers, classes = ", ".join(names["regression"]), ", ".join(names["classification"])
        raise EmulonError(f"{numbers} wants numbers and {classes} classes; run them separately")
    return next(iter(names), None)


def with_settings(algorithms: Sequence[type[NamedAlgorithm]], steps: int, settings: Settings) -> list[NamedAlgorithm]:
    """Each algorithm with those of the settings that it has; refuses a setting that none of them has."""
    for name in settings:
        if not any(hasattr(named(), name) for named in algorithms):
            able = [known for known, named in runnable().items() if hasattr(named(), name)]
            asked = ", ".join(map(name_of, algorithms))
            raise EmulonError(f"--{name.replace('_', '-')} is for {', '.join(able)}; {asked} has none")
    made = []
    for named in algorithms:
        own = {name: value for name, value in settings.items() if hasattr(named(), name)}
        made.append(named(steps=steps, **own))  # type: ignore[call-arg]  # every one is a dataclass
    return made


def program_for(algorithm: NamedAlgorithm, data: Data, tolerance: float | None, margin: float = 1.0) -> Program:
    """Compiled on the training rows. Refuses (BadData) where the targets do not suit the algorithm.

    A margin above 1 widens the certified domain by this factor. The step size is then fixed, short enough for such
    data, instead of chosen by the data.
    """
    x, y = data.problem(algorithm.descent.loss)
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


def answers(run: Run, data: Data, x: Tensor) -> np.ndarray:
    """Predictions of the run's weights for these rows, in the target's units."""
    loss = run.program.loss
    rows = data.design(loss, x)
    queries = rows.expand(*run.weights.shape[:-1], *rows.shape)  # the same for every class
    return data.read(run.predict(queries), loss)


def run_experiments(
    algorithms: Sequence[type[NamedAlgorithm]],
    every: Sequence[Data],
    *,
    steps: int = 200,
    tolerance: float | None = None,
    settings: Settings = MappingProxyType({}),
    margin: float = 1.0,
    mode: Mode = "fast",
    report_progress: Progress = silent,
) -> list[Experiment]:
    """Compile all for the data of each target, build one interpreter, run all, compare.

    Without algorithms all that suit a target are run; one that does not suit it is then left out instead of refused.
    """
    compiled = []
    for number, data in enumerate(every):
        progress = part_of(report_progress, number, 2 * len(every))
        chosen = algorithms or [named for named in runnable().values() if kind_of(named) == data.kind]
        jobs, left_out = [], []
        for place, algorithm in enumerate(with_settings(chosen, steps, settings)):
            name, begin = name_of(type(algorithm)), time.perf_counter()
            progress(f"compiling {name}", place / len(chosen))
            try:
                program = program_for(algorithm, data, tolerance, margin)
                jobs.append((algorithm, program, time.perf_counter() - begin))
            except BadData as error:
                if algorithms:
                    raise BadData(f"{name} {error}") from None
                left_out.append(f"{name}: {error}")
        compiled.append((jobs, left_out))
    programs = [program for jobs, _ in compiled for _, program, _ in jobs]
    interpreter = interpreter_for(programs, mode)
    before, done, found = interpreter.sha256, len(programs), []
    for data, (jobs, left_out) in zip(every, compiled, strict=True):
        results = []
        for algorithm, program, seconds in jobs:
            progress = part_of(report_progress, done, 2 * len(programs), f"running {name_of(type(algorithm))}: ")
            progress("starting", 0.0)
            begin = time.perf_counter()
            run = interpreter.run(program, *data.problem(program.loss), mode, progress)
            results.append(_result(algorithm, run, data, seconds + time.perf_counter() - begin))
            done += 1
        found.append((data, tuple(results), tuple(left_out)))
    report_progress("done", 1.0)
    after = interpreter.sha256
    return [Experiment(data, interpreter, results, left, (before, after)) for data, results, left in found]


def part_of(report_progress: Progress, number: int, parts: int, prefix: str = "") -> Progress:
    """Progress of one of so many parts of the whole."""
    return lambda what, done: report_progress(f"{prefix}{what}", (number + done) / parts)


def _result(algorithm: NamedAlgorithm, run: Run, data: Data, seconds: float) -> Result:
    """A run beside the exact algorithm and another solver."""
    loss, (x, y) = run.program.loss, data.problem(run.program.loss)
    algorithm = replace(algorithm, step_size=run.program.step_size)  # type: ignore[type-var]  # every one is a dataclass
    score = data.score(answers(run, data, data.x_test))
    result = Result(name_of(type(algorithm)), run, algorithm.iterates(x, y), score, seconds)
    weights = solved_directly(algorithm, data.design(loss, data.x_train), y)
    if weights is None:
        return result
    scores = (data.design(loss, data.x_test) @ weights.unsqueeze(-1)).squeeze(-1)
    answered = data.read(algorithm.mean_response(scores), loss)
    distance = (run.weights.double() - weights).abs().max().item()
    return replace(result, theirs=weights.numpy(), their_distance=distance, their_score=data.score(answered))


def solved_directly(algorithm: NamedAlgorithm, x: Tensor, y: Tensor) -> Tensor | None:
    """The weights, for each row of targets y, by linear algebra (squares) or scikit-learn; None where neither can."""
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
