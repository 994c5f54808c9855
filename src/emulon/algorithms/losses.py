"""The losses that come with emulon, and how a loss meets the data.

A loss is a scalar function; a link says which targets it takes, how (x, y) enter Theorem 3.1's template, which computes
w·x − y and nothing else, what a prediction is, and how targets as they were measured become targets to learn. A new
loss is a registered function here: files and commands then know its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor
from torch.nn.functional import softplus

from emulon.certify.domain import Domain, largest_eigenvalue, require_finite
from emulon.core.errors import BadExpression, BadShape, EmulonError, OutOfDomain
from emulon.core.names import Registry
from emulon.expressions import Function, parse

Kind = Literal["regression", "classification"]
# Data of every algorithm, and what it answers; Float… is what it computes with.
Inputs = Real[Tensor, "*batch samples features"]
Targets = Real[Tensor, "*batch samples"]
FloatInputs = Float[Tensor, "*batch samples features"]
FloatTargets = Float[Tensor, "*batch samples"]
Weights = Float[Tensor, "*batch features"]
Queries = Real[Tensor, "*query"]
FloatQueries = Float[Tensor, "*batch queries features"]
Answers = Float[Tensor, "*answers"]
PerProblem = Float[Tensor, "*batch 1"]
Scores = Float[Tensor, "*shape"]


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

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickled by name where it is registered, as functions made in a function cannot be."""
        return (registered, (self.name,)) if registered(self.name) == self else super().__reduce__()

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

    def template_data(self, x: FloatInputs, y: Targets) -> TemplateData:
        """The data as the template sees them, in x's dtype. Refuses data and targets that are none."""
        require_data(x, y)
        y = y.to(x.dtype)
        self.link.require_targets(y)
        return self.link.template_data(x, y)

    def mean_response(self, score: Scores) -> Scores:
        """The prediction that belongs to w·x."""
        return self.link.mean_response(self.slope, score)

    def smoothness(self, x: FloatInputs, y: FloatTargets, steps: int) -> PerProblem:
        """The Lipschitz constant of the mean loss's gradient on this data, or what stands in for it."""
        self.require_smoothness()
        return self.curvature * largest_eigenvalue(x) if self.stand_in is None else self.stand_in(x, y, steps)


def require_data(x: Inputs, y: Targets) -> None:
    """Refuse data that is empty, not finite, or whose x and y do not belong together."""
    if x.ndim < 2 or x.shape[:-1] != y.shape:
        raise BadShape(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}, wanted (..., samples, features), (..., samples)"
        )
    if 0 in x.shape[-2:]:
        raise BadShape(f"x has shape {tuple(x.shape)}; give at least one sample and one feature")
    require_finite(x=x, y=y)


def in_float64(x: Inputs, y: Targets) -> tuple[FloatInputs, FloatTargets]:
    """Data in float64, refused where they are none."""
    require_data(x, y)
    return x.double(), y.double()


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


def of_counts(x: FloatInputs, y: FloatTargets, steps: int) -> PerProblem:
    """Smoothness of the Poisson objective wherever it is not above its value at zero.

    Claim: with L = 2·max‖x_i‖²·(1 + mean(y log 2y − y)), (proximal) gradient descent from w = 0 with η ≤ 1/(L + l2)
    never increases F(w) = mean(e^{t_i} − y_i t_i) + penalties, t_i = w·x_i, although e^t has no bounded curvature.
    Assumes: y ≥ 0, no momentum.
    Proof. F(0) = 1. Where F ≤ 1: e^t/2 − yt ≥ y − y log 2y for all t, so 1 ≥ mean(e^t)/2 + mean(y − y log 2y), that is
    mean e^t ≤ 2(1 + mean(y log 2y − y)); the Hessian mean(e^t x xᵀ) is at most max‖x‖²·mean e^t ≤ L. The set F ≤ 1 is
    convex. Follow one step as η grows from 0: up to where it would first leave the set, the segment lies inside it, so
    the descent lemma holds and F has not grown; at the border F would be 1 again, so it is never crossed. QED
    """
    mean_rate = 2 * (1 + (torch.xlogy(y, 2 * y) - y).mean(dim=-1, keepdim=True))
    return mean_rate * x.square().sum(dim=-1).amax(dim=-1, keepdim=True)


