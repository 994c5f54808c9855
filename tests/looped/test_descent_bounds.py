"""The bounds of looped descent, term by term: where one rules, it is as large as it says, and it is not left out."""

import math
from fractions import Fraction
from math import factorial

import pytest
import torch
from exact_solvers import U, gamma

from emulon.certify import Domain, Spectrum
from emulon.core.errors import OutOfDomain
from emulon.looped import LoopedChainOfThought, LoopedGradientDescent, RepresentationNetwork
from emulon.looped.gradient_descent import DescentLoop, descent_error, gain, largest_prediction
from emulon.looped.heads import Stencil, truncation
from emulon.looped.transformer import share

f64 = torch.float64
DOMAIN = Domain(4, 2, 2.0, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))


def carried(domain: Domain, step_size: float, steps: int) -> float:
    """max |1 − (1 − ησ²)^M|/σ over the spectrum, by looking."""
    squares = torch.linspace(max(domain.smallest, 1e-9), domain.largest, 200_001, dtype=f64)
    return ((1 - (1 - step_size * squares) ** steps).abs() / squares.sqrt()).max().item()


@pytest.mark.parametrize(
    ("step_size", "steps", "smallest", "wanted"),
    [
        (0.25, 1, 0.25, 0.25 * math.sqrt(2.0)),  # one step: η·σ, at the largest
        (0.5, 400, 0.25, 1 / math.sqrt(0.25)),  # many: 1/σ, at the smallest
        (0.5, 9, 0.0, math.sqrt(0.5 * 9)),  # between, where nothing is known of the smallest
        (0.75, 9, 0.0, math.sqrt(2 * 0.75 * 9)),  # steps beyond 1/L overshoot up to twice
        (0.75, 4000, 0.25, 2 / math.sqrt(0.25)),
    ],
)
def test_a_residual_is_carried_no_further_than_the_gain(step_size, steps, smallest, wanted) -> None:
    domain = Domain(4, 2, 2.0, 3.0, 0.0, spectrum=Spectrum(2.0, smallest, 1.5))
    assert gain(domain, step_size, steps) == pytest.approx(wanted, rel=1e-14, abs=0.0)
    true = carried(domain, step_size, steps)
    assert true <= wanted and (steps not in (1, 400) or true >= 0.999 * wanted)
    assert gain(domain, step_size, 0) == 0.0
    assert largest_prediction(domain, step_size, steps) == pytest.approx(1.5 * wanted * 3.0, rel=1e-14, abs=0.0)


@pytest.mark.parametrize("dtype, u", [(f64, U), (torch.float32, 2.0**-24)])
@pytest.mark.parametrize("relative, label_error", [(1e-3, 0.0), (0.0, 0.0), (0.0, 1e-2), (1e-3, 1e-2)])
def test_errors_of_steps_and_labels_add_up_as_the_proof_says(relative: float, label_error: float, dtype, u) -> None:
    step, root, y, norm = 0.5, 2.0, 3.0, 1.5
    one, two, three = (norm * gain(DOMAIN, step, steps) for steps in (1, 2, 3))
    size = root * y + root * label_error
    first = step * norm**2 * size / root * relative + 4 * u * (size + one * y)
    after_one = (one * label_error + first) * (1 + 1e-6)
    assert descent_error(DOMAIN, step, relative, 1, dtype, label_error) == pytest.approx(after_one, rel=1e-13, abs=0.0)
    drift = root * (label_error + first)
    size = root * y + drift
    # In float32 what is rounded of what was off before is seen, too.
    magnitude = size + two * y + (1 + one) * drift / root
    second = step * norm**2 * size / root * relative + 4 * u * magnitude
    after_two = (two * label_error + first * (1 + one) + second) * (1 + 1e-6)
    assert descent_error(DOMAIN, step, relative, 2, dtype, label_error) == pytest.approx(after_two, rel=1e-13, abs=0.0)
    drift += root * second
    size = root * y + drift
    third = step * norm**2 * size / root * relative + 4 * u * (size + three * y + (1 + two) * drift / root)
    total = (three * label_error + first * (1 + two) + second * (1 + one) + third) * (1 + 1e-6)
    assert descent_error(DOMAIN, step, relative, 3, dtype, label_error) == pytest.approx(total, rel=1e-13, abs=0.0)


