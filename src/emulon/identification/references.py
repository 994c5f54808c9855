"""The reference algorithms, each as predictions for a whole grid of parameters at once.

What they compute is what `emulon.algorithms` computes, example by example in the tests; here one SVD for each prefix
serves all the methods that filter the spectrum, and no loop runs over datasets. A function decorated with
`@reference` is one; in the order below the first of those that cannot be distinguished is named: the simplest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from emulon.algorithms.closed_form import interpolate, inverse_distance
from emulon.algorithms.gradient_descent import require_queries
from emulon.algorithms.losses import require_data
from emulon.core.arrays import accepts_arraylike
from emulon.core.names import Registry
from emulon.identification.sampling import Answers, Centred, Prefixes
from emulon.tasks import RegressionTask, TaskSet

MOST_STEPS = 1000
MOST_NEIGHBOURS = 24

# One value of each parameter for every setting that is tried.
Integers = Int[Tensor, " settings"]
Continuous = Float[Tensor, " settings"]
Predictions = Float[Tensor, "settings datasets counts"]
Respond = Callable[[Prefixes, Tensor, Tensor], Tensor]
# Fitted values by name.
Parameters = dict[str, int | float]


@dataclass(frozen=True)
class IntegerParameter:
    """A parameter that counts, and the values to begin with."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class ContinuousParameter:
    """A positive parameter, searched on a logarithmic grid between low and high, in units that the data suggest."""

    name: str
    low: float
    high: float
    unit: Callable[[Prefixes], float]
    points: int = 36

    def grid(self, prefixes: Prefixes) -> Float[Tensor, " points"]:
        unit = max(self.unit(prefixes), torch.finfo(torch.float64).tiny)
        low, high = math.log(self.low), math.log(self.high)
        return torch.linspace(low, high, self.points, dtype=torch.float64, device="cpu").exp() * unit


@dataclass(frozen=True)
class Reference:
    """An algorithm with at most one integer and one continuous parameter to be fitted.

    Attributes:
        name: In rankings.
        kind: What it belongs to: limits say how far the kinds are from each other.
        respond: Maps (prefixes, integers, continuous values), one of each a setting, to predictions.
        integer: Its integer parameter, if it has one.
        continuous: Its continuous parameter, if it has one.

    Example:
        >>> list(REFERENCES)[:4]
        ['zero', 'previous target', 'mean target', 'ols']
    """

    name: str
    kind: str
    respond: Respond
    integer: IntegerParameter | None = None
    continuous: ContinuousParameter | None = None

    @property
    def free(self) -> int:
        """How many parameters are fitted: of two that cannot be distinguished the one with fewer is named."""
        return (self.integer is not None) + (self.continuous is not None)

    def predict(self, prefixes: Prefixes, parameters: Parameters) -> Answers:
        """The predictions with these parameters."""
        integer = parameters[self.integer.name] if self.integer else 0
        continuous = parameters[self.continuous.name] if self.continuous else 0.0
        settings = torch.tensor([continuous], dtype=torch.float64, device="cpu")
        return self.respond(prefixes, torch.tensor([integer], device="cpu").long(), settings)[0]

    def fitted(self, parameters: Parameters) -> FittedReference:
        return FittedReference(self, parameters)


@dataclass(frozen=True)
class FittedReference:
    """A reference with its parameters set, as a predictor like any other."""

    reference: Reference
    parameters: Parameters

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        require_data(xs, ys)
        require_queries(xs, x_query)
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2).double()
        targets = torch.nn.functional.pad(ys.double(), (0, 1))
        # Prefixes have one leading dimension; whoever asks may have any number.
        flat = points.reshape(-1, *points.shape[-2:]), targets.reshape(-1, targets.shape[-1])
        answers = self.reference.predict(Prefixes(*flat, (xs.shape[-2],)), self.parameters)
        return answers.reshape(xs.shape[:-2])


REFERENCES: Registry[Reference] = Registry("reference")


