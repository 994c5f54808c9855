"""What is minimised: a scalar function of the residual, of the margin, or of the log rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from jaxtyping import Float, Real
from torch import Tensor

from emulon.algorithms.algorithm import require_data
from emulon.algorithms.link import LINKS, RESIDUAL, Link, TemplateData
from emulon.certify.spectrum import largest_eigenvalue
from emulon.core.errors import BadExpression, EmulonError
from emulon.expressions import Function, parse


@dataclass(frozen=True)
class Loss:
    """A loss ℓ(t), averaged over samples.

    Args:
        name: Its name in files and commands.
        derivative: ℓ′ as an expression in t that `emulon.expressions.parse` reads.
        curvature: sup |ℓ″|; infinite where ℓ′ jumps or has no bound.
        link: What t is made of: w·x − y, w·(label·x), or w·x (see `Link`).
        value: ℓ as an exact torch function.
        slope: ℓ′ as an exact torch function.
        stand_in: `stand_in(x, y, steps)` in place of curvature·λmax(XᵀX/n) where the curvature is infinite; without it
            the user has to give the step size.
    """

    name: str
    derivative: str
    curvature: float
    link: Link
    value: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    slope: Callable[[Tensor], Tensor] = field(repr=False, compare=False)
    stand_in: Callable[[Tensor, Tensor, int], Tensor] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.curvature >= 0:
            raise EmulonError(f"curvature is sup |ℓ″| and cannot be {self.curvature}; give a number ≥ 0 or math.inf")

    @classmethod
    def of(cls, expression: str, *, curvature: float = math.inf, link: Link | str = RESIDUAL) -> Loss:
        """A loss from its expression in t, differentiated symbolically; a link may be given by its name.

        Assumes: ℓ is continuous; at a kink ℓ′ takes a value between its limits. A `curvature` given here chooses the
        step size, and without it `GradientDescent` asks for one; a certificate relies on it only where it can be
        proved.
        """
        loss = parse(expression)
        for point in loss.breaks(-100.0, 100.0):
            if abs(point.left - point.right) > 1e-6 * (1 + abs(point.left) + abs(point.right)):
                raise BadExpression(f"{expression!r} jumps at t = {point.at:.6g}; a loss must be continuous")
        derivative = _without_switches(loss.derivative())
        link = LINKS.named(link) if isinstance(link, str) else link
        return cls(expression, derivative, curvature, link, loss, parse(derivative))

    def require_smoothness(self) -> None:
        """Refuse where no default step size can be worked out from the data."""
        if self.stand_in is None and math.isinf(self.curvature):
            raise EmulonError(f"the curvature of the loss {self.name} has no known bound; pass step_size")

    def template_data(
        self, x: Float[Tensor, "*batch samples features"], y: Real[Tensor, "*batch samples"]
    ) -> TemplateData:
        """The data as the template sees them, in x's dtype. Refuses data and targets that are none."""
        require_data(x, y)
        y = y.to(x.dtype)
        self.link.require_targets(y)
        return self.link.template_data(x, y)

    def mean_response(self, score: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The prediction that belongs to w·x."""
        return self.link.mean_response(self.slope, score)

    def smoothness(
        self, x: Float[Tensor, "*batch samples features"], y: Float[Tensor, "*batch samples"], steps: int
    ) -> Float[Tensor, "*batch 1"]:
        """The Lipschitz constant of the mean loss's gradient on this data, or what stands in for it."""
        self.require_smoothness()
        return self.curvature * largest_eigenvalue(x) if self.stand_in is None else self.stand_in(x, y, steps)


def _without_switches(function: Function) -> str:
    """The function as text that `parse` reads again: each switch written as the sign that it is.

    What is true only where a part of it exists stays so: nothing times that part is added.
    """
    import sympy

    written: dict[sympy.Symbol, sympy.Expr] = {}
    for switch in function.switches:  # a switch depends on earlier ones only
        of = switch.of.xreplace(written)
        tie = sympy.nsimplify(switch.tie)
        written[switch.symbol] = sympy.sign(of) if tie == 0 else 2 * sympy.Heaviside(of, (1 + tie) / 2) - 1
    parts = [(condition.of.xreplace(written), condition.signs) for condition in function.conditions]
    exists = [f"0/({of})" if -1.0 in signs else f"0*{'sqrt' if 0.0 in signs else 'log'}({of})" for of, signs in parts]
    return " + ".join([str(function.smooth.xreplace(written)), *exists])