def of_jump(x: FloatInputs, y: FloatTargets, steps: int, *, height: float) -> PerProblem:
    """The stand-in for a residual loss with |ℓ′| ≤ height whose derivative jumps: η = rms(y)/(height·λmax·√steps).

    Claim: the best of the iterates is within (height·rms(y)/(2√steps))·(1 + λmax‖w*‖²/rms(y)²) of the minimum F(w*).
    Assumes: convex ℓ, no penalties, no momentum.
    Proof. A subgradient is at most G = height·√λmax long, since ‖Xᵀg‖/n ≤ √(nλmax)·√n·height/n. The classical bound is
    (‖w*‖²/(η·steps) + ηG²)/2; put η = R/(G√steps) with R = rms(y)/√λmax. QED
    The iterates do not settle: with a fixed step they end in a cloud around the minimum, of the size of one step. R is
    ‖w*‖ as estimated from the data's scale, so rescaling x or y rescales the weights and nothing else.
    """
    scale = y.square().mean(dim=-1, keepdim=True).sqrt()
    return height * math.sqrt(max(steps, 1)) * largest_eigenvalue(x) / scale


def of_margin_jump(x: FloatInputs, y: FloatTargets, steps: int) -> PerProblem:
    """The stand-in for the perceptron: η = 1/√λmax, so that one step is at most 1 long.

    Claim: on data separable with margin γ (some unit u has label·x·u ≥ γ for all samples) the weights stop changing
    after at most n·max‖x‖²/γ² steps, whatever η: from w = 0 it only scales the weights.
    Proof. Let e be the fraction of samples with margin ≤ 0. A step adds ηeγ or more to w·u, and at most η²e²·max‖x‖² to
    ‖w‖² as the samples added have w·x ≤ 0. So (γΣe)² ≤ max‖x‖²·Σe², Σe ≤ max‖x‖²/γ², and e ≥ 1/n until it is 0. QED
    """
    return largest_eigenvalue(x).sqrt()


# By the name of the function that makes one; a parameter is written behind it, as in `huber(1.35)`.
LOSSES: Registry[Callable[..., Loss]] = Registry("loss")


def registered(name: str) -> Loss | None:
    """`squared`, `huber` or `huber(1.35)`; None where no loss has this name."""
    called, _, parameter = name.partition("(")
    if called not in LOSSES:
        return None
    return LOSSES[called](float(parameter.rstrip(")"))) if parameter else LOSSES[called]()


def as_loss(loss: Loss | str) -> Loss:
    """The loss that is meant.

    Args:
        loss: A `Loss`, the name of a registered one as `huber(1.35)`, or an expression in the residual t.
    Returns:
        The loss.
    Raises:
        BadExpression: It is no name, and cannot be read as an expression.

    Example:
        >>> as_loss("huber(1.35)").derivative
        'Max(-1.35, Min(1.35, t))'
    """
    return loss if isinstance(loss, Loss) else registered(loss) or Loss.of(loss)


@LOSSES.register
def squared() -> Loss:
    """t²/2 of the residual."""
    return Loss("squared", "t", 1.0, RESIDUAL, lambda t: t.square() / 2, torch.positive)


@LOSSES.register
def huber(delta: float = 1.35) -> Loss:
    """t²/2 up to |t| = delta, linear beyond: delta·(|t| − delta/2).

    Args:
        delta: Where it becomes linear.
    """
    if not 0 < delta < math.inf:
        raise EmulonError(f"huber's delta is where the loss turns linear; give a positive number, not {delta}")
    delta = float(delta)

    def value(t: Tensor) -> Tensor:
        return torch.where(t.abs() <= delta, t.square() / 2, delta * (t.abs() - delta / 2))

    derivative = f"Max(-{delta!r}, Min({delta!r}, t))"
    return Loss(f"huber({delta!r})", derivative, 1.0, RESIDUAL, value, lambda t: t.clamp(-delta, delta))