def reference(
    name: str, kind: str, *, integer: IntegerParameter | None = None, continuous: ContinuousParameter | None = None
) -> Callable[[Respond], Reference]:
    """Decorator that makes a reference of a function, and registers it.

    Args:
        name: In rankings.
        kind: What it belongs to.
        integer: Its integer parameter, if it has one.
        continuous: Its continuous parameter, if it has one.
    """

    def register(respond: Respond) -> Reference:
        return REFERENCES.register(Reference(name, kind, respond, integer, continuous), name)

    return register


def reference_named(name: str) -> Reference:
    """A registered reference.

    Args:
        name: A key of `REFERENCES`.
    Raises:
        EmulonError: There is none of this name.
    """
    return REFERENCES.named(name)


def _spread_out(most: int) -> tuple[int, ...]:
    """1, 2, 3, … and, from 24 on, steps of about a seventh."""
    values = list(range(1, 25))
    while values[-1] * 1.15 < most:
        values.append(round(values[-1] * 1.15))
    return tuple(values)


def _mean_square(prefixes: Prefixes) -> float:
    return prefixes.scale


def _inverse_mean_square(prefixes: Prefixes) -> float:
    return 1 / prefixes.scale


def _inverse_of_the_largest(prefixes: Prefixes) -> float:
    return float(1 / prefixes.spectrum.squares.max().item() ** 2)


def _largest_penalty(prefixes: Prefixes) -> float:
    """Above it every lasso weight is zero."""
    return (prefixes.moments.abs() / prefixes.sizes[:, None]).max().item()


# The penalty of ridge regression in its three forms, and of the lasso.
_RIDGE = ContinuousParameter("ridge", 1e-12, 1e6, _mean_square, 64)
_LASSO = ContinuousParameter("penalty", 1e-6, 1.0, _largest_penalty, 48)
_STEPS = IntegerParameter("steps", _spread_out(MOST_STEPS))
_NEWTON_STEPS = IntegerParameter("steps", tuple(range(25)))
_NEIGHBOURS = IntegerParameter("neighbours", tuple(range(1, MOST_NEIGHBOURS + 1)))


