"""The contract of what can be added to emulon, as checks: supply an algorithm or a predictor of your own.

`check_algorithm` and `check_predictor` raise `ContractBroken` with the name of the first check that fails.
`algorithm_checks` and `predictor_checks` give the same checks one by one as (name, check), for pytest or anything else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeVar

import torch
from torch import Tensor

from emulon.algorithms import RATE, Algorithm, GradientDescent
from emulon.core.errors import EmulonError, unknown
from emulon.core.predictor import Predictor

__all__ = ["ContractBroken", "check_algorithm", "check_predictor"]

SAMPLES, FEATURES, QUERIES = 12, 3, 5
EXAMPLES, BATCH = 8, 6
# The largest difference between two evaluations in float64, next to the size of what is computed.
NEAR = 1e-11

NamedCheck = tuple[str, Callable[[], None]]
Checked = TypeVar("Checked")


class ContractBroken(EmulonError):
    """A check that an object fails: the check's name, and what was seen.

    Cure: mend the object; the check of that name in `emulon.testing` says what is asked.
    """


def named(subject: Checked, checks: Iterable[Callable[[Checked], None]]) -> Iterator[NamedCheck]:
    """Each check under its own name, waiting to be called; whatever goes wrong in it is its failure."""

    def hold(check: Callable[[Checked], None]) -> None:
        try:
            check(subject)
        except Exception as error:
            kind = "" if isinstance(error, ContractBroken) else f"{type(error).__name__}: "
            raise ContractBroken(f"{check.__name__}: {kind}{error}") from error

    return ((check.__name__, partial(hold, check)) for check in checks)


def require(held: bool, seen: str) -> None:
    """Not `assert`, which `python -O` would leave out."""
    if not held:
        raise ContractBroken(seen)


def require_agreement(ours: Tensor, theirs: Tensor, tolerance: float, what: str) -> None:
    """Equal shapes, and nowhere a larger difference than the tolerance."""
    require(ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}")
    distance = (ours.double() - theirs.double()).abs().max().item() if ours.numel() else 0.0
    require(distance <= tolerance, f"{what}: {distance:.3e} apart, allowed are {tolerance:.3e}")


def require_same_bits(ours: Tensor, theirs: Tensor, what: str) -> None:
    require(ours.dtype == theirs.dtype and torch.equal(ours, theirs), f"{what}: not the same bits")


def require_refusal(call: Callable[[], object], what: str, *words: str) -> None:
    """The call raises one of emulon's own errors, in one line that has each of these words."""
    try:
        call()
    except EmulonError as error:
        line = str(error)
        require("\n" not in line, f"{what} is refused in more than one line: {line!r}")
        for word in words:
            require(word in line, f"{what} is refused without naming {word}: {line!r}")
        return
    except Exception as error:
        raise ContractBroken(f"{what} ends in {type(error).__name__} ({error}), not in a refusal") from error
    raise ContractBroken(f"{what} is not refused")


@dataclass(frozen=True)
class Subject:
    """What is checked: a map from named tensors with leading batch dimensions to one tensor with the same.

    Attributes:
        thing: The object whose map it is.
        given: Inputs of one batch.
        batch: Their leading dimensions.
        call: The answer to such inputs.
        near: The largest difference between two evaluations of the same inputs, next to their size.
    """

    thing: Any
    given: Mapping[str, Tensor]
    batch: tuple[int, ...]
    call: Callable[[Mapping[str, Tensor]], Tensor]
    near: float

    @property
    def parts(self) -> dict[str, Tensor]:
        """The inputs, made anew: what one call writes into them must not reach the next check."""
        return {name: part.clone() for name, part in self.given.items()}

    @property
    def one(self) -> list[Tensor]:
        """The inputs of a single element of the batch."""
        return [part[(0,) * len(self.batch)] for part in self.given.values()]

    def tolerance(self, answer: Tensor) -> float:
        return self.near * max(1.0, answer.abs().max().item())


def repeated_calls_give_the_same_bits(subject: Subject) -> None:
    require_same_bits(subject.call(subject.parts), subject.call(subject.parts), "two calls with the same inputs")


def inputs_are_left_alone(subject: Subject) -> None:
    """Nothing is written into the arguments."""
    given = subject.parts
    before = {name: part.clone() for name, part in given.items()}
    subject.call(given)
    for name, part in given.items():
        require_same_bits(part, before[name], f"{name} before and after a call")