def test_features_and_labels_that_are_off_have_terms_of_their_own() -> None:
    exact = DescentLoop(DOMAIN, 0.5, 6, f64)
    blurred = DescentLoop(DOMAIN, 0.5, 6, f64, feature_error=0.15, label_error=0.01)
    off = 0.15 / 1.5
    stencil = {name: part * (1 + off) ** 2 for name, part in blurred.stencil(2).terms.items()}
    parts = stencil | {"representation": off * (2 + off)}
    total = descent_error(DOMAIN, 0.5, sum(parts.values()), 3, f64)
    terms = blurred.certificate(2, 3).terms
    for name, part in parts.items():
        assert terms[name] == pytest.approx(total * part / sum(parts.values()), rel=1e-9, abs=0.0)
    with_labels = descent_error(DOMAIN, 0.5, sum(parts.values()), 3, f64, label_error=0.01)
    assert terms["labels"] == pytest.approx(with_labels - total, rel=1e-9, abs=0.0) and terms["labels"] > 0.01
    assert exact.certificate(2, 3).terms["labels"] == exact.certificate(2, 3).terms["representation"] == 0.0
    # ‖x‖ is granted 1e-9 more, twice in a product, and once for what that rounds.
    assert blurred.stencil(2).reach == pytest.approx(1.65**2 * (1 + 3e-9), rel=1e-14, abs=0.0)
    assert (blurred.stencil(2).width, blurred.stencil(2).summed, blurred.stencil(2).tokens) == (3, 4, 6)
    assert exact.largest_prediction(3) == largest_prediction(DOMAIN, 0.5, 3) + exact.bound(1, 3)


@pytest.mark.parametrize("weights", [(1.0,), (4 / 3, -1 / 3), (1.5, -0.6, 0.1)], ids=["one", "two", "three"])
@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_a_stencils_terms_are_what_its_docstring_says(weights: tuple[float, ...], offset: float) -> None:
    """Few tokens, so that no term drowns the others."""
    pairs, tau = len(weights), 1.5
    made = Stencil(pairs, tau, 3.0, tokens=4, summed=3, width=2, dtype=f64, cauchy=1.5, offset=offset, lift=0.5)
    sink, top = math.ceil(math.log(4) + pairs * tau - math.log(U)), pairs * tau
    assert made.sink == sink
    leak = 4 * math.exp(top - sink)
    amplified = sum(abs(w) * math.cosh(g * tau) / (g * tau) for g, w in enumerate(weights, 1))
    plain = sum(abs(w) * math.exp(g * tau) for g, w in enumerate(weights, 1))
    score = (sink + 3 * 0.5 + top + 4) * U + gamma(4) * offset
    stray = U * math.exp((top - 6.0) * 1.5) if offset else 0.0
    sums = 2 * leak + stray + 3 * U + gamma(5) + gamma(2 * pairs + 4)
    rounding = math.expm1(score + sums) * amplified * (1 + leak) + gamma(5) * 1.5 * plain
    truncated = abs(sum(w * math.sinh(g * tau) / (g * tau) for g, w in enumerate(weights, 1)) - 1)
    wanted = {"truncation": truncated, "leak": leak * amplified, "rounding": rounding}
    assert made.terms == pytest.approx(wanted, rel=1e-9, abs=0.0)
    assert made.error(2.0) == pytest.approx(3.0 * 2.0 * sum(wanted.values()), rel=1e-9, abs=0.0)


@pytest.mark.parametrize("far", [{"offset": 2.0**52}, {"offset": 1.0, "cauchy": 30.0}], ids=["offset", "strays"])
def test_a_stencil_whose_weights_may_be_anything_promises_nothing(far: dict[str, float]) -> None:
    """An offset that leaves no digit of the score, or strays that weigh u·e^{1.5·30} = 4,000 times their share."""
    made = Stencil(1, 7.5, 3.0, tokens=4, summed=3, width=2, dtype=f64, **far)
    assert made.terms["rounding"] == made.relative == math.inf


