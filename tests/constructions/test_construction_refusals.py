"""Each refusal is one line of one class and says what to do."""

import re

import pytest
import torch
from construction_cases import DOMAIN, data, f64, gradient_step, hopfield, linear_layer, normal, residual_map

from emulon.algorithms import HeavyBall, LinearRegression, NewtonLeastSquares
from emulon.certify import Domain
from emulon.constructions import (
    DescentInContext,
    GradientStep,
    HeadInEmbedding,
    HeadInTokens,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)
from emulon.core.errors import EmulonError, OutOfDomain, ToleranceTooTight

X, Y, W = data()
ON_SAMPLES = {"residual map": residual_map, "hopfield": hopfield, "step": lambda: gradient_step("log_cosh", 1e-6)}


def refused(error, pattern):
    """One line, of this class."""
    return pytest.raises(error, match=r"(?s)\A[^\n]*" + pattern + r"[^\n]*\Z")


@pytest.mark.parametrize("name", ON_SAMPLES)
def test_data_outside_the_domain(name):
    module = ON_SAMPLES[name]()
    for position, bound in enumerate((DOMAIN.x, DOMAIN.y, DOMAIN.w)):
        parts = [X.clone(), Y.clone(), W.clone()]
        parts[position].view(-1)[0] = 1.001 * bound
        wanted = rf"\|{'xyw'[position]}\| reaches .* but the domain was built for {bound:g}; rescale or build a wider"
        with refused(OutOfDomain, wanted):
            module(*parts)


def test_products_outside_the_bound_or_with_too_much_cancellation():
    x, theta = torch.ones(5, 3, dtype=f64), torch.ones(4, 3, dtype=f64)
    tall = torch.tensor([[12.0, -12.0, 1.0]] * 4, dtype=f64)
    for module, name in ((linear_layer(), "Θ"), (HeadInTokens(5, 3, 4, 6.0, points=9), "W_K")):
        rows = (theta,) if name == "Θ" else (theta, theta, theta)
        with refused(OutOfDomain, rf"\|{name} x\| reaches 9 but the domain was built for 6"):
            module(x, *(3 * row for row in rows))
        with refused(OutOfDomain, rf"\|{name}\|·\|x\| reaches 25 but the domain was built for 24"):
            module(x, tall, *rows[1:])
        with refused(OutOfDomain, "contains NaN or infinity"):
            module(x * float("nan"), *rows)


TOO_TIGHT = {
    "residual map": lambda tolerance: ResidualMap("tanh(5*t)", DOMAIN, tolerance),
    "gradient step": lambda tolerance: GradientStep("log_cosh", DOMAIN, tolerance),
    "heavy state": lambda tolerance: GradientStep(
        "tanh(t/1e6)*t", Domain(4, 1, 1e-3, 1e-3, 1e6), tolerance, step_size=1e-3
    ),
    "gradient descent": lambda tolerance: DescentInContext("logistic", DOMAIN, tolerance, steps=30),
    "residual map in float32": lambda tolerance: ResidualMap("tanh(t)", DOMAIN, tolerance, dtype=torch.float32),
    "head in embedding": lambda tolerance: HeadInEmbedding(5, 3, 4, 6.0, tolerance),
}


@pytest.mark.parametrize("name", TOO_TIGHT)
def test_a_tolerance_below_the_dtypes_floor_is_refused_and_the_one_that_is_named_constructs(name):
    build = TOO_TIGHT[name]
    with refused(ToleranceTooTight, "cannot be promised to 1.0e-17|can promise") as caught:
        build(1e-17)
    figures = [float(figure) for figure in re.findall(r"\d\.\de[-+]\d\d", str(caught.value))]
    named = max(figures)
    module = build(named)
    assert named == pytest.approx(caught.value.smallest, rel=0.11)
    if not name.startswith("head"):
        assert module.certificate.bound <= named


TALL, ONES = normal(10, 2), torch.ones(10, dtype=f64)
NOISE, LONG = normal(10, seed=1), 1.5 * torch.ones(10, 2, dtype=f64)
# |t| + t² has a jump and a curvature: η must respect the second.
BENT = "Abs(t) + t**2"


def descent(loss="squared", x=X, y=Y, w=1.0, **options):
    return lambda: DescentInContext(loss, Domain.of(x, y, w), 1e-2, **options)


