"""What is minimised: a scalar function of the residual, of the margin, or of the log rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.data import require_counts, require_data, require_labels
from emulon.certify.spectrum import largest_eigenvalue
from emulon.errors import BadExpression, EmulonError
from emulon.expression import Function, parse

Form = Literal["residual", "margin", "rate"]


@dataclass(frozen=True)
class Loss:
    """A loss ℓ(t), averaged over samples.

    `form` says what t is:
      residual  t = w·x − y
      margin    t = w·(label·x), labels ±1
      rate      t = w·x, and the mean of y·(w·x) is subtracted (a canonical log-likelihood; Poisson)
    `derivative` is ℓ′ as an expression in t that `emulon.expression.parse` reads; `value` and `slope` are ℓ and ℓ′ as
    exact torch functions. `curvature` is sup |ℓ″|, infinite where ℓ′ jumps or has no bound; `stand_in(x, y, steps)`
    then takes the place of curvature·λmax(XᵀX/n), and without one the user has to give the step size.
    """

    name: str
    derivative: str
    curvature: float
    form: Form
    value: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    slope: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    stand_in: Callable[[Tensor, Tensor, int], Tensor] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.form not in get_args(Form):
            raise EmulonError(f"unknown form {self.form!r} of a loss; choose one of {', '.join(get_args(Form))}")
        if not self.curvature >= 0:
            raise EmulonError(f"curvature is sup |ℓ″| and cannot be {self.curvature}; give a number ≥ 0 or math.inf")

    @classmethod
    def of(cls, expression: str, *, curvature: float = math.inf, form: Form = "residual") -> Loss:
        """A loss from its expression in t, differentiated symbolically.

        Assumes: ℓ is continuous; at a kink ℓ′ takes a value between its limits. A `curvature` given here is taken on
        trust: it cannot be found by sampling, so without it `GradientDescent` asks for a step size.
        """
        loss = parse(expression)
        for point in loss.breaks(-100.0, 100.0):
            if abs(point.left - point.right) > 1e-6 * (1 + abs(point.left) + abs(point.right)):
                raise BadExpression(f"{expression!r} jumps at t = {point.at:.6g}; a loss must be continuous")
        derivative = _without_switches(loss.derivative())
        return cls(expression, derivative, curvature, form, loss, parse(derivative))

    def require_smoothness(self) -> None:
        """Refuse where no default step size can be worked out from the data."""
        if self.stand_in is None and math.isinf(self.curvature):
            raise EmulonError(f"the curvature of the loss {self.name} has no known bound; pass step_size")

    def effective(
        self, x: Float[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> tuple[
        Float[Tensor, "*batch samples features"],
        Float[Tensor, "*batch samples"],
        Float[Tensor, "*batch features"] | None,
    ]:
        """(x_eff, y_eff, linear) with gradient = mean_i ℓ′(w·x_eff_i − y_eff_i)·x_eff_i − linear. Keeps x's dtype."""
        require_data(x, y)
        y = y.to(x.dtype)
        if self.form == "margin":
            require_labels(y)
            return y.unsqueeze(-1) * x, y.new_zeros(y.shape), None
        if self.form == "rate":
            require_counts(y)
            return x, y.new_zeros(y.shape), (y.unsqueeze(-1) * x).mean(dim=-2)
        return x, y, None

    def smoothness(
        self, x: Float[Tensor, "*batch samples features"], y: Float[Tensor, "*batch samples"], steps: int
    ) -> Float[Tensor, "*batch 1"]:
        """The Lipschitz constant of the mean loss's gradient on this data, or what stands in for it."""
        self.require_smoothness()
        return self.curvature * largest_eigenvalue(x) if self.stand_in is None else self.stand_in(x, y, steps)


def _without_switches(function: Function) -> str:
    """The function as text that `parse` reads again: each switch written as the sign that it is."""
    import sympy

    written: dict[sympy.Symbol, sympy.Expr] = {}
    for switch in function.switches:  # a switch depends on earlier ones only
        of = switch.of.xreplace(written)
        tie = sympy.nsimplify(switch.tie)
        written[switch.symbol] = sympy.sign(of) if tie == 0 else 2 * sympy.Heaviside(of, (1 + tie) / 2) - 1
    return str(function.smooth.xreplace(written))