def test_what_forty_terms_leave_out_of_the_series_is_counted() -> None:
    """At τ = 60 the terms that follow are a 200th of the sum."""
    true = math.sinh(60) / 60 - 1
    assert true <= truncation(1, 60.0) <= 1.001 * true
    assert truncation(1, 100.0) == math.inf
    true = abs(4 / 3 * math.sinh(30) / 30 - math.sinh(60) / 180 - 1)
    assert true <= truncation(2, 30.0) <= 1.01 * true
    # Lifted over its own rounding.
    assert truncation(1, 1.0) == pytest.approx((math.sinh(1.0) - 1) * (1 + 1e-12), rel=2e-13, abs=0.0)


def test_steps_beyond_two_over_l_are_refused() -> None:
    DescentLoop(DOMAIN, 1.0 + 9e-13, 6, f64)  # 2/L as it may be rounded
    for step_size in (1.0 + 1e-9, 0.0, -0.5):
        with pytest.raises(OutOfDomain, match="step size"):
            DescentLoop(DOMAIN, step_size, 6, f64)


@pytest.mark.parametrize(("weights", "tau"), [((4 / 3, -1 / 3), 35.0), ((1.5, -0.6, 0.1), 25.0)])
def test_beyond_forty_terms_every_pair_counts_with_its_whole_weight(weights: tuple[float, ...], tau: float) -> None:
    """Σ|w_g|·(mτ)^{2k}/(2k + 1)! from k = m + 40 on, as a geometric series: a few per cent of it all here."""
    pairs, exact = len(weights), [Fraction(w).limit_denominator(1000) for w in weights]

    def moment(k: int) -> Fraction:
        return (
            abs(sum(w * g ** (2 * k) for g, w in enumerate(exact, 1))) * Fraction(tau) ** (2 * k) / factorial(2 * k + 1)
        )

    summed = sum(moment(k) for k in range(pairs, pairs + 40))
    first = pairs + 40
    head = sum(map(abs, exact)) * Fraction(pairs * tau) ** (2 * first) / factorial(2 * first + 1)
    left = head / (1 - Fraction(pairs * tau) ** 2 / ((2 * first + 2) * (2 * first + 3)))
    assert sum(moment(k) for k in range(first, first + 60)) < left and left > summed / 100
    assert truncation(pairs, tau) == pytest.approx(float(summed + left), rel=1e-10, abs=0.0)


@pytest.mark.parametrize("dtype, u", [(f64, U), (torch.float32, 2.0**-24)])
def test_a_representation_rounds_at_every_level_and_passes_on_what_came_in(dtype, u) -> None:
    """‖W‖ is √2 and √5, ‖|W|‖ 2 and √5, biases ½ and 1; eight roundings a level, of two products."""
    weights = [torch.tensor(rows, dtype=f64) for rows in ([[1.0, 1.0], [1.0, -1.0]], [[1.0, 2.0]])]
    biases = [torch.tensor(row, dtype=f64) for row in ([0.5, 0.0], [-1.0])]
    phi, grown = RepresentationNetwork(weights, biases, slope=0.1, bound=2.0), 8 * u / (1 - 8 * u)
    assert phi.reach() == [2.0, 4.5, 4.5 + 2 * 4.0 + 1.0]
    size = 2 * math.sqrt(2)
    first = grown * (2 * size + 0.5)
    second = math.sqrt(2) * size + 0.5
    error = math.sqrt(5) * first + grown * (math.sqrt(5) * (second + first) + 1.0)
    assert phi.error(dtype) == pytest.approx(error * (1 + 1e-9), rel=1e-13, abs=0.0)


def test_what_else_a_looped_transformer_rounds_is_in_its_promise() -> None:
    """A chain's labels are divided by the slope, 4u of them, and its answer is activated, 2u of the largest."""
    made = LoopedChainOfThought(DOMAIN, 1e-3, depth=2, step_size=0.25, horizon=3)
    assert made.descent.label_error == 4 * U * 3.0 and made.descent.tokens == 5 * 3 + 1
    terms = made.promise_after(2).terms
    assert terms["activation"] == 2 * U * made.descent.largest_prediction(3)
    assert {name: terms[name] for name in terms if name != "activation"} == made.descent.certificate(
        made.pairs, 2
    ).terms
    assert LoopedGradientDescent(DOMAIN, 1e-3, horizon=3).descent.tokens == 10
    assert share(6.0, {"a": 1.0, "b": 2.0, "c": 0.0}) == {"a": 2.0, "b": 4.0, "c": 0.0}
