"""The protocol of predictors, `predict(xs, ys, x_query)`, and adapters to it."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadShape, EmulonError, OutOfDomain

# Other people's wrappers of models, by the package of their class; `emulon.planted.lens` opens them.
WRAPPERS = ("transformer_lens", "nnsight")


class NotAPredictor(EmulonError):
    """Something that cannot be read, or that does not predict.

    Cure: give a run's folder, a program's file, `module:name`, or an object with `predict(xs, ys, x_query)`.
    """


@runtime_checkable
class Predictor(Protocol):
    """xs (..., examples, features), ys (..., examples), x_query (..., features) ↦ one number a dataset.

    Three things are optional. `examples`: the numbers of examples it can take, where it cannot take any.
    `several_queries`: true where x_query may also be (..., queries, features). And `predict_prefixes(xs, ys)`: one
    prediction at every x_i from the examples before it, where one pass gives them all.
    """

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor: ...


def as_predictor(thing: object, *, loops: int | None = None) -> Predictor:
    """Adapt an object to the predictor protocol.

    An algorithm, a learner, a compiled machine, a looped transformer (with `loops`), a construction that returns
    weights, an estimator with scikit-learn's fit and predict, a planted model opened in TransformerLens or nnsight, or
    a function of (xs, ys, x_query), which may take a batch of datasets or one dataset.
    """
    if is_wrapper(thing):
        opened: Predictor = import_module("emulon.planted.lens").opened(thing)
        return opened
    parameters = [] if isinstance(thing, type) else _parameters(getattr(thing, "predict", None))
    if hasattr(thing, "program") and parameters[:2] == ["xs", "ys"]:
        return MachinePredictor(thing)
    if "loops" in parameters:
        if loops is None:
            raise NotAPredictor(f"{type(thing).__name__} predicts after a number of loops; say how many with loops=")
        looped: Any = thing
        return SizedPredictor(partial(looped.predict, loops=loops), (looped.domain.samples,))
    if len(parameters) >= 3 and isinstance(thing, Predictor):
        return thing
    if parameters and hasattr(thing, "fit"):
        return EstimatorPredictor(thing)
    if hasattr(thing, "step") and callable(getattr(thing, "run", None)):
        domain = getattr(thing.step, "domain", None)
        return SizedPredictor(partial(_by_weights, thing), None if domain is None else (domain.samples,), True)
    if callable(thing) and not isinstance(thing, type) and takes(thing, 3, unknown=True):
        return FunctionPredictor(thing)
    raise NotAPredictor(
        f"{type(thing).__name__} does not predict: give it predict(xs, ys, x_query), or give a function of these"
    )


def is_wrapper(thing: object) -> bool:
    """Whether this is another tool's wrapper of a model."""
    return _package(thing) in WRAPPERS


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


