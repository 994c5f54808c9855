"""Any `torch.nn.Module` as a predictor: its own forward signature, dtype and device are kept, the data go to it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon.core.errors import BadShape, EmulonError, unknown
from emulon.core.names import Registry
from emulon.core.predictor import FunctionPredictor, NotAPredictor, Predictor, as_predictor, is_wrapper
from emulon.tasks.task import interleave

# Datasets that a module reads at once: memory, not answers, depends on it.
DATASETS = 256

# What the forward pass is given, from examples (xs, ys) and a query: xs (B, n, d), ys (B, n), x_query (B, d).
Layout = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, ...]]
LAYOUTS: Registry[Layout] = Registry("layout")


def _layout(name: str) -> Callable[[Layout], Layout]:
    return lambda function: LAYOUTS.register(function, name)


def _points(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, Tensor]:
    """All n + 1 points, and their targets, 0 for the last."""
    return torch.cat([xs, x_query.unsqueeze(1)], dim=1), pad(ys, (0, 1))


@_layout("xs, ys, x")
def _three(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(xs, ys, x_query)."""
    return xs, ys, x_query


@_layout("xs, ys")
def _two(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(xs, ys) of n + 1 points; the answer is the last, as in Garg et al.'s code."""
    return _points(xs, ys, x_query)


@_layout("tokens")
def _tokens(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(tokens) of [0, x₁], [y₁, 0], …, [0, x_query]: (B, 2n + 1, d + 1)."""
    return (interleave(*_points(xs, ys, x_query)),)


@_layout("tokens, narrow")
def _narrow_tokens(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(tokens) of x₁, [y₁, 0, …], …, x_query: (B, 2n + 1, d)."""
    points, targets = _points(xs, ys, x_query)
    wide = pad(targets.unsqueeze(-1), (0, points.shape[-1] - 1))
    return (torch.stack([points, wide], dim=2).flatten(1, 2)[:, :-1],)


@_layout("rows")
def _rows(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(rows) of [x₁, y₁], …, [x_query, 0]: (B, n + 1, d + 1)."""
    points, targets = _points(xs, ys, x_query)
    return (torch.cat([points, targets.unsqueeze(-1)], dim=-1),)


@_layout("rows, y first")
def _rows_y_first(xs: Tensor, ys: Tensor, x_query: Tensor) -> tuple[Tensor, ...]:
    """forward(rows) of [y₁, x₁], …, [0, x_query]: (B, n + 1, d + 1)."""
    points, targets = _points(xs, ys, x_query)
    return (torch.cat([targets.unsqueeze(-1), points], dim=-1),)


class ModulePredictor:
    """A module behind `predict(xs, ys, x_query)`.

    Data are converted to the dtype and device of its first floating-point parameter. It is asked in eval mode and left
    in the mode it was in. Of an output with more entries than one a dataset the last position's first is the answer.

    Args:
        module: Any module.
        adapter: A name of `LAYOUTS`, or a function (module, xs, ys, x_query) that returns its output.
    """

    def __init__(self, module: nn.Module, adapter: str | Callable[..., Any]) -> None:
        self.module = module
        self._ask: Callable[..., Any] = _asking(LAYOUTS.named(adapter)) if isinstance(adapter, str) else adapter

    def predict(
        self, xs: Float[Tensor, "*batch n d"], ys: Float[Tensor, "*batch n"], x_query: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch"]:
        """The module's answers, one a dataset."""
        lead = xs.shape[:-2]
        flat = [part.reshape(math.prod(lead), *part.shape[len(lead) :]) for part in (xs, ys, x_query)]
        with _asked(self.module), torch.set_grad_enabled(x_query.requires_grad):
            parts = [self._answers(*part) for part in zip(*(each.split(DATASETS) for each in flat), strict=True)]
        return torch.cat(parts).reshape(lead)

    def _answers(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        tensors = chain(self.module.parameters(), self.module.buffers())
        like = next((one for one in tensors if one.is_floating_point()), x_query)
        data = [part.to(like.device, like.dtype) for part in (xs, ys, x_query)]
        name = type(self.module).__name__
        try:
            output = self._ask(self.module, *data)
        except Exception as error:
            if isinstance(error, EmulonError) or "requires grad" in str(error):
                raise
            first = "".join(f": {line}" for line in str(error).splitlines()[:1])
            raise NotAPredictor(
                f"{name} failed on xs of shape {tuple(xs.shape)}: {type(error).__name__}{first}; if it reads prompts of"
                f" another layout give adapter= one of {', '.join(map(repr, LAYOUTS))}, if fewer points give points="
            ) from error
        return _last(output, len(xs), name).to(x_query.device).double()


def _asking(layout: Layout) -> Callable[..., Any]:
    return lambda module, xs, ys, x_query: module(*layout(xs, ys, x_query))


@contextmanager
def _asked(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _last(output: Any, datasets: int, name: str) -> Tensor:
    """One number a dataset: of several loop counts or layers the last, of several positions the last, of several
    numbers at it the first."""
    while isinstance(output, tuple | list) and output:
        output = output[-1] if isinstance(output, list) else output[0]
    for field in ("logits", "last_hidden_state"):
        output = getattr(output, field, output)
    if not isinstance(output, Tensor):
        raise BadShape(f"{name} answered {type(output).__name__}; wanted a tensor: give adapter= a function instead")
    if output.ndim not in (1, 2, 3) or len(output) != datasets or output.numel() < datasets:
        raise BadShape(
            f"{name} answered shape {tuple(output.shape)} for {datasets} datasets; wanted (B,), (B, T) or (B, T, k), "
            "the answer at the last of T: give adapter= a function of (model, xs, ys, x_query) instead"
        )
    answers = output[:, -1] if output.ndim > 1 else output
    return answers[:, 0] if answers.ndim > 1 else answers


def adapt(model: object, adapter: Any = None, *, loops: int | None = None) -> Predictor:
    """Put anything that predicts in context behind `predict(xs, ys, x_query)`.

    Args:
        model: A predictor, a function, a scikit-learn estimator or anything else with fit and predict, a compiled
            program, a `torch.nn.Module`, or a causal language model of transformers.
        adapter: How a module is asked, where its forward pass does not tell: a name of `LAYOUTS` ("tokens", "rows",
            "xs, ys", …), the tokenizer of a language model, or a function (model, xs, ys, x_query) that returns one
            number a dataset.
        loops: Loop count of a compiled looped transformer.
    Returns:
        A predictor.
    Raises:
        NotAPredictor: The model cannot be asked, or its forward pass leaves open how.

    Example:
        >>> adapt(lambda xs, ys, x: ys.mean(dim=-1)).predict(torch.ones(3, 1), torch.arange(3.0), torch.ones(1))
        tensor(1.)
    """
    if callable(getattr(adapter, "encode", None)) and callable(getattr(adapter, "decode", None)):
        from emulon.identification.checkpoints import TextPredictor

        return TextPredictor(model, adapter)
    if isinstance(adapter, str):
        if not isinstance(model, nn.Module):
            raise NotAPredictor(f"adapter={adapter!r} is for modules, and this is a {type(model).__name__}")
        return ModulePredictor(model, adapter)
    if adapter is not None:
        if not callable(adapter):
            raise EmulonError(unknown("layout", str(adapter), LAYOUTS))
        if isinstance(model, nn.Module):
            return ModulePredictor(model, adapter)
        return FunctionPredictor(lambda xs, ys, x_query: adapter(model, xs, ys, x_query))
    ours = type(model).__module__.partition(".")[0] == __name__.partition(".")[0]
    if isinstance(model, nn.Module) and not (ours or hasattr(model, "predict") or is_wrapper(model)):
        return ModulePredictor(model, _layout_of(model))
    return as_predictor(model, loops=loops)


def _layout_of(module: nn.Module) -> str:
    """The layout that the forward pass itself tells: by the number of arguments that it must be given."""
    name, parameters = type(module).__name__, inspect.signature(module.forward).parameters.values()
    if hasattr(module, "config") and "input_ids" in inspect.signature(module.forward).parameters:
        raise NotAPredictor(f"{name} reads text: give its tokenizer, as adapter=tokenizer")
    required = [each for each in parameters if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(required) in (2, 3):
        return ("xs, ys", "xs, ys, x")[len(required) - 2]
    raise NotAPredictor(
        f"{name} reads {len(required)} tensor{'s' * (len(required) != 1)}, and there are several ways to write a"
        f" prompt as that: give adapter= one of {', '.join(map(repr, LAYOUTS))}, or a function of (model, xs, ys,"
        " x_query)"
    )
