"""The one call of everything that predicts in context, `predict(xs, ys, x_query)`, and adapters to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.arrays import takes_arrays
from emulon.errors import BadShape, EmulonError, OutOfDomain


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
    """Anything that predicts, behind the one call.

    An algorithm, a learner, a compiled machine, a looped transformer (with `loops`), a construction that returns
    weights, a scikit-learn estimator, or a function of (xs, ys, x_query).
    """
    parameters = [] if isinstance(thing, type) else _parameters(getattr(thing, "predict", None))
    if hasattr(thing, "program") and parameters[:2] == ["xs", "ys"]:
        return MachinePredictor(thing)
    if "loops" in parameters:
        if loops is None:
            raise NotAPredictor(f"{type(thing).__name__} predicts after a number of loops; say how many with loops=")
        return LoopedPredictor(thing, loops)
    if len(parameters) >= 3 and isinstance(thing, Predictor):
        return thing
    if parameters and hasattr(thing, "fit"):
        return EstimatorPredictor(thing)
    if hasattr(thing, "step") and callable(getattr(thing, "run", None)):
        return WeightsPredictor(thing)
    if callable(thing) and not isinstance(thing, type) and _takes_three(thing):
        return FunctionPredictor(thing)
    raise NotAPredictor(
        f"{type(thing).__name__} does not predict: give it predict(xs, ys, x_query), or give a function of these"
    )


class FunctionPredictor:
    """A plain function of (xs, ys, x_query); with `each` it is called for one dataset at a time."""

    def __init__(self, function: Callable[..., Any], *, each: bool = False) -> None:
        self.function, self.each = function, each

    @takes_arrays("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        if not self.each:
            return self._call(xs, ys, x_query)
        lead = xs.shape[:-2]
        flat = (xs.reshape(-1, *xs.shape[-2:]), ys.reshape(-1, ys.shape[-1]), x_query.reshape(-1, x_query.shape[-1]))
        rows = zip(*flat, strict=True)
        return torch.stack([self._call(*row) for row in rows]).reshape(lead)

    def _call(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        try:
            answer = self.function(xs, ys, x_query)
        except (TypeError, IndexError, KeyError, ValueError) as error:
            if isinstance(error, EmulonError):
                raise
            name = getattr(self.function, "__name__", type(self.function).__name__)
            first = next(iter(str(error).splitlines()), "")  # others explain themselves at length
            what = f"{name} failed on xs of shape {tuple(xs.shape)}: {type(error).__name__}: {first}"
            raise NotAPredictor(what) from error
        return _numbers(answer, xs)


class EstimatorPredictor:
    """A scikit-learn estimator, fitted anew on every dataset: scikit-learn has no batches, so this one loops."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    @takes_arrays("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        from sklearn.base import clone

        def one(x: Tensor, y: Tensor, query: Tensor) -> float:
            fitted = clone(self.estimator).fit(x.numpy(), y.numpy())
            return float(fitted.predict(query.numpy()[None])[0])

        return FunctionPredictor(one, each=True).predict(xs.detach(), ys.detach(), x_query.detach())


class WeightsPredictor:
    """A construction that maps (xs, ys) to weights, such as `constructions.DescentInContext`: its answer is w·x."""

    several_queries = True

    def __init__(self, construction: Any) -> None:
        self.construction = construction
        domain = getattr(construction.step, "domain", None)
        self.examples: tuple[int, ...] | None = None if domain is None else (domain.samples,)

    @takes_arrays("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        weights: Tensor = self.construction(xs, ys)
        return ((weights.unsqueeze(-2) if x_query.ndim == xs.ndim else weights) * x_query).sum(dim=-1)


class LoopedPredictor:
    """A looped transformer after a fixed number of loops; it is built for one number of examples."""

    def __init__(self, transformer: Any, loops: int) -> None:
        self.transformer, self.loops = transformer, loops
        self.examples = (transformer.domain.samples,)

    @takes_arrays("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        answers: Tensor = self.transformer.predict(xs, ys, x_query, loops=self.loops)
        return answers


class MachinePredictor:
    """A compiled register machine. It is causal, so any shorter prompt is padded to the length it was built for."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.samples: int = machine.program.prompt.samples
        self.examples = tuple(range(1, self.samples))

    @takes_arrays("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ_i at every x_i; the last target may be left out."""
        points, missing = xs.shape[-2], self.samples - xs.shape[-2]
        if missing < 0:
            raise BadShape(f"this machine was compiled for {self.samples} points, the query included; got {points}")
        xs = torch.nn.functional.pad(xs, (0, 0, 0, missing))
        ys = torch.nn.functional.pad(ys, (0, self.samples - ys.shape[-1]))
        answers: Tensor = self.machine.predict(xs, ys)
        return answers[..., :points]


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
        answers = torch.stack([predictor.predict(xs[:, :n], ys[:, :n], xs[:, n]) for n in counts], dim=-1)
    if answers.shape != (xs.shape[0], len(counts)):
        raise BadShape(f"the predictor answered {tuple(answers.shape)}, wanted one number for each of {xs.shape[0]}")
    if not torch.isfinite(answers).all():
        worst = next(n for n, column in zip(counts, answers.unbind(-1), strict=True) if not column.isfinite().all())
        raise OutOfDomain(f"the predictor answers NaN or infinity after {worst} examples; nothing can be compared")
    return answers.double()


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
    return predictor.predict(*repeated, queries.flatten(0, 1)).double().reshape(batch, each)


def required_parameters(function: Any) -> list[str]:
    """The names that a call must give; `unknown` where they cannot be known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ["unknown"]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    empty = inspect.Parameter.empty
    return [name for name, one in signature.parameters.items() if one.default is empty and one.kind not in kinds]


def _parameters(function: object) -> list[str]:
    """The names of a callable's parameters; none where they cannot be known."""
    try:
        return list(inspect.signature(function).parameters)  # type: ignore[arg-type]  # what is no callable raises
    except (TypeError, ValueError):
        return []


def _takes_three(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # a builtin: only calling it tells
        return True
    return True


def _numbers(answer: Any, like: Real[Tensor, "*shape"]) -> Tensor:
    """Whatever a function returned, as a tensor, one number a dataset."""
    # A Python float would become float32, whatever precision it was computed in.
    out = answer if isinstance(answer, Tensor) else torch.as_tensor(np.asarray(answer), device=like.device)
    if out.shape != like.shape[:-2]:
        raise BadShape(
            f"the function answered {tuple(out.shape)} for xs of shape {tuple(like.shape)}; wanted "
            f"{tuple(like.shape[:-2])}, one number a dataset (wrap it with each=True if it takes one at a time)"
        )
    return out if out.is_floating_point() else out.double()