class FunctionPredictor:
    """A plain function of (xs, ys, x_query), of a batch of datasets or of one.

    `each` says that it takes one dataset at a time; where it is left open a batch is tried first, and one at a time
    where the batch fails or its answer is not one number a dataset.
    """

    def __init__(self, function: Callable[..., Any], *, each: bool | None = None) -> None:
        self.function, self.each = function, each

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        if self.each is None and xs.ndim > 2 and xs.numel():
            return self._tried(xs, ys, x_query)
        return self._one_by_one(xs, ys, x_query) if self.each else self._call(xs, ys, x_query)

    def _tried(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        """Find out with the first batch whether the function takes batches or single datasets."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a function of one dataset may warn before it fails
                answers = self._call(xs, ys, x_query)
            self.each = False
        except EmulonError as refused:
            try:
                answers = self._one_by_one(xs, ys, x_query)
            except EmulonError:
                raise refused from refused.__cause__  # it is about the call as it is documented
            self.each = True
        return answers

    def _one_by_one(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        lead = xs.shape[:-2]
        flat = (xs.reshape(-1, *xs.shape[-2:]), ys.reshape(-1, ys.shape[-1]), x_query.reshape(-1, x_query.shape[-1]))
        rows = zip(*flat, strict=True)
        return torch.stack([self._call(*row) for row in rows]).reshape(lead)

    def _call(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return _called(self.function, name, xs, ys, x_query)


def _called(function: Callable[..., Any], name: str, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    """One number a dataset; an exception of another library becomes one line."""
    try:
        answer = function(xs, ys, x_query)
    except Exception as error:
        # Whoever asks for a gradient knows what to do without one.
        if isinstance(error, EmulonError) or "requires grad" in str(error):
            raise
        raise failed(name, xs.shape, error) from error
    return _numbers(answer, xs)


class EstimatorPredictor:
    """Anything with scikit-learn's fit(x, y) and predict(x), fitted anew on every dataset: it has no batches, so this
    one loops. What scikit-learn cannot clone, as tabular models that only look like its estimators, is copied."""

    several_queries = True

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        several = x_query.ndim == xs.ndim
        queries = x_query if several else x_query.unsqueeze(-2)
        parts = (part.detach().cpu().numpy() for part in (xs, ys, queries))
        flat = [part.reshape(-1, *part.shape[xs.ndim - 2 :]) for part in parts]
        answers = np.array([self._answers(x, y, asked) for x, y, asked in zip(*flat, strict=True)])
        return torch.from_numpy(answers.reshape(x_query.shape[:-1])).to(xs.device)

    def _answers(self, x: np.ndarray, y: np.ndarray, queries: np.ndarray) -> np.ndarray:
        from sklearn.base import clone

        try:
            known = hasattr(self.estimator, "get_params")
            model = clone(self.estimator) if known else copy.deepcopy(self.estimator)
            model.fit(x, y)
            answers = np.asarray(model.predict(queries), dtype=np.float64)
        except Exception as error:
            if isinstance(error, EmulonError):
                raise
            advice = "; if it needs more examples than that, ask after more (fewest)"
            raise failed(type(self.estimator).__name__, x.shape, error, advice) from error
        if answers.size != len(queries):
            raise BadShape(f"{type(self.estimator).__name__} predicts {answers.shape} for {len(queries)} queries")
        return answers.ravel()


def failed(name: str, shape: Sequence[int], error: Exception, advice: str = "") -> NotAPredictor:
    """The refusal for an exception of another library, by its first line; `advice` continues the sentence."""
    first = "".join(f": {line}" for line in str(error).splitlines()[:1])
    return NotAPredictor(f"{name} failed on xs of shape {tuple(shape)}: {type(error).__name__}{first}{advice}")


class SizedPredictor:
    """A function of (xs, ys, x_query) in tensors, and the numbers of examples that it takes, where it takes not any."""

    def __init__(
        self, answers: Callable[..., Tensor], examples: tuple[int, ...] | None, several_queries: bool = False
    ) -> None:
        self.answers, self.examples, self.several_queries = answers, examples, several_queries

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        return self.answers(xs, ys, x_query)


def _by_weights(construction: Any, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    """w·x of a construction that maps (xs, ys) to weights, such as `constructions.DescentInContext`."""
    weights: Tensor = construction(xs, ys)
    return ((weights.unsqueeze(-2) if x_query.ndim == xs.ndim else weights) * x_query).sum(dim=-1)


class PrefixPredictor:
    """A predictor that answers at every x of a prompt of `samples` points, from the examples before it.

    It is causal, so that a shorter prompt is padded to this length.
    """

    @property
    def samples(self) -> int:
        raise NotImplementedError

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x of a whole prompt."""
        raise NotImplementedError

    @property
    def examples(self) -> tuple[int, ...]:
        """Numbers of examples that it can be asked after."""
        return tuple(range(1, self.samples))

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        """ŷ at x_query after these examples."""
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ_i at every x_i; the last target and later examples may be missing."""
        return padded_prefixes(self, self.samples, xs, ys)


class MachinePredictor(PrefixPredictor):
    """A compiled register machine."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    @property
    def samples(self) -> int:
        return int(self.machine.program.prompt.samples)

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        answers: Tensor = self.machine.predict(xs, ys)
        return answers


def padded_prefixes(answers: Callable[[Tensor, Tensor], Tensor], samples: int, xs: Tensor, ys: Tensor) -> Tensor:
    """The answers of something causal that takes `samples` points, no fewer, to these, padded with zeros."""
    points, missing = xs.shape[-2], samples - xs.shape[-2]
    if missing < 0:
        raise BadShape(f"this machine was compiled for {samples} points, the query included; got {points}")
    xs = torch.nn.functional.pad(xs, (0, 0, 0, missing))
    ys = torch.nn.functional.pad(ys, (0, samples - ys.shape[-1]))
    return answers(xs, ys)[..., :points]


def predict_at(
    predictor: Predictor,
    xs: Float[Tensor, "batch points features"],
    ys: Float[Tensor, "batch points"],
    counts: Sequence[int],
) -> Float[Tensor, "batch counts"]:
    """For every n in counts: the prediction at x_{n+1} from the first n examples, a whole batch of datasets at once."""
    if prefixes := getattr(predictor, "predict_prefixes", None):
        used = max(counts) + 1  # a learner may be unable to read more
        answers: Tensor = prefixes(xs[:, :used], ys[:, :used])[..., list(counts)]
    else:
        answers = torch.stack([_answers(predictor, xs[:, :n], ys[:, :n], xs[:, n]) for n in counts], dim=-1)
    if answers.shape != (xs.shape[0], len(counts)):
        raise BadShape(f"the predictor answered {tuple(answers.shape)}, wanted one number for each of {xs.shape[0]}")
    answers = answers.double()
    if not answers.isfinite().any():
        raise OutOfDomain("the predictor answers NaN or infinity to everything: check its weights and its input")
    for n, column in zip(counts, answers.unbind(-1), strict=True):
        # A square that overflows cannot be compared either.
        if bad := int((~column.square().isfinite()).sum()):
            what = "numbers too large to be squared" if column.isfinite().all() else "NaN or infinity"
            raise OutOfDomain(
                f"the predictor answers {what} after {n} examples, in {bad} of {len(column)} datasets; if it needs "
                "more examples than that, ask after more (fewest)"
            )
    return answers


def _answers(predictor: Predictor, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
    if _package(predictor) == __name__.partition(".")[0]:
        return predictor.predict(xs, ys, x_query)
    return _called(predictor.predict, type(predictor).__name__, xs, ys, x_query)


def predict_queries(
    predictor: Predictor,
    xs: Float[Tensor, "batch examples features"],
    ys: Float[Tensor, "batch examples"],
    queries: Float[Tensor, "batch queries features"],
) -> Float[Tensor, "batch queries"]:
    """Several queries for each dataset; a predictor that takes one at a time gets a prompt for each."""
    if getattr(predictor, "several_queries", False):
        return predictor.predict(xs, ys, queries).double()
    batch, each = queries.shape[:2]
    repeated = xs.repeat_interleave(each, dim=0), ys.repeat_interleave(each, dim=0)
    return _answers(predictor, *repeated, queries.flatten(0, 1)).double().reshape(batch, each)


def takes(function: Any, arguments: int, unknown: bool = False) -> bool:
    """Whether so many arguments fit a callable's signature; `unknown` if it has none, as some builtins."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except (TypeError, ValueError) as error:
        return unknown and isinstance(error, ValueError)
    return True


def _parameters(function: object) -> list[str]:
    """The names of a callable's parameters; none where they cannot be known."""
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]  # what is no callable raises
    except (TypeError, ValueError):
        return []


def _numbers(answer: Any, like: Real[Tensor, "*shape"]) -> Tensor:
    """Whatever a function returned, as a tensor, one number a dataset."""
    try:
        # A Python float would become float32, whatever precision it was computed in.
        out = answer if isinstance(answer, Tensor) else torch.as_tensor(np.asarray(answer), device=like.device)
    except (TypeError, ValueError):
        raise BadShape(f"the function answered {type(answer).__name__}; wanted one number a dataset") from None
    if out.is_complex():
        raise BadShape("the function answered complex numbers; wanted one real number a dataset")
    if out.shape != like.shape[:-2]:
        raise BadShape(
            f"the function answered {tuple(out.shape)} for xs of shape {tuple(like.shape)}; wanted "
            f"{tuple(like.shape[:-2])}, one number a dataset"
        )
    return out if out.is_floating_point() else out.double()
