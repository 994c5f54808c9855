"""The contract of a predictor: one number a dataset from `predict(xs, ys, x_query)`, whatever stands behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from emulon.core.errors import EmulonError, unknown
from emulon.core.predictor import Predictor
from emulon.testing.contract import (
    COMMON,
    NamedCheck,
    TensorFunction,
    named,
    require,
    require_agreement,
    require_refusal,
    require_same_bits,
    run_checks,
)

FEATURES, EXAMPLES, BATCH = 3, 8, 6


@dataclass(frozen=True)
class Subject(TensorFunction):
    predictor: Predictor
    xs: Tensor
    ys: Tensor
    x_query: Tensor
    near: float

    @property
    def parts(self) -> dict[str, Tensor]:
        return {"xs": self.xs.clone(), "ys": self.ys.clone(), "x_query": self.x_query.clone()}

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(self.xs.shape[:-2])

    def call(self, parts: Mapping[str, Tensor]) -> Tensor:
        return self.predictor.predict(parts["xs"], parts["ys"], parts["x_query"])

    def tolerance(self, answer: Tensor) -> float:
        return self.near * max(1.0, answer.abs().max().item())


def predictor_checks(
    predictor: Predictor,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    invariances: Sequence[str] = (),
    tolerance: float = 1e-9,
) -> Iterator[NamedCheck]:
    """The checks of `check_predictor` one by one, as (name, check).

    Args:
        predictor: What is checked.
        data: xs (batch, points, features) and ys (batch, points), the last point of which is the query. By default 8
            examples of 3 features, or as many as it takes at most.
        invariances: Those that it claims: "order" (of the examples), "rotation" (of xs and query together), "scale" (of
            ys: the answer scales with them).
        tolerance: Largest difference between two evaluations that ought to agree, next to their size.
    """
    xs, ys = _data(predictor) if data is None else data
    subject = Subject(predictor, xs[:, :-1], ys[:, :-1], xs[:, -1], tolerance)
    checks = list(CHECKS)
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
        data: As for `predictor_checks`.
        invariances: As for `predictor_checks`.
        tolerance: As for `predictor_checks`.

    Raises:
        ContractBroken: The name of the first check that fails, and what was seen.

    Example:
        >>> check_predictor(LeastSquares(), invariances=("order", "rotation"))
    """
    run_checks(predictor_checks(predictor, data, invariances=invariances, tolerance=tolerance))


def _data(predictor: Predictor) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    takes = getattr(predictor, "examples", None)
    points = (EXAMPLES if takes is None else max(takes)) + 1
    xs = torch.randn(BATCH, points, FEATURES, generator=generator, dtype=torch.float64, device="cpu")
    ys = xs.sum(dim=-1) / 2 + torch.randn(BATCH, points, generator=generator, dtype=torch.float64, device="cpu") / 2
    return xs, ys


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
    queries = torch.stack([subject.x_query, subject.xs[:, 0], subject.xs[:, -1]], dim=-2)
    together = subject.call(subject.parts | {"x_query": queries})
    for k in range(queries.shape[-2]):
        alone = subject.call(subject.parts | {"x_query": queries[:, k]})
        require_agreement(together[:, k], alone, subject.tolerance(alone), f"query {k} alone")


def prefixes_are_answered_as_each_alone(subject: Subject) -> None:
    """`predict_prefixes(xs, ys)` at every x_i is `predict` from the examples before it; the last y is not read."""
    predictor, xs = subject.predictor, torch.cat([subject.xs, subject.x_query.unsqueeze(-2)], dim=-2)
    ys = torch.nn.functional.pad(subject.ys, (0, 1))
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
    most = max(getattr(subject.predictor, "examples", ()))
    xs, ys = (torch.cat([part] * (most + 1), dim=1)[:, : most + 1] for part in (subject.xs, subject.ys))
    require_refusal(partial(subject.predictor.predict, xs, ys, subject.x_query), f"{most + 1} examples")


def order_does_not_matter(subject: Subject) -> None:
    """The examples in another order have the same answer."""
    order = torch.randperm(subject.xs.shape[-2], generator=torch.Generator().manual_seed(0), device="cpu")
    _require_same_answer(subject, "another order", xs=subject.xs[:, order], ys=subject.ys[:, order])


def rotations_do_not_matter(subject: Subject) -> None:
    """Rotated xs with the rotated query have the same answer."""
    size, generator = subject.xs.shape[-1], torch.Generator().manual_seed(0)
    square = torch.randn(size, size, generator=generator, dtype=torch.float64, device="cpu")
    turn = torch.linalg.qr(square)[0].to(subject.xs.dtype)
    _require_same_answer(subject, "other coordinates", xs=subject.xs @ turn, x_query=subject.x_query @ turn)


def answers_scale_with_targets(subject: Subject) -> None:
    """Half the targets have half the answer."""
    _require_same_answer(subject, "half the targets", 0.5, ys=subject.ys / 2)


def _require_same_answer(subject: Subject, what: str, factor: float = 1.0, **changes: Tensor) -> None:
    expected = subject.call(subject.parts) * factor
    require_agreement(subject.call(subject.parts | changes), expected, subject.tolerance(expected), what)


INVARIANCES: dict[str, Callable[[Subject], None]] = {
    "order": order_does_not_matter,
    "rotation": rotations_do_not_matter,
    "scale": answers_scale_with_targets,
}
CHECKS: tuple[Callable[[Subject], None], ...] = (*COMMON, one_number_a_dataset, nan_is_refused_or_shown)