@reference("zero", "zero")
def zero(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    return torch.zeros(len(integers), prefixes.datasets, len(prefixes.counts), dtype=torch.float64, device="cpu")


@reference("previous target", "previous target")
def previous_target(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    last = prefixes.ys[:, [n - 1 for n in prefixes.counts]]
    return last.expand(len(integers), *last.shape)


@reference("mean target", "neighbours")
def mean_target(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """All neighbours alike; also where ridge with an intercept ends as its penalty grows."""
    means = prefixes.ys.cumsum(dim=1)[:, [n - 1 for n in prefixes.counts]] / prefixes.sizes
    return means.expand(len(integers), *means.shape)


@reference("ols", "least squares")
def least_squares(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    answers = prefixes.spectrum.shares.sum(dim=-1)
    return answers.expand(len(integers), *answers.shape)


@reference("ols with intercept", "least squares")
def least_squares_with_intercept(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    answers = prefixes.centred.means + prefixes.centred.spectrum.shares.sum(dim=-1)
    return answers.expand(len(integers), *answers.shape)


@reference("ridge", "least squares", continuous=_RIDGE)
def ridge(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """λ on the sum of squares: (XᵀX + λI)⁻¹Xᵀy."""
    squares = prefixes.spectrum.squares
    return _filtered(prefixes, squares / (squares + _column(continuous)))


@reference("ridge with intercept", "least squares", continuous=_RIDGE)
def ridge_with_intercept(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """λ on the sum of squares and none on the intercept: scikit-learn's Ridge(alpha=λ)."""
    squares = prefixes.centred.spectrum.squares
    return prefixes.centred.means + _filtered(prefixes.centred, squares / (squares + _column(continuous)))


@reference("ridge on the mean", "least squares", continuous=replace(_RIDGE, name="penalty"))
def ridge_on_the_mean(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """λ on the mean of squares: (XᵀX/n + λI)⁻¹Xᵀy/n."""
    means = _means(prefixes)
    return _filtered(prefixes, means / (means + _column(continuous)))


@reference("lasso", "least squares", continuous=_LASSO)
def lasso(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """‖Xw − y‖²/2n + λ‖w‖₁: its predictions are piecewise linear in λ."""
    return _on_path(*prefixes.lasso_path, continuous)


@reference("lasso with intercept", "least squares", continuous=_LASSO)
def lasso_with_intercept(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """The same with an intercept that is not penalised: scikit-learn's Lasso(alpha=λ)."""
    return prefixes.centred.means + _on_path(*prefixes.centred.lasso_path, continuous)


@reference("gradient descent, safe steps", "least squares", integer=_STEPS)
def descent_with_safe_steps(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k steps of size 1/L, L the largest eigenvalue on each dataset: what `LinearRegression` does by default."""
    squares = prefixes.spectrum.squares
    return _filtered(prefixes, 1 - (1 - squares / _largest(squares)).pow(_column(integers)))


@reference("newton", "least squares", integer=_NEWTON_STEPS)
def newton(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k Newton–Schulz steps from M₀ = S/‖S‖², as `NewtonLeastSquares`."""
    squares = prefixes.spectrum.squares
    return _newton(prefixes, (squares / _largest(squares)).square().expand(len(integers), *squares.shape), integers)


@reference("sgd", "sgd", continuous=ContinuousParameter("step_size", 1e-5, 4.0, _inverse_mean_square, 48))
def sgd(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """One pass over the examples; the weights on the way serve the prefixes."""
    weights = torch.zeros(len(continuous), prefixes.datasets, prefixes.features, dtype=torch.float64, device="cpu")
    wanted, out = set(prefixes.counts), []
    for n in range(1, prefixes.counts[-1] + 1):
        x, y = prefixes.xs[:, n - 1], prefixes.ys[:, n - 1]
        residual = (weights * x).sum(dim=-1) - y
        weights = weights - (continuous[:, None] * residual).unsqueeze(-1) * x
        if n in wanted:
            out.append((weights * prefixes.xs[:, n]).sum(dim=-1))
    return torch.stack(out, dim=-1)


@reference("knn", "neighbours", integer=_NEIGHBOURS)
def uniform_neighbours(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    distance, targets = prefixes.neighbours
    return _averages(torch.isfinite(distance).double(), targets, integers)


@reference("weighted knn", "neighbours", integer=_NEIGHBOURS)
def weighted_neighbours(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    distance, targets = prefixes.neighbours
    return _averages(inverse_distance(distance), targets, integers)


@reference("kernel average", "neighbours", continuous=ContinuousParameter("bandwidth", 1e-2, 1e2, _mean_square, 48))
def kernel_average(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """Targets weighted by exp(−‖x − x_i‖²/(2·bandwidth)): what one head of softmax attention does of itself."""
    distance, targets = prefixes.neighbours
    weights = (-distance.square() / (2 * _column(continuous))).softmax(dim=-1)
    return (weights * targets).sum(dim=-1)


@reference(
    "gradient descent",
    "least squares",
    integer=_STEPS,
    continuous=ContinuousParameter("step_size", 1e-4, 10.0, _inverse_mean_square),
)
def descent_on_the_mean(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k steps of size η on ‖Xw − y‖²/2n."""
    return _filtered(prefixes, 1 - (1 - _column(continuous) * _means(prefixes)).pow(_column(integers)))


@reference(
    "gradient descent on the sum",
    "least squares",
    integer=_STEPS,
    continuous=ContinuousParameter("step_size", 1e-5, 4.0, _inverse_mean_square),
)
def descent_on_the_sum(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k steps of size α on ‖Xw − y‖²/2, as in Akyürek et al. 2022: α does not shrink as examples come."""
    return _filtered(prefixes, 1 - (1 - _column(continuous) * prefixes.spectrum.squares).pow(_column(integers)))


@reference(
    "newton, fixed start",
    "least squares",
    integer=_NEWTON_STEPS,
    continuous=ContinuousParameter("start", 1e-5, 4.0, _inverse_of_the_largest),
)
def newton_with_a_fixed_start(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k Newton–Schulz steps from M₀ = αS with one α for all datasets, as in Gao et al. 2024, Lemma A.4."""
    return _newton(prefixes, _column(continuous) * prefixes.spectrum.squares.square(), integers)


@reference(
    "kernel ridge",
    "least squares",
    integer=IntegerParameter("width", tuple(range(-3, 5))),
    continuous=ContinuousParameter("ridge", 1e-4, 1e2, lambda prefixes: 1.0),
)
def kernel_ridge(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
    """k(x_query)ᵀ(K + λI)⁻¹y, k(x, x′) = exp(−‖x − x′‖²/(features·2^width)): ridge in the limit of wide kernels.

    λ and width have no unit: a kernel is 1 where points meet. Width 0 is scikit-learn's KernelRidge(λ, kernel="rbf");
    1 is the bandwidth at which a median pair of standard normal inputs has exp(−1).
    """
    answers = torch.empty(len(integers), prefixes.datasets, len(prefixes.counts), dtype=torch.float64, device="cpu")
    for width in integers.unique().tolist():
        spectrum, those = prefixes.kernel_spectrum(width), integers == width
        filtered = 1 / (spectrum.values + _column(continuous[those]))
        answers[those] = torch.einsum("gbcp,bcp->gbc", filtered, spectrum.products)
    return answers


def _averages(weights: Tensor, targets: Tensor, integers: Tensor) -> Tensor:
    """Averages over the first k examples, for all k from one cumulative sum."""
    places = integers.clamp(max=weights.shape[-1]) - 1
    sums, totals = (weights * targets).cumsum(dim=-1), weights.cumsum(dim=-1)
    return (sums[..., places] / totals[..., places]).movedim(-1, 0)


def _on_path(knots: Tensor, values: Tensor, penalties: Tensor) -> Tensor:
    wanted = penalties.expand(*knots.shape[:-1], 1, len(penalties))
    return interpolate(knots, values.unsqueeze(-2), wanted).squeeze(-2).movedim(-1, 0)


def _filtered(prefixes: Prefixes | Centred, response: Tensor) -> Tensor:
    return torch.einsum("gbcd,bcd->gbc", response, prefixes.spectrum.shares)


def _newton(prefixes: Prefixes, start: Tensor, steps: Tensor) -> Tensor:
    """Eigenvalues of M_k S obey m ← 2m − m²; each setting stops after its own number of steps."""
    order = steps.argsort()
    response, left = start[order], steps[order]
    done: list[Tensor] = []
    for step in range(int(steps.max()) + 1):
        ready = int((left == step).sum())
        done.append(response[:ready])
        response, left = response[ready:], left[ready:]
        response = response * (2 - response)
    return _filtered(prefixes, torch.cat(done))[order.argsort()]


def _means(prefixes: Prefixes) -> Tensor:
    return prefixes.spectrum.squares / prefixes.sizes[:, None]


def _largest(squares: Tensor) -> Tensor:
    return squares[..., :1].clamp(min=torch.finfo(torch.float64).tiny)


def _column(settings: Tensor) -> Tensor:
    return settings.double()[:, None, None, None]


def references_for(task: RegressionTask) -> Sequence[Reference]:
    """The references that a predictor on this task is compared with by default."""
    return [*REFERENCES.values(), *([task_mixture(task.vectors)] if isinstance(task, TaskSet) else [])]


@accepts_arraylike("vectors", like="vectors")
def task_mixture(vectors: Float[Tensor, "tasks features"]) -> Reference:
    """`TaskMixture` over these vectors, with its noise to be fitted."""
    vectors = vectors.double()

    def respond(prefixes: Prefixes, integers: Integers, continuous: Continuous) -> Predictions:
        squared = (prefixes.xs @ vectors.mT - prefixes.ys.unsqueeze(-1)).square().cumsum(dim=1)
        left = squared[:, [n - 1 for n in prefixes.counts]]
        answers_by_task = prefixes.queries @ vectors.mT
        # Setting by setting: there may be thousands of vectors.
        weights = (torch.softmax(left / (-2 * noise**2), dim=-1) for noise in continuous.tolist())
        return torch.stack([(each * answers_by_task).sum(dim=-1) for each in weights])

    noise = ContinuousParameter("noise", 1e-3, 1e2, _deviation, 48)
    return Reference("task mixture", "task mixture", respond, continuous=noise)


def _deviation(prefixes: Prefixes) -> float:
    return prefixes.ys.square().mean().sqrt().item()