# What is built, the data that it refuses, and the line.
ON_DATA = [
    (
        descent(x=TALL, y=NOISE, w=5.0, step_size=3.0, steps=3),
        (TALL, NOISE),
        "step_size 3 is too long for this data: at most 2/L = .*; give a smaller step_size",
    ),
    (
        descent("poisson", LONG, 5 * ONES, step_size=0.2, steps=3),
        (LONG, 5 * ONES),
        "step_size 0.2 is too long for this data",
    ),
    (descent(BENT, TALL, NOISE, 5.0, step_size=2.0, steps=2), (TALL, NOISE), "step_size 2 is too long"),
    (
        descent(x=TALL, y=5 * ONES, w=0.01, step_size=0.1, steps=9),
        (TALL, 5 * ONES),
        r"\|w\| reaches .* build a wider domain \(before step 2\)",
    ),
    (
        descent(strong_convexity=0.5, steps=2),
        (0.1 * X, Y),
        r"λmin\(XᵀX/n\) is .*, below the promised strong_convexity 0.5; lower it",
    ),
]


@pytest.mark.parametrize(("build", "parts", "message"), ON_DATA, ids=[message for *_, message in ON_DATA])
def test_data_on_which_no_bound_over_steps_would_hold(build, parts, message):
    with refused(OutOfDomain, message):
        build()(*parts)


NONSENSE = [
    (lambda: TruncatedLinear(5, 3, 2.0, 1.0, 1e-3), "give lo < hi"),
    (lambda: TruncatedLinear(5, 3, 0.0, 1.0, grid="paper"), "needs either heads=… or a tolerance"),
    (lambda: TruncatedLinear(2, 3, 0.0, 1.0, heads=3, grid="paper"), "tokens − 2 grid points"),
    (lambda: TruncatedLinear(3, 3, 0.0, 1.0, heads=1, grid="paper"), "give more of either"),
    (lambda: HeadInTokens(5, 3, 4, 6.0), "give exactly one of tolerance=… or points=…"),
    (lambda: HeadInTokens(5, 3, 4, 6.0, 1e-3, points=9), "give exactly one"),
    (lambda: HeadInTokens(5, 3, 4, -1.0, 1e-3), "bound positive and finite"),
    (lambda: HeadInEmbedding(5, 3, 4, 6.0, 1e-3, heads=4), "give exactly one"),
    (lambda: HeadInEmbedding(5, 3, 4, 6.0, points=9, grid="paper"), "grid='paper' needs it"),
    (lambda: HeadInEmbedding(5, 3, 4, 6.0, points=9, grid="piecewise"), "use grid='spectral'"),
    (lambda: LinearLayer(0, 3, 4, 6.0, 1e-3), "must be at least 1"),
    (lambda: LinearLayer(5, 3, 4, 6.0), "give either tolerance=… or points=…"),
    (lambda: ResidualMap("tanh(t)", DOMAIN, -1.0), "tolerance must be a positive number"),
    (lambda: ResidualMap("1/t", DOMAIN, 1e-3), "choose an interval without it"),
    (lambda: ResidualMap("tanh(", DOMAIN, 1e-3), ""),
    (lambda: GradientStep("squared", DOMAIN, 1e-3, l1=-1.0), "penalties cannot be negative"),
    (lambda: GradientStep("poisson", DOMAIN, 1e-3), "pass step_size"),
    (descent(steps=-1), "steps must be a whole number, 0 or more"),
    (descent(step_size=3.0, l2=1.0), r"step_size·l2 must be at most 2, got 3 and l2=1"),
    (descent(step_size=-1.0), "step_size must be positive"),
    (descent("1 - exp(-t**2)", step_size=0.01, steps=3), "not convex on residuals up to .*; use GradientStep"),
    (descent("log_cosh", strong_convexity=0.5), "for the squared loss alone; leave it out for log_cosh"),
    (lambda: DescentInContext.of(NewtonLeastSquares(), TALL, ONES, 1e-3), "NewtonLeastSquares is not gradient descent"),
    (lambda: DescentInContext.of(HeavyBall(), TALL, ONES, 1e-3), "not plain gradient descent"),
    (
        lambda: DescentInContext.of(LinearRegression(), normal(3, 10, 2), normal(3, 10), 1e-3),
        "different step sizes, .*; give the algorithm a step_size",
    ),
]


@pytest.mark.parametrize(("build", "message"), NONSENSE, ids=[message or "unparsable" for _, message in NONSENSE])
def test_what_makes_no_sense_is_refused_before_it_is_built(build, message):
    with refused(EmulonError, message):
        build()
