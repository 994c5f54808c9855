"""Base of looped transformers: number of heads from the tolerance, checks of the data, runs and their certificates.

An audit compares a run's answer with the exact iteration, which is evaluated in Arb balls: the functions at the end.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate, Domain
from emulon.certify.certificate import Run, SealedModule, require_answer, require_own_dtype
from emulon.certify.functions import distance
from emulon.core.arrays import accepts_arraylike, own_copy
from emulon.core.errors import BadShape, OutOfDomain, ToleranceTooTight
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.heads import MOST_PAIRS
from emulon.looped.layer import Frame, TokenSlots

# Data of regressions; labels may be numbers or vectors.
Inputs = Float[Tensor, "... samples inputs"]
Labels = Float[Tensor, "... samples"] | Float[Tensor, "... samples outputs"]
Query = Float[Tensor, "... inputs"]

# Loops every tolerance is promised for unless the caller asks for more.
HORIZON = 50


def share(total: float, terms: Mapping[str, float], prefix: str = "") -> dict[str, float]:
    """Split an accumulated bound over the named terms of the step it is proportional to."""
    if not total < math.inf:
        return {prefix.strip(): math.inf}
    step = sum(terms.values())
    return {prefix + name: total * (part / step) for name, part in terms.items()}


class LoopedTransformer(SealedModule):
    """A frozen pre/loop/post transformer built for a domain, with its certificate for every loop count ≤ horizon.

    Args:
        domain: Bounds on the data.
        dtype: float64 or float32.
        horizon: Most loops.
    """

    domain: Domain
    slots: TokenSlots
    frame: Frame
    pairs: int
    dimensions: tuple[int, ...] = (2, 2, 1)  # of each tensor of one problem; in front of them is the batch

    def __init__(self, domain: Domain, *, dtype: torch.dtype, horizon: int) -> None:
        super().__init__()
        if dtype not in (torch.float32, torch.float64):
            raise OutOfDomain(f"{dtype} cannot hold the position codes' scores exactly; use float32 or float64")
        if horizon < 1:
            raise OutOfDomain(f"horizon must be at least one loop, got {horizon}")
        if domain.norm == 0:
            raise OutOfDomain("the domain allows x = 0 only, from which nothing is learned; give x a positive bound")
        self.domain, self.dtype, self.horizon = domain, dtype, horizon

    @abstractmethod
    def promise(self, pairs: int, loops: int) -> Certificate:
        """|prediction − exact iterate| after so many loops with so many ± pairs of heads."""

    def worst_promise(self, pairs: int) -> Certificate:
        """The largest up to the horizon: by default that of the last loop, as errors only add up."""
        return self.promise(pairs, self.horizon)

    def fewest_pairs(self, tolerance: float | None) -> int:
        """The fewest ± pairs that keep the tolerance up to the horizon; without one, the best pairs.

        Where the bound up to the horizon is infinite, the best pairs are those of a single loop.
        """
        bounds = {}
        for pairs in range(1, MOST_PAIRS + 1):
            bounds[pairs] = self.worst_promise(pairs).bound
            if tolerance is not None and bounds[pairs] <= tolerance:
                return pairs
        best = min(bounds, key=lambda pairs: bounds[pairs])
        if bounds[best] == math.inf:
            best = min(bounds, key=lambda pairs: self.promise(pairs, 1).bound)
        if tolerance is None:
            return best
        advice = ", shorten the horizon, narrow the domain, or use a wider dtype"
        raise ToleranceTooTight(f"{best} pairs of heads over {self.horizon} loops", tolerance, bounds[best], advice)

    def certificate_after(self, loops: int) -> Certificate:
        """|prediction − exact iterate| after so many loops, for every input of the domain."""
        self.require_unchanged()
        return self.promise(self.pairs, loops)

    @property
    def certificate(self) -> Certificate:
        """|prediction − exact iterate| after any number of loops up to the horizon, for every input of the domain."""
        self.require_unchanged()
        return self.worst_promise(self.pairs)

    @abstractmethod
    def answers(self, tokens: Tensor) -> Tensor:
        """The predictions (..., outputs) that stand in finished tokens."""

    # The exact answers to one problem (tensors without batch dimensions) after so many loops, as Arb balls.
    exact: Callable[..., Sequence[Any]]

    def require(self, loops: int, **tensors: Tensor) -> None:
        """Refuse more loops than the horizon, autocast, and other dtypes. Edited weights run, uncertified."""
        require_own_dtype()
        if not 0 <= loops <= self.horizon:
            raise OutOfDomain(
                f"loops = {loops}, but the promise was made for 0 to {self.horizon}; build with a horizon"
            )
        for name, tensor in tensors.items():
            if tensor.dtype != self.dtype:
                raise OutOfDomain(f"{name} is {tensor.dtype}, the weights are {self.dtype}; convert one of them first")

    def extra_repr(self) -> str:
        return f"width={self.slots.width} {self.slots}\nup to {self.horizon} loops: {self.certificate}"


@dataclass(frozen=True, eq=False, repr=False)
class LoopedRun(Run):
    """A number of loops on one batch of problems: computed when asked for, once, and only predictions are kept.

    Attributes:
        transformer: What runs.
        data: The problems.
        prompt: Their tokens.
        loops: How often the loop runs.
        scalar: Whether labels came without a dimension of outputs.
    """

    transformer: LoopedTransformer
    data: tuple[Tensor, ...]
    prompt: Tensor
    loops: int
    scalar: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", tuple(map(own_copy, self.data)))

    @property
    def name(self) -> str:
        return f"{type(self.transformer).__name__}, {self.loops} loops"

    @property
    def last(self) -> Tensor:
        return self.prediction

    @cached_property
    def prediction(self) -> Tensor:
        """After the last loop; with a last dimension of outputs unless labels came without one."""
        *_, last = self._states()
        return self._answers(last)

    @cached_property
    def predictions(self) -> Tensor:
        """After 0, 1, …, loops steps, along a new first dimension."""
        return torch.stack([self._answers(state) for state in self._states()])

    @property
    def certificate(self) -> Certificate:  # type: ignore[override]  # nobody assigns it
        """What holds for every input of the domain after so many loops."""
        return self.transformer.certificate_after(self.loops)

    def _make_audit(self) -> Certificate:
        """The distance of `prediction` from the exact iteration, which is evaluated in Arb: for this run only."""
        ends = [tensor.shape[-count:] for tensor, count in zip(self.data, self.transformer.dimensions, strict=True)]
        fronts = [tensor.shape[:-count] for tensor, count in zip(self.data, self.transformer.dimensions, strict=True)]
        batch = torch.broadcast_shapes(*fronts)
        parts = [tensor.expand(batch + end).reshape(-1, *end) for tensor, end in zip(self.data, ends, strict=True)]
        worst = 0.0
        for *problem, answer in zip(*parts, self.prediction.reshape(math.prod(batch), -1), strict=True):
            exact = partial(self.transformer.exact, *problem, loops=self.loops)
            worst = max(worst, distance(exact, answer))
        return Certificate({"distance from the exact iteration": worst}, self.transformer.dtype, scope="run")

    def _states(self) -> Iterator[Tensor]:
        return self.transformer.frame.iterates(self.prompt, self.loops)

    def _answers(self, state: Tensor) -> Tensor:
        answers = self.transformer.answers(self.transformer.frame.finish(state))
        require_answer(answers)
        return answers.squeeze(-1) if self.scalar else answers


class LoopedRegression(LoopedTransformer):
    """A looped transformer that fits ys to xs in context and predicts at x_query.

    Args:
        domain: Bounds on the data.
        dtype: float64 or float32.
        horizon: Most loops.
    """

    outputs = 1

    @abstractmethod
    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        """The tokens of these problems; labels are (..., samples, outputs)."""

    def require_problem(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> None:
        """Refuse data outside the domain."""
        self.domain.check_problem(xs, labels, x_query)

    @accepts_arraylike("xs", "ys", "x_query", like="x_query")
    def run(self, xs: Inputs, ys: Labels, x_query: Query, *, loops: int) -> LoopedRun:
        self.require(loops, xs=xs, ys=ys, x_query=x_query)
        scalar = ys.ndim < xs.ndim
        labels = ys.unsqueeze(-1) if scalar else ys
        if labels.shape[-1] != self.outputs:
            raise BadShape(f"ys has {labels.shape[-1]} outputs, the transformer was built for {self.outputs}")
        self.require_problem(xs, labels, x_query)
        return LoopedRun(self, (xs, labels, x_query), self.prompt(xs, labels, x_query), loops, scalar)

    @accepts_arraylike("xs", "ys", "x_query", like="x_query", side="rows")
    def predict(self, xs: Inputs, ys: Labels, x_query: Query, *, loops: int) -> Tensor:
        """The prediction at x_query after `loops` steps, with a last dimension of outputs where ys has one."""
        return self.run(xs, ys, x_query, loops=loops).prediction


def descent(xs: Any, labels: Any, step_size: float, loops: int) -> Any:
    """A_Tᵀ as a matrix (features, outputs): T gradient steps from 0 on (1/2N)·Σ‖A x_i − y_i‖².

    A_T = Σ_{i<T} (I − ηG)^i · η·moment, summed by doubling T: balls grow with log T products instead of T.
    """
    from flint import arb, arb_mat

    rate, size = arb(step_size) / xs.nrows(), xs.ncols()
    one = arb_mat(size, size, [int(i == j) for i in range(size) for j in range(size)])
    step = one - xs.transpose() * xs * rate
    total, power = 0 * one, one
    for bit in f"{loops:b}":
        total, power = total + power * total, power * power
        if bit == "1":
            total, power = one + step * total, power * step
    return total * (xs.transpose() * labels) * rate


def newton(xs: Any, labels: Any, scale: float, loops: int) -> Any:
    """M_T·Xᵀy of M ← 2M − MSM from M_0 = scale·S, S = XᵀX."""
    from flint import arb

    gram = xs.transpose() * xs
    inverse = gram * arb(scale)
    for _ in range(loops):
        inverse = 2 * inverse - inverse * gram * inverse
    return inverse * (xs.transpose() * labels)


def affine(x: Any, weight: Tensor, bias: Tensor) -> Any:
    """x Wᵀ + b for the rows of an Arb matrix."""
    from flint import arb_mat

    return x * arb_matrix(weight.mT) + arb_mat(x.nrows(), 1, [1] * x.nrows()) * arb_matrix(bias.unsqueeze(0))


def leaky(values: Any, slope: float, *, inverse: bool = False) -> Any:
    """max(z, 0) + slope·min(z, 0), entry by entry, or the inverse of that function."""
    from flint import arb, arb_mat

    below = 1 / arb(slope) if inverse else arb(slope)
    return arb_mat(values.nrows(), values.ncols(), [z.max(0) + below * z.min(0) for z in values.entries()])