def leading_dimensions_are_batches(subject: Subject) -> None:
    """A batch of any shape is the loop over its elements."""
    parts, batch = subject.parts, subject.batch
    together = subject.call(parts)
    shape = tuple(together.shape)
    require(shape[: len(batch)] == batch, f"a batch {batch} gives an output of shape {shape}")
    for place in product(*map(range, batch)):
        alone = subject.call({name: part[place] for name, part in parts.items()})
        require_agreement(together[place], alone, subject.tolerance(together), f"element {place} alone")
    if len(batch) == 1 and batch[0] % 2 == 0:
        folded = subject.call({name: part.unflatten(0, (2, -1)) for name, part in parts.items()})
        require_agreement(folded.flatten(0, 1), together, subject.tolerance(together), "two leading dimensions")


COMMON = (repeated_calls_give_the_same_bits, inputs_are_left_alone, leading_dimensions_are_batches)


def _normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def algorithm_checks(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> Iterator[NamedCheck]:
    """The checks of `check_algorithm`, with the same arguments, one by one as (name, check)."""
    x, y = _algorithm_data(algorithm) if data is None else data
    subject = Subject(algorithm, {"x": x, "y": y}, (2, 2), lambda parts: algorithm.iterates(**parts), NEAR)
    checks = list(ALGORITHM_CHECKS)
    if dataclasses.is_dataclass(algorithm) and "steps" in vars(algorithm):
        checks.append(steps_are_counted)
    if _claims_descent(algorithm):
        checks.append(objective_never_increases)
    return named(subject, checks)


def check_algorithm(algorithm: Algorithm, data: tuple[Tensor, Tensor] | None = None) -> None:
    """Check that an algorithm computes in float64, in batches, deterministically, and refuses bad data.

    Args:
        algorithm: What is checked.
        data: (2, 2, samples, features) and (2, 2, samples); by default noisy targets of the kind that it takes.

    Raises:
        ContractBroken: The name of the first check that fails, and what was seen.

    Example:
        >>> check_algorithm(Ridge(steps=20))
    """
    for _, check in algorithm_checks(algorithm, data):
        check()


def _algorithm_data(algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Numbers, labels or counts: the first that the algorithm does not refuse."""
    x = _normal(2, 2, SAMPLES, FEATURES)
    y = x.sum(dim=-1) / 2 + _normal(2, 2, SAMPLES, seed=1)
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
    """It computes in float64 whatever it is given: float32 and whole numbers, widened first, give the same bits."""
    x, y = subject.given.values()
    whole = torch.where(y.round() == 0, y.abs().ceil(), y.round()) if (y < 0).any() else y.round()
    for dtype, given in (
        (torch.float32, (x.float(), y.float())),
        (torch.int64, ((4 * x).round().long(), whole.long())),
    ):
        run, wide = (subject.thing.run(*data) for data in (given, [part.double() for part in given]))
        require(run.dtype == torch.float64, f"its weights are {run.dtype}")
        require_same_bits(run, wide, f"{dtype} data and the same as float64")


def run_is_the_last_iterate(subject: Subject) -> None:
    iterates, run = subject.call(subject.parts), subject.thing.run(*subject.given.values())
    require(run.shape == (2, 2, FEATURES), f"the weights have shape {tuple(run.shape)}")
    require_same_bits(iterates[..., -1, :], run, "the last iterate and the result")


def steps_are_counted(subject: Subject) -> None:
    """`steps` steps have steps + 1 iterates, the first of which is before any step: that of no steps at all."""
    steps, iterates = getattr(subject.thing, "steps", 0), subject.thing.iterates(*subject.one)
    require(iterates.shape[-2] == steps + 1, f"{steps} steps have {iterates.shape[-2]} iterates")
    still = dataclasses.replace(subject.thing, steps=0)
    require_same_bits(still.run(*subject.one), iterates[..., 0, :], "no steps and the first iterate")


def objective_never_increases(subject: Subject) -> None:
    """With the default step size, from every iterate to the next."""
    descent = getattr(subject.thing, "descent", None)
    assert isinstance(descent, GradientDescent)
    iterates = subject.call(subject.parts).unbind(dim=-2)
    x, y = subject.given.values()
    path = torch.stack([descent.objective(x, y, weights) for weights in iterates])
    rise = path.diff(dim=0).max().item() if len(path) > 1 else 0.0
    require(rise <= subject.tolerance(path[0]), f"the objective rises by {rise:.3e} in a step")


def predictions_are_the_response_to_the_weights(subject: Subject) -> None:
    """predict(x, y, queries) = mean_response(w·query), for one query and for several."""
    algorithm, (x, y) = subject.thing, subject.given.values()
    queries = _normal(2, 2, QUERIES, FEATURES, seed=1)
    expected = algorithm.mean_response((queries @ algorithm.run(x, y).unsqueeze(-1)).squeeze(-1))
    near = subject.tolerance(expected)
    require_agreement(algorithm.predict(x, y, queries), expected, near, "several queries")
    require_agreement(algorithm.predict(x, y, queries[..., 0, :]), expected[..., 0], near, "one query")


def non_finite_data_are_refused(subject: Subject) -> None:
    """NaN and infinity, in a line that names x or y, by `run` and by `iterates`."""
    for call in (subject.thing.run, subject.thing.iterates):
        for bad in (math.nan, math.inf):
            x, y = (part.clone() for part in subject.one)
            x[3, 1], y[2] = bad, bad
            require_refusal(partial(call, x, subject.one[1]), f"{bad} in x", "x ")
            require_refusal(partial(call, subject.one[0], y), f"{bad} in y", "y ")


def wrong_shapes_are_refused(subject: Subject) -> None:
    """x and y that do not belong together, no samples, and no features; queries of another size, or not finite."""
    x, y = subject.one
    for bad in ((x, y[:-1]), (x[0], y), (x, y[:, None]), (x.expand(3, *x.shape), y), (x[:0], y[:0]), (x[:, :0], y)):
        what = f"x of shape {tuple(bad[0].shape)} with y of shape {tuple(bad[1].shape)}"
        require_refusal(partial(subject.thing.run, *bad), what, "x has shape")
    for query in (x[0, :1], x.expand(2, *x.shape), x[0, 0], x[0] * math.nan):
        what = f"a query of shape {tuple(query.shape)}"
        require_refusal(partial(subject.thing.predict, x, y, query), what, "x_query")


ALGORITHM_CHECKS: Sequence[Callable[[Subject], None]] = (
    weights_are_float64,
    *COMMON,
    run_is_the_last_iterate,
    predictions_are_the_response_to_the_weights,
    non_finite_data_are_refused,
    wrong_shapes_are_refused,
)


def predictor_checks(
    predictor: Predictor,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    invariances: Sequence[str] = (),
    tolerance: float = 1e-9,
) -> Iterator[NamedCheck]:
    """The checks of `check_predictor`, with the same arguments, one by one as (name, check)."""
    xs, ys = _predictor_data(predictor) if data is None else data
    given = {"xs": xs[:, :-1], "ys": ys[:, :-1], "x_query": xs[:, -1]}
    subject = Subject(predictor, given, (len(xs),), lambda parts: predictor.predict(**parts), tolerance)
    checks = list(PREDICTOR_CHECKS)
    if getattr(predictor, "several_queries", False):
        checks.append(several_queries_are_answered_as_each_alone)
    if hasattr(predictor, "predict_prefixes"):
        checks.append(prefixes_are_answered_as_each_alone)
    if getattr(predictor, "examples", None) is not None:
        checks.append(other_numbers_of_examples_are_refused)
    for name in invariances:
        if name not in INVARIANCES:
            raise EmulonError(unknown("invariance", name, INVARIANCES))
        checks.append(INVARIANCES[name])
    return named(subject, checks)


def check_predictor(
    predictor: Predictor,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    invariances: Sequence[str] = (),
    tolerance: float = 1e-9,
) -> None:
    """Check that a predictor answers every dataset by itself, deterministically, and shows or refuses NaN.

    Args:
        predictor: What is checked.
        data: xs (batch, points, features) and ys (batch, points), the last point of which is the query. By default 8
            examples of 3 features, or as many as it takes at most.
        invariances: Those that it claims: "order" (of the examples), "rotation" (of xs and query together), "scale" (of
            ys: the answer scales with them).
        tolerance: Largest difference between two evaluations that ought to agree, next to their size.

    Raises:
        ContractBroken: The name of the first check that fails, and what was seen.

    Example:
        >>> check_predictor(LeastSquares(), invariances=("order", "rotation"))
    """
    for _, check in predictor_checks(predictor, data, invariances=invariances, tolerance=tolerance):
        check()


def _predictor_data(predictor: Predictor) -> tuple[Tensor, Tensor]:
    takes = getattr(predictor, "examples", None)
    points = (EXAMPLES if takes is None else max(takes)) + 1
    xs = _normal(BATCH, points, FEATURES)
    return xs, xs.sum(dim=-1) / 2 + _normal(BATCH, points, seed=1) / 2


def one_number_a_dataset(subject: Subject) -> None:
    """Real, finite, of the shape of the leading dimensions."""
    answers = subject.call(subject.parts)
    require(tuple(answers.shape) == subject.batch, f"answers of shape {tuple(answers.shape)} for {subject.batch}")
    require(answers.is_floating_point(), f"answers are {answers.dtype}")
    require(bool(answers.isfinite().all()), "answers are not finite")


def nan_is_refused_or_shown(subject: Subject) -> None:
    """NaN in a dataset is refused in one line, or its answer is NaN: it is never a number that looks right."""
    for name, part in subject.parts.items():
        part[0].view(-1)[0] = math.nan
        try:
            answers = subject.call(subject.parts | {name: part})
        except EmulonError as error:
            require("\n" not in str(error), f"NaN in {name} is refused in more than one line: {str(error)!r}")
            continue
        require(not answers[0].isfinite().item(), f"NaN in {name} is answered {answers[0].item():g}")


def several_queries_are_answered_as_each_alone(subject: Subject) -> None:
    """x_query (..., queries, features) has an answer for each, which the other queries do not change."""
    xs, _, x_query = subject.given.values()
    queries = torch.stack([x_query, xs[:, 0], xs[:, -1]], dim=-2)
    together = subject.call(subject.parts | {"x_query": queries})
    for k in range(queries.shape[-2]):
        alone = subject.call(subject.parts | {"x_query": queries[:, k]})
        require_agreement(together[:, k], alone, subject.tolerance(alone), f"query {k} alone")


def prefixes_are_answered_as_each_alone(subject: Subject) -> None:
    """`predict_prefixes(xs, ys)` at every x_i is `predict` from the examples before it; the last y is not read."""
    predictor, (xs, ys, x_query) = subject.thing, subject.given.values()
    xs, ys = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2), torch.nn.functional.pad(ys, (0, 1))
    prefixes: Callable[[Tensor, Tensor], Tensor] = getattr(predictor, "predict_prefixes")  # noqa: B009 (optional)
    together = prefixes(xs, ys)
    require(together.shape == ys.shape, f"prefixes have answers of shape {tuple(together.shape)}")
    takes = getattr(predictor, "examples", None) or range(1, xs.shape[-2])
    for n in (n for n in takes if n < xs.shape[-2]):
        alone = predictor.predict(xs[:, :n], ys[:, :n], xs[:, n])
        require_agreement(together[:, n], alone, subject.tolerance(alone), f"after {n} examples")
    ys[:, -1] = 7.0
    require_same_bits(prefixes(xs, ys), together, "prefixes with another last y")


def other_numbers_of_examples_are_refused(subject: Subject) -> None:
    """It says which numbers of examples it takes, and one more than the most is refused."""
    most = max(getattr(subject.thing, "examples", ()))
    *examples, x_query = subject.given.values()
    xs, ys = (torch.cat([part] * (most + 1), dim=1)[:, : most + 1] for part in examples)
    require_refusal(partial(subject.thing.predict, xs, ys, x_query), f"{most + 1} examples")


def order_does_not_matter(subject: Subject) -> None:
    """The examples in another order have the same answer."""
    xs, ys, _ = subject.given.values()
    order = torch.randperm(xs.shape[-2], generator=torch.Generator().manual_seed(0), device="cpu")
    _require_same_answer(subject, "another order", xs=xs[:, order], ys=ys[:, order])


def rotations_do_not_matter(subject: Subject) -> None:
    """Rotated xs with the rotated query have the same answer."""
    xs, _, x_query = subject.given.values()
    turn = torch.linalg.qr(_normal(xs.shape[-1], xs.shape[-1]))[0].to(xs.dtype)
    _require_same_answer(subject, "other coordinates", xs=xs @ turn, x_query=x_query @ turn)


def answers_scale_with_targets(subject: Subject) -> None:
    """Half the targets have half the answer."""
    _require_same_answer(subject, "half the targets", 0.5, ys=subject.given["ys"] / 2)


def _require_same_answer(subject: Subject, what: str, factor: float = 1.0, **changes: Tensor) -> None:
    expected = subject.call(subject.parts) * factor
    require_agreement(subject.call(subject.parts | changes), expected, subject.tolerance(expected), what)


INVARIANCES: dict[str, Callable[[Subject], None]] = {
    "order": order_does_not_matter,
    "rotation": rotations_do_not_matter,
    "scale": answers_scale_with_targets,
}
PREDICTOR_CHECKS: Sequence[Callable[[Subject], None]] = (
    *COMMON,
    one_number_a_dataset,
    nan_is_refused_or_shown,
)
