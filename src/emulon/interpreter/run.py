"""What a run of descent is: the path it took, and what is promised of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Real
from torch import Tensor

from emulon.certify import Certificate
from emulon.certify.domain import require_finite
from emulon.certify.module import require_answer
from emulon.certify.result import Run
from emulon.core.arrays import ArrayFormat, accepts_arraylike
from emulon.core.memory import one_thread
from emulon.interpreter.audit import audited
from emulon.interpreter.plan import Plan


@dataclass(frozen=True, eq=False, repr=False)
class DescentRun(Run):
    """`iterates` (..., steps + 1, features); `x` and `y` are the data in the module's dtype.

    `certificate`, the promise for every input of the domain, is about the exact algorithm on these data, with the
    plan's step size. `entered_band` says that a residual came so close to a jump of ℓ′ that the promise does not cover
    this run: then its bound is infinite, and `assumes` says why. `given` is what x came as, which `weights` come back
    as.
    """

    plan: Plan
    x: Float[Tensor, "*batch samples features"]
    y: Float[Tensor, "*batch samples"]
    iterates: Float[Tensor, "*batch iterates features"]
    certificate: Certificate
    given: ArrayFormat = field(default=ArrayFormat(), kw_only=True)
    entered_band: bool = field(init=False)

    def __post_init__(self) -> None:
        require_answer(self.iterates)
        object.__setattr__(self, "entered_band", bool(self.certificate.bands) and self._leaves_promise())
        if self.entered_band:
            object.__setattr__(self, "certificate", self.certificate.void_in_band())

    @property
    def weights(self) -> Any:
        """After the last step, (..., features): a tensor, an array, a list, or a Series named by x's columns."""
        return self.given.back(self.last, "columns")

    @property
    def last(self) -> Float[Tensor, "*batch features"]:
        return self.iterates[..., -1, :]

    @property
    def name(self) -> str:
        return self.plan.name

    def _make_audit(self) -> Certificate:
        """As `audited` claims; no band is left out of it."""
        x, y, iterates = self.x.cpu(), self.y.cpu(), self.iterates.cpu()
        with one_thread(x.device):
            return audited(self.plan, x, y, iterates)

    def _leaves_promise(self) -> bool:
        x, y, _ = self.plan.loss.template_data(self.x.double(), self.y.double())
        starts = self.plan.descent.starts(self.iterates[..., :-1, :].double())
        return self.certificate.excludes(starts, x, y)

    @accepts_arraylike("x_new", like="x_new", side="rows")
    def predict(self, x_new: Real[Tensor, "*batch queries features"]) -> Float[Tensor, "*problems queries"]:
        """The mean response to w·x (for Poisson exp(w·x)) for new rows; of several targets a row each."""
        require_finite(x_new=x_new)
        last = self.last.to(x_new.device)
        return self.plan.loss.mean_response((x_new.to(last.dtype) @ last.unsqueeze(-1)).squeeze(-1))
