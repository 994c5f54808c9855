"""The contract of an algorithm: the exact reference, in float64, that everything else is compared with."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from emulon.algorithms import RATE, Algorithm, GradientDescent
from emulon.core.errors import EmulonError
from emulon.testing.contract import (
    ContractBroken,
    NamedCheck,
    named,
    require,
    require_agreement,
    require_refusal,
    require_same_bits,
    run_checks,
)

SAMPLES, FEATURES, QUERIES = 12, 3, 5
# Two evaluations in float64, next to the size of what is computed.
APART = 1e-11


@dataclass(frozen=True)
class Subject:
    algorithm: Algorithm
    x: Tensor
    y: Tensor

    @property
    def one(self) -> tuple[Tensor, Tensor]:
        """A single dataset."""
        return self.x[0, 0], self.y[0, 0]


def algorithm_checks(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> Iterator[NamedCheck]:
    """On data (2, 2, samples, features) and (2, 2, samples); by default noisy targets of the kind that it takes."""
    subject = Subject(algorithm, *(_data(algorithm) if data is None else data))
    checks = list(CHECKS)
    if "steps" in _fields(algorithm):
        checks += [steps_are_counted, no_steps_leave_the_first_iterate]
    if _claims_descent(algorithm):
        checks.append(objective_never_increases)
    return named(subject, checks)


def check_algorithm(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> None:
    """All `algorithm_checks`, one after the other."""
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


def _fields(algorithm: Algorithm) -> set[str]:
    return {field.name for field in dataclasses.fields(algorithm)} if dataclasses.is_dataclass(algorithm) else set()


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


def leading_dimensions_are_batches(subject: Subject) -> None:
    """A batch is the loop over its elements, iterate by iterate."""
    together = subject.algorithm.iterates(subject.x, subject.y)
    require(together.shape[:2] == (2, 2), f"iterates of a batch (2, 2) have shape {tuple(together.shape)}")
    for i in range(2):
        for j in range(2):
            alone = subject.algorithm.iterates(subject.x[i, j], subject.y[i, j])
            require_agreement(together[i, j], alone, _apart(alone), f"element ({i}, {j}) alone")


def run_is_the_last_iterate(subject: Subject) -> None:
    iterates, run = (call(subject.x, subject.y) for call in (subject.algorithm.iterates, subject.algorithm.run))
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
    x, y = subject.x, subject.y
    path = [descent.objective(x, y, weights) for weights in subject.algorithm.iterates(x, y).unbind(dim=-2)]
    rise = torch.stack(path).diff(dim=0).max().item() if len(path) > 1 else 0.0
    require(rise <= APART * max(1.0, path[0].abs().max().item()), f"the objective rises by {rise:.3e} in a step")


def predictions_are_the_response_to_the_weights(subject: Subject) -> None:
    """predict(x, y, queries) = mean_response(w·query), for one query and for several."""
    algorithm, x, y = subject.algorithm, subject.x, subject.y
    queries = torch.randn(
        2, 2, QUERIES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1), device="cpu"
    )
    expected = algorithm.mean_response((queries @ algorithm.run(x, y).unsqueeze(-1)).squeeze(-1))
    require_agreement(algorithm.predict(x, y, queries), expected, _apart(expected), "several queries")
    require_agreement(algorithm.predict(x, y, queries[..., 0, :]), expected[..., 0], _apart(expected), "one query")


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


def repeated_runs_give_the_same_bits(subject: Subject) -> None:
    """And nothing is written into what was given."""
    before = subject.x.clone(), subject.y.clone()
    first = subject.algorithm.iterates(subject.x, subject.y)
    require_same_bits(first, subject.algorithm.iterates(subject.x, subject.y), "two runs on the same data")
    for name, old, new in zip("xy", before, (subject.x, subject.y), strict=True):
        require_same_bits(old, new, f"{name} before and after a run")


def _apart(size: Tensor) -> float:
    return APART * max(1.0, size.abs().max().item())


CHECKS: tuple[Callable[[Subject], None], ...] = (
    weights_are_float64,
    integers_are_data_too,
    leading_dimensions_are_batches,
    run_is_the_last_iterate,
    predictions_are_the_response_to_the_weights,
    non_finite_data_are_refused,
    wrong_shapes_are_refused,
    wrong_queries_are_refused,
    repeated_runs_give_the_same_bits,
)
