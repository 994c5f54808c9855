"""The contract of a predictor: one number a dataset from `predict(xs, ys, x_query)`, whatever stands behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from emulon.core.errors import EmulonError, unknown
from emulon.core.predictor import Predictor
from emulon.testing.contract import (
    NamedCheck,
    named,
    require,
    require_agreement,
    require_refusal,
    require_same_bits,
    run_checks,
)

FEATURES, EXAMPLES, BATCH = 3, 8, 6
# (xs, ys, x_query) before and after, and the factor on the answer.
Transformed = tuple[Tensor, Tensor, Tensor, float]


@dataclass(frozen=True)
class Subject:
    predictor: Predictor
    xs: Tensor
    ys: Tensor
    x_query: Tensor
    tolerance: float

    def predict(self) -> Tensor:
        return self.predictor.predict(**self.parts)

    @property
    def parts(self) -> dict[str, Tensor]:
        """Copies: what one call writes into its inputs must not reach the next check."""
        return {"xs": self.xs.clone(), "ys": self.ys.clone(), "x_query": self.x_query.clone()}

    def apart(self, answers: Tensor) -> float:
        return self.tolerance * max(1.0, answers.abs().max().item())


def predictor_checks(
    predictor: Predictor,
    data: tuple[Tensor, Tensor] | None = None,
    *,
    invariances: Sequence[str] = (),
    tolerance: float = 1e-9,
) -> Iterator[NamedCheck]:
    """On xs (batch, points, features) and ys (batch, points), the last point of which is the query.

    By default 8 examples of 3 features, or as many as it takes at most. `invariances` are those that it claims:
    "order" (of the examples), "rotation" (of xs and query together), "scale" (of ys: the answer scales with them).
    Two evaluations that ought to agree may be apart by `tolerance` next to their size.
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
    """All `predictor_checks`, one after the other."""
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
    answers, lead = subject.predict(), tuple(subject.xs.shape[:-2])
    require(tuple(answers.shape) == lead, f"answers of shape {tuple(answers.shape)} for datasets {lead}")
    require(answers.is_floating_point(), f"answers are {answers.dtype}")
    require(bool(answers.isfinite().all()), "answers are not finite")


def leading_dimensions_are_batches(subject: Subject) -> None:
    """One dataset alone, and two leading dimensions, are answered as in one batch."""
    together = subject.predict()
    for i in range(len(together)):
        alone = subject.predictor.predict(subject.xs[i], subject.ys[i], subject.x_query[i])
        require_agreement(alone, together[i], subject.apart(together), f"dataset {i} alone")
    folded = [part.unflatten(0, (2, -1)) for part in subject.parts.values() if len(part) % 2 == 0]
    if folded:
        answers = subject.predictor.predict(*folded)
        require_agreement(answers.flatten(), together, subject.apart(together), "two leading dimensions")


def repeated_calls_give_the_same_bits(subject: Subject) -> None:
    require_same_bits(subject.predict(), subject.predict(), "two calls with the same data")


def inputs_are_left_alone(subject: Subject) -> None:
    """Nothing is written into what was given."""
    given = subject.parts
    before = {name: part.clone() for name, part in given.items()}
    subject.predictor.predict(**given)
    for name, part in given.items():
        require_same_bits(part, before[name], f"{name} before and after a call")


def nan_is_refused_or_shown(subject: Subject) -> None:
    """NaN in a dataset is refused in one line, or its answer is NaN: it is never a number that looks right."""
    for name, part in subject.parts.items():
        spoilt = part.clone()
        spoilt[0].view(-1)[0] = math.nan
        try:
            answers = subject.predictor.predict(**(subject.parts | {name: spoilt}))
        except EmulonError as error:
            require("\n" not in str(error), f"NaN in {name} is refused in more than one line: {str(error)!r}")
            continue
        require(not answers[0].isfinite().item(), f"NaN in {name} is answered {answers[0].item():g}")


def several_queries_are_answered_as_each_alone(subject: Subject) -> None:
    """x_query (..., queries, features) has an answer for each, which the other queries do not change."""
    queries = torch.stack([subject.x_query, subject.xs[:, 0], subject.xs[:, -1]], dim=-2)
    together = subject.predictor.predict(subject.xs, subject.ys, queries)
    for k in range(queries.shape[-2]):
        alone = subject.predictor.predict(subject.xs, subject.ys, queries[:, k])
        require_agreement(together[:, k], alone, subject.apart(alone), f"query {k} alone")


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
        require_agreement(together[:, n], alone, subject.apart(alone), f"after {n} examples")
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
    _require_invariance(subject, (subject.xs[:, order], subject.ys[:, order], subject.x_query, 1.0), "another order")


def rotations_do_not_matter(subject: Subject) -> None:
    """xs and the query in other coordinates have the same answer."""
    square = torch.randn(
        *[subject.xs.shape[-1]] * 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, device="cpu"
    )
    turn = torch.linalg.qr(square)[0].to(subject.xs.dtype)
    _require_invariance(subject, (subject.xs @ turn, subject.ys, subject.x_query @ turn, 1.0), "other coordinates")


def answers_scale_with_targets(subject: Subject) -> None:
    """Half the targets have half the answer."""
    _require_invariance(subject, (subject.xs, subject.ys / 2, subject.x_query, 0.5), "half the targets")


def _require_invariance(subject: Subject, transformed: Transformed, what: str) -> None:
    *parts, factor = transformed
    expected = subject.predict() * factor
    xs, ys, x_query = parts
    require_agreement(subject.predictor.predict(xs, ys, x_query), expected, subject.apart(expected), what)


INVARIANCES: dict[str, Callable[[Subject], None]] = {
    "order": order_does_not_matter,
    "rotation": rotations_do_not_matter,
    "scale": answers_scale_with_targets,
}
CHECKS: tuple[Callable[[Subject], None], ...] = (
    inputs_are_left_alone,
    one_number_a_dataset,
    leading_dimensions_are_batches,
    repeated_calls_give_the_same_bits,
    nan_is_refused_or_shown,
)
