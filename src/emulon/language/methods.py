"""Methods that a prompt can state: emulon's gradient descents by name, and some with another proximal map or loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from emulon.algorithms import ALGORITHMS, Algorithm, GradientDescent, Loss, NamedAlgorithm, logistic, squared
from emulon.algorithms.losses import MARGIN, RESIDUAL
from emulon.core.errors import EmulonError, unknown


@dataclass(frozen=True)
class Method:
    """Gradient descent with a proximal map of its own.

    Attributes:
        descent: Loss, steps, step size, ridge (`l2`), momentum, and `l1`.
        proximal: The map of each weight after the gradient step, an expression in t in which `{rate}` is the step size
            and `{threshold}` the step size times `l1`; None for the soft threshold of `l1`.

    Example:
        >>> Method(GradientDescent(squared(), steps=30), "Max(t, 0)")
    """

    descent: GradientDescent
    proximal: str | None = None


METHODS: dict[str, Callable[..., Method]] = {}


def register(make: Callable[..., Method]) -> Callable[..., Method]:
    """Known by the name of the function that makes it."""
    METHODS[make.__name__] = make
    return make


def as_method(algorithm: Algorithm | Method) -> Method:
    """The method that an algorithm is; EmulonError where a prompt cannot state it."""
    if isinstance(algorithm, Method):
        return algorithm
    if not isinstance(algorithm, GradientDescent | NamedAlgorithm):
        raise EmulonError(f"{type(algorithm).__name__} is not gradient descent and cannot be written as a prompt")
    descent = algorithm.descent
    for part, name in ((descent.accelerated, "acceleration"), (descent.batch, "mini-batches")):
        if part:
            raise EmulonError(f"{type(algorithm).__name__} takes {name}, which a prompt cannot state")
    if descent.loss.link not in (RESIDUAL, MARGIN):
        raise EmulonError(f"{type(algorithm).__name__} learns a {descent.loss.link.name}, which a prompt cannot state")
    return Method(descent)


def known_methods() -> dict[str, Callable[..., Algorithm | Method]]:
    """Everything that can be asked for by name, with its settings as keywords."""
    found: dict[str, Callable[..., Algorithm | Method]] = {}
    for name, algorithm in ALGORITHMS.items():
        if issubclass(algorithm, NamedAlgorithm):
            try:
                as_method(algorithm())
            except EmulonError:
                continue
            found[name] = algorithm
    return found | METHODS


def method_named(name: str) -> Callable[..., Algorithm | Method]:
    """The method of this name, or of this name and `_regression`; EmulonError where there is none."""
    known, plain = known_methods(), name.lower().replace("-", "_")
    for called in (plain, f"{plain}_regression"):
        if called in known:
            return known[called]
    raise EmulonError(unknown("method", name, known))


@register
def nonnegative_least_squares(penalty: float = 0.0, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises ‖Xw − y‖²/(2n) + (penalty/2)·‖w‖² over w ≥ 0. scikit-learn: Ridge(alpha=n·penalty, positive=True)."""
    return Method(GradientDescent(squared(), steps, step_size, l2=penalty), "Max(t, 0)")


