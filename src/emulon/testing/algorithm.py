"""The contract of an algorithm: the exact reference, in float64, that everything else is compared with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from emulon.algorithms import RATE, Algorithm, GradientDescent
from emulon.core.errors import EmulonError
from emulon.testing.contract import (
    COMMON,
    ContractBroken,
    NamedCheck,
    TensorFunction,
    named,
    require,
    require_agreement,
    require_refusal,
    require_same_bits,
    run_checks,
)

SAMPLES, FEATURES, QUERIES = 12, 3, 5
# The largest difference between two evaluations in float64, next to the size of what is computed.
NEAR = 1e-11


@dataclass(frozen=True)
class Subject(TensorFunction):
    """The path of an algorithm on data (2, 2, samples, features)."""

    algorithm: Algorithm
    x: Tensor
    y: Tensor
    batch: tuple[int, ...] = (2, 2)

    @property
    def one(self) -> tuple[Tensor, Tensor]:
        """A single dataset."""
        return self.x[0, 0], self.y[0, 0]

    @property
    def parts(self) -> dict[str, Tensor]:
        return {"x": self.x.clone(), "y": self.y.clone()}

    def call(self, parts: Mapping[str, Tensor]) -> Tensor:
        return self.algorithm.iterates(parts["x"], parts["y"])

    def tolerance(self, answer: Tensor) -> float:
        return NEAR * max(1.0, answer.abs().max().item())


def algorithm_checks(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> Iterator[NamedCheck]:
    """The checks of `check_algorithm` one by one, as (name, check).

    Args:
        algorithm: What is checked.
        data: (2, 2, samples, features) and (2, 2, samples); by default noisy targets of the kind that it takes.
    """
    subject = Subject(algorithm, *(_data(algorithm) if data is None else data))
    checks = list(CHECKS)
    if dataclasses.is_dataclass(algorithm) and "steps" in vars(algorithm):
        checks += [steps_are_counted, no_steps_leave_the_first_iterate]
    if _claims_descent(algorithm):
        checks.append(objective_never_increases)
    return named(subject, checks)


def check_algorithm(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> None:
    """Check that an algorithm computes in float64, in batches, deterministically, and refuses bad data.

    Args:
        algorithm: What is checked.
        data: As for `algorithm_checks`.

    Raises:
        ContractBroken: The name of the first check that fails, and what was seen.

    Example:
        >>> check_algorithm(Ridge(steps=20))
    """
    run_checks(algorithm_checks(algorithm, data))


def _data(algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Numbers, labels or counts: the first that the algorithm does not refuse."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, SAMPLES, FEATURES, generator=generator, dtype=torch.float64, device="cpu")
    y = x.sum(dim=-1) / 2 + torch.randn(2, 2, SAMPLES, generator=generator, dtype=torch.float64, device="cpu")
    for targets in (y, torch.where(y > 0, 1.0, -1.0).double(), y.clamp(min=0).round()):
        try:
            algorithm.run(x, targets)
        except EmulonError:
            continue
        return x, targets
    raise ContractBroken(f"{algorithm} runs neither on numbers, nor on labels ±1, nor on counts; give it data")


def _claims_descent(algorithm: Algorithm) -> bool:
    """What `GradientDescent` claims about its default step size: for bounded curvature and for rates, unaccelerated."""
    descent = getattr(algorithm, "descent", None)
    if not isinstance(descent, GradientDescent) or descent.step_size is not None:
        return False
    if descent.momentum or descent.accelerated or descent.batch:
        return False
    return math.isfinite(descent.loss.curvature) or descent.loss.link == RATE


def weights_are_float64(subject: Subject) -> None:
    """It computes in float64 whatever it is given: float32 data, widened first, give the same bits."""
    x, y = subject.x.float(), subject.y.float()
    run = subject.algorithm.run(x, y)
    require(run.dtype == torch.float64, f"its weights are {run.dtype}")
    require_same_bits(run, subject.algorithm.run(x.double(), y.double()), "float32 data and the same as float64")


def integers_are_data_too(subject: Subject) -> None:
    x, y = (4 * subject.x).round(), subject.y.round()
    y = torch.where(y == 0, subject.y.abs().ceil(), y) if (subject.y < 0).any() else y
    whole = subject.algorithm.run(x.long(), y.long())
    require_same_bits(whole, subject.algorithm.run(x, y), "integers and the same numbers as float64")


def run_is_the_last_iterate(subject: Subject) -> None:
    iterates, run = subject.call(subject.parts), subject.algorithm.run(subject.x, subject.y)
    require(run.shape == (2, 2, FEATURES), f"the weights have shape {tuple(run.shape)}")
    require_same_bits(iterates[..., -1, :], run, "the last iterate and the result")


def steps_are_counted(subject: Subject) -> None:
    """`steps` steps have steps + 1 iterates, the first of which is before any step."""
    steps, length = getattr(subject.algorithm, "steps", 0), subject.algorithm.iterates(*subject.one).shape[-2]
    require(length == steps + 1, f"{steps} steps have {length} iterates")


def no_steps_leave_the_first_iterate(subject: Subject) -> None:
    assert dataclasses.is_dataclass(subject.algorithm)
    still = dataclasses.replace(subject.algorithm, steps=0)
    first = subject.algorithm.iterates(*subject.one)[..., 0, :]
    require_same_bits(still.run(*subject.one), first, "no steps and the first iterate")


def objective_never_increases(subject: Subject) -> None:
    """With the default step size, from every iterate to the next."""
    descent = getattr(subject.algorithm, "descent", None)
    assert isinstance(descent, GradientDescent)
    iterates = subject.call(subject.parts).unbind(dim=-2)
    path = torch.stack([descent.objective(subject.x, subject.y, weights) for weights in iterates])
    rise = path.diff(dim=0).max().item() if len(path) > 1 else 0.0
    require(rise <= subject.tolerance(path[0]), f"the objective rises by {rise:.3e} in a step")


def predictions_are_the_response_to_the_weights(subject: Subject) -> None:
    """predict(x, y, queries) = mean_response(w·query), for one query and for several."""
    algorithm, x, y = subject.algorithm, subject.x, subject.y
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(2, 2, QUERIES, FEATURES, dtype=torch.float64, generator=generator, device="cpu")
    expected = algorithm.mean_response((queries @ algorithm.run(x, y).unsqueeze(-1)).squeeze(-1))
    near = subject.tolerance(expected)
    require_agreement(algorithm.predict(x, y, queries), expected, near, "several queries")
    require_agreement(algorithm.predict(x, y, queries[..., 0, :]), expected[..., 0], near, "one query")


def non_finite_data_are_refused(subject: Subject) -> None:
    """NaN and infinity, in a line that names x or y, by `run` and by `iterates`."""
    for call in (subject.algorithm.run, subject.algorithm.iterates):
        for bad in (math.nan, math.inf):
            x, y = (part.clone() for part in subject.one)
            x[3, 1], y[2] = bad, bad
            require_refusal(partial(call, x, subject.one[1]), f"{bad} in x", "x ")
            require_refusal(partial(call, subject.one[0], y), f"{bad} in y", "y ")


def wrong_shapes_are_refused(subject: Subject) -> None:
    """x and y that do not belong together, no samples, and no features."""
    x, y = subject.one
    for bad in ((x, y[:-1]), (x[0], y), (x, y[:, None]), (x.expand(3, *x.shape), y), (x[:0], y[:0]), (x[:, :0], y)):
        what = f"x of shape {tuple(bad[0].shape)} with y of shape {tuple(bad[1].shape)}"
        require_refusal(partial(subject.algorithm.run, *bad), what, "x has shape")


def wrong_queries_are_refused(subject: Subject) -> None:
    x, y = subject.one
    for query in (x[0, :1], x.expand(2, *x.shape), x[0, 0], x[0] * math.nan):
        what = f"a query of shape {tuple(query.shape)}"
        require_refusal(partial(subject.algorithm.predict, x, y, query), what, "x_query")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    weights_are_float64,
    integers_are_data_too,
    *COMMON,
    run_is_the_last_iterate,
    predictions_are_the_response_to_the_weights,
    non_finite_data_are_refused,
    wrong_shapes_are_refused,
    wrong_queries_are_refused,
)
