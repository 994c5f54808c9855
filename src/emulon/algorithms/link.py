"""How a loss meets the data: what its argument t is made of, and what follows from that.

A loss is a scalar function; a link says which targets it takes, how (x, y) enter Theorem 3.1's template, which computes
w·x − y and nothing else, what a prediction is, and how targets as they were measured become targets to learn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.algorithm import FloatInputs, FloatTargets, Scores
from emulon.certify.domain import Domain
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.core.names import Registry

Kind = Literal["regression", "classification"]


class TemplateData(NamedTuple):
    """The data as the template sees them: the gradient is mean_i (ℓ′(w·x_i − y_i)·x_i − fixed_i).

    `fixed` is what does not depend on w, one row a sample; None where there is nothing of the kind.
    """

    x: FloatInputs
    y: FloatTargets
    fixed: FloatInputs | None


@dataclass(frozen=True)
class Encoding:
    """Measured targets as an algorithm learns them, one row a class where there are several, and the way back.

    In the units of the targets as they were measured a score w·x is scale·(w·x) + shift.
    """

    targets: Float[Tensor, "*classes samples"]
    decode: Callable[[np.ndarray], np.ndarray]
    scale: float = 1.0
    shift: float = 0.0


@dataclass(frozen=True)
class Link(ABC):
    """`kind` is what is learned, numbers or classes; `any_units` says whether targets may be shifted and scaled."""

    name: ClassVar[str]
    kind: ClassVar[Kind] = "regression"
    any_units: ClassVar[bool] = False

    @abstractmethod
    def require_targets(self, y: Real[Tensor, "*shape"]) -> None:
        """Refuse targets that the loss makes no sense of."""

    @abstractmethod
    def template_data(self, x: FloatInputs, y: FloatTargets) -> TemplateData: ...

    @abstractmethod
    def encode(self, measured: np.ndarray, *, centred: bool = True, scaled: bool = True) -> Encoding:
        """Numbers or classes, as they were measured, to learn from; centred and scaled where that makes sense."""

    def template_domain(self, domain: Domain) -> Domain:
        """Bounds on `template_data`'s x and y: here y is zero, and a bound that followed from its own follows again."""
        residual, absolute = (bound if bound < domain.widest else 0.0 for bound in (domain.residual, domain.absolute))
        return replace(domain, y=0.0, residual=residual, absolute=absolute)

    def largest_fixed(self, domain: Domain) -> float:
        """A bound on the entries of `template_data`'s fixed part."""
        return 0.0

    def mean_response(self, slope: Callable[[Tensor], Tensor], score: Scores) -> Scores:
        """The prediction that belongs to w·x."""
        return score


@dataclass(frozen=True)
class Residual(Link):
    """t = w·x − y: any numbers, learned with mean 0 and variance 1."""

    name = "residual"
    any_units = True

    def require_targets(self, y: Real[Tensor, "*shape"]) -> None:
        pass

    def template_data(self, x: FloatInputs, y: FloatTargets) -> TemplateData:
        return TemplateData(x, y, None)

    def template_domain(self, domain: Domain) -> Domain:
        return domain

    def encode(self, measured: np.ndarray, *, centred: bool = True, scaled: bool = True) -> Encoding:
        center = measured.sum() / len(measured)
        off = measured - center
        # Two passes, and what rounding left of the mean taken off the variance.
        size = np.sqrt((np.square(off).sum() - off.sum() ** 2 / len(measured)) / len(measured)) if scaled else 1.0
        center, off = (center, off) if centred else (0.0, measured)
        targets = torch.from_numpy(off / size)
        return Encoding(targets, lambda answers: answers * size + center, float(size), float(center))


@dataclass(frozen=True)
class Margin(Link):
    """t = w·(label·x): labels −1 and +1, the data enter as label·x with y = 0. Several classes are one against all."""

    name = "margin"
    kind = "classification"

    def require_targets(self, y: Real[Tensor, "*shape"]) -> None:
        if not torch.isin(y, torch.tensor([-1, 1], dtype=y.dtype, device=y.device)).all():
            raise OutOfDomain("a margin loss needs labels −1 and +1; map the classes first, as 2*y - 1 does 0 and 1")

    def template_data(self, x: FloatInputs, y: FloatTargets) -> TemplateData:
        return TemplateData(y.unsqueeze(-1) * x, y.new_zeros(y.shape), None)

    def encode(self, measured: np.ndarray, *, centred: bool = True, scaled: bool = True) -> Encoding:
        classes = np.unique(measured)
        if len(classes) < 2:
            raise EmulonError(f"the targets have one class, {classes[0]!r}; a classifier needs at least two")
        several = len(classes) > 2
        labels = torch.from_numpy(np.where(measured == (classes if several else classes[1:])[:, None], 1.0, -1.0))

        def decode(scores: np.ndarray) -> np.ndarray:
            chosen: np.ndarray = classes[scores.argmax(axis=0) if several else (scores > 0).astype(int)]
            return chosen

        return Encoding(labels if several else labels[0], decode)


@dataclass(frozen=True)
class Rate(Link):
    """t = w·x, and the mean of y·(w·x) is subtracted: a canonical log-likelihood of counts y ≥ 0, as Poisson's.

    Every sample brings the fixed y·x, and the prediction is ℓ′(w·x). Learned are counts over their mean.
    """

    name = "rate"

    def require_targets(self, y: Real[Tensor, "*shape"]) -> None:
        if (y < 0).any():
            raise OutOfDomain(f"counts cannot be negative, got {y.min().item():.6g}; drop or correct those samples")

    def template_data(self, x: FloatInputs, y: FloatTargets) -> TemplateData:
        return TemplateData(x, y.new_zeros(y.shape), y.unsqueeze(-1) * x)

    def largest_fixed(self, domain: Domain) -> float:
        return domain.x * domain.y

    def mean_response(self, slope: Callable[[Tensor], Tensor], score: Scores) -> Scores:
        return slope(score)

    def encode(self, measured: np.ndarray, *, centred: bool = True, scaled: bool = True) -> Encoding:
        if measured.min() < 0 or not measured.any():
            raise OutOfDomain(f"needs non-negative targets, not all zero; the smallest is {measured.min():g}")
        mean = measured.mean() if scaled else 1.0
        return Encoding(torch.from_numpy(measured / mean), lambda answers: answers * mean, shift=float(np.log(mean)))


RESIDUAL, MARGIN, RATE = Residual(), Margin(), Rate()
LINKS: Registry[Link] = Registry("link")
for _link in (RESIDUAL, MARGIN, RATE):
    LINKS.register(_link, _link.name)