@register
def nonnegative_lasso(penalty: float = 0.1, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises ‖Xw − y‖²/(2n) + penalty·‖w‖₁ over w ≥ 0. scikit-learn: Lasso(alpha=penalty, positive=True)."""
    return Method(GradientDescent(squared(), steps, step_size, l1=penalty), "Max(t - {threshold}, 0)")


@register
def box_least_squares(bound: float = 0.5, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises ‖Xw − y‖²/(2n) over |w_j| ≤ bound. scipy: lsq_linear(X, y, (-bound, bound))."""
    return Method(GradientDescent(squared(), steps, step_size), f"Max({-bound!r}, Min({bound!r}, t))")


@register
def hard_threshold(threshold: float = 0.3, steps: int = 100, step_size: float | None = None) -> Method:
    """Iterative hard thresholding: after each step of least squares, weights up to the threshold become zero."""
    return Method(GradientDescent(squared(), steps, step_size), f"Piecewise((t, Abs(t) > {threshold!r}), (0, True))")


@register
def firm_threshold(
    penalty: float = 0.1, gamma: float = 3.0, steps: int = 100, step_size: float | None = None
) -> Method:
    """Least squares with the minimax concave penalty (MCP): large weights are not shrunk at all."""
    inner = "Min((Abs(t) - {threshold})/(1 - {rate}/" + repr(gamma) + "), Abs(t))"
    return Method(GradientDescent(squared(), steps, step_size, l1=penalty), f"sign(t)*Max(0, {inner})")


@register
def logistic_lasso(penalty: float = 0.02, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises (1/n) Σ log(1 + exp(−y_i·w·x_i)) + penalty·‖w‖₁. scikit-learn's has C = 1/(n·penalty)."""
    return Method(GradientDescent(logistic(), steps, step_size, l1=penalty))


@register
def box_logistic(bound: float = 1.0, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises (1/n) Σ log(1 + exp(−y_i·w·x_i)) over |w_j| ≤ bound."""
    return Method(GradientDescent(logistic(), steps, step_size), f"Max({-bound!r}, Min({bound!r}, t))")


@register
def epsilon_insensitive(epsilon: float = 0.1, penalty: float = 0.0, steps: int = 100, step_size: float = 0.1) -> Method:
    """Subgradient steps on (1/n) Σ max(0, |w·x_i − y_i| − epsilon) + (penalty/2)·‖w‖². scikit-learn's LinearSVR."""
    loss = Loss.of(f"Max(0, Abs(t) - {epsilon!r})")
    return Method(GradientDescent(loss, steps, step_size, l2=penalty))


@register
def hinge(penalty: float = 0.1, steps: int = 100, step_size: float = 0.1) -> Method:
    """Subgradient steps on (1/n) Σ max(0, 1 − y_i·w·x_i) + (penalty/2)·‖w‖². scikit-learn's LinearSVC(loss="hinge")."""
    return Method(GradientDescent(Loss.of("Max(0, 1 - t)", link=MARGIN), steps, step_size, l2=penalty))


@register
def smooth_quantile(
    tau: float = 0.5, bandwidth: float = 0.25, steps: int = 100, step_size: float | None = None
) -> Method:
    """Quantile regression, the pinball loss smoothed over residuals of `bandwidth`: without jumps it settles."""
    if not 0 < tau < 1 or not 0.05 <= bandwidth < math.inf:
        raise EmulonError(f"need tau inside (0, 1) and bandwidth of 0.05 or more, not {tau} and {bandwidth}")
    steep = 1 / bandwidth
    loss = Loss.of(f"{1 - tau!r}*t + log(1 + exp(-{steep!r}*t))/{steep!r}", curvature=steep / 4)
    return Method(GradientDescent(loss, steps, step_size))


@register
def talwar(cutoff: float = 2.0, steps: int = 100, step_size: float | None = None) -> Method:
    """Minimises (1/n) Σ min(r_i², cutoff²)/2: rows whose residual is beyond the cutoff count for nothing."""
    loss = Loss.of(f"Min(t**2, {cutoff**2!r})/2", curvature=1.0)
    return Method(GradientDescent(loss, steps, step_size))


@register
def hampel(a: float = 1.0, b: float = 2.0, c: float = 4.0, steps: int = 100, step_size: float | None = None) -> Method:
    """Hampel's three-part loss: squares up to a, linear up to b, constant from c on."""
    if not 0 < a <= b < c:
        raise EmulonError(f"need 0 < a ≤ b < c, not {a}, {b}, {c}")
    most, fall = a * (b + c - a) / 2, a / (c - b)
    near = f"(t**2/2, Abs(t) < {a!r}), ({a!r}*Abs(t) - {a**2 / 2!r}, Abs(t) < {b!r})"
    far = f"({most!r} - {fall / 2!r}*({c!r} - Abs(t))**2, Abs(t) < {c!r}), ({most!r}, True)"
    loss = Loss.of(f"Piecewise({near}, {far})", curvature=max(1.0, fall))
    return Method(GradientDescent(loss, steps, step_size))