@LOSSES.register
def log_cosh() -> Loss:
    """log cosh t of the residual: t²/2 near zero, |t| − log 2 far out, smooth everywhere."""

    def value(t: Tensor) -> Tensor:
        # cosh overflows at 710; log cosh t = |t| + log(1 + e^{−2|t|}) − log 2 does not.
        return t.abs() + softplus(-2 * t.abs()) - math.log(2)

    return Loss("log_cosh", "tanh(t)", 1.0, RESIDUAL, value, torch.tanh)


@LOSSES.register
def tukey(c: float = 4.685) -> Loss:
    """Tukey's biweight of the residual: t²/2 near zero, constant beyond |t| = c: far outliers count for nothing.

    Not convex: ℓ″ falls to −4/5, and errors of single steps can grow by up to 9/5 from each to the next.

    Args:
        c: Where it becomes constant.
    """
    if not 0 < c < math.inf:
        raise EmulonError(f"tukey's c is where the loss turns constant; give a positive number, not {c}")
    c = float(c)

    def inside(t: Tensor) -> Tensor:
        return (1 - (t / c).square()).clamp(min=0)

    return Loss(
        f"tukey({c!r})",
        f"t*Max(0, 1 - (t/{c!r})**2)**2",
        1.0,
        RESIDUAL,
        lambda t: c**2 / 6 * (1 - inside(t) ** 3),
        lambda t: t * inside(t).square(),
    )


@LOSSES.register
def quantile(tau: float = 0.5) -> Loss:
    """The pinball loss: (1 − tau)·t for residuals t = w·x − y above zero, −tau·t below; ℓ′(0) = 1/2 − tau.

    Args:
        tau: The quantile, in (0, 1).
    """
    if not 0 < tau < 1:
        raise EmulonError(f"quantile's tau is a fraction of the targets; give a number inside (0, 1), not {tau}")
    tau = float(tau)
    return Loss(
        f"quantile({tau!r})",
        f"sign(t)/2 + 1/2 - {tau!r}",
        math.inf,
        RESIDUAL,
        lambda t: t.abs() / 2 + (0.5 - tau) * t,
        lambda t: t.sign() / 2 + (0.5 - tau),
        stand_in=partial(of_jump, height=max(tau, 1 - tau)),
    )


@LOSSES.register
def logistic() -> Loss:
    """log(1 + e^{−t}) of the margin."""
    return Loss("logistic", "-1/(1 + exp(t))", 0.25, MARGIN, lambda t: softplus(-t), lambda t: -torch.sigmoid(-t))


@LOSSES.register
def squared_hinge() -> Loss:
    """max(0, 1 − t)² of the margin; no factor 1/2, as in scikit-learn's LinearSVC."""

    def short(t: Tensor) -> Tensor:
        return (1 - t).clamp(min=0)

    derivative = "-2*Max(0, 1 - t)"
    return Loss("squared_hinge", derivative, 2.0, MARGIN, lambda t: short(t).square(), lambda t: -2 * short(t))


@LOSSES.register
def perceptron() -> Loss:
    """max(0, −t) of the margin. Of the subgradients at 0 we take −1, so that w = 0, where every margin is 0, learns."""
    return Loss(
        "perceptron",
        "Piecewise((-1, t <= 0), (0, True))",
        math.inf,
        MARGIN,
        lambda t: (-t).clamp(min=0),
        lambda t: -(t <= 0).to(t.dtype),
        stand_in=of_margin_jump,
    )


@LOSSES.register
def poisson() -> Loss:
    """e^t of the log rate t = w·x; with the subtracted mean of y·t this is the Poisson log-likelihood, negated."""
    return Loss("poisson", "exp(t)", math.inf, RATE, torch.exp, torch.exp, stand_in=of_counts)
