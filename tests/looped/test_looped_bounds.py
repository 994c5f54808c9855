"""The bounds of looped transformers, computed a second time from what their docstrings say, and where promises end."""

import math
from dataclasses import replace
from fractions import Fraction
from math import factorial

import pytest
import torch

from emulon.certify import Domain, Spectrum
from emulon.core.errors import OutOfDomain
from emulon.looped import (
    CausalLoopedGradientDescent,
    LoopedChainOfThought,
    LoopedGradientDescent,
    LoopedNewton,
    RepresentationNetwork,
)
from emulon.looped.causal import causal_error, causal_stencils
from emulon.looped.gradient_descent import DescentLoop, descent_error, gain, largest_prediction
from emulon.looped.heads import Stencil, truncation
from emulon.looped.layer import gate_height
from emulon.looped.newton import newton_errors, newton_stencils, start_scale
from emulon.looped.transformer import share

f64, f32 = torch.float64, torch.float32
U = 2.0**-53
UNITS = [(f64, U), (f32, 2.0**-24)]
DOMAIN = Domain(4, 2, 1.25, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))
SLACK, ROOM = 1e-9, 1 / 64
WEIGHTS = {1: (1.0,), 2: (4 / 3, -1 / 3), 3: (1.5, -0.6, 0.1)}


def about(value, rel=1e-12):
    return pytest.approx(value, rel=rel, abs=0.0)


def gamma(count: int, u: float) -> float:
    return count * u / (1 - count * u)


def head_terms(pairs, tau, tokens, summed, width, cauchy=1.0, offset=0.0, lift=0.0, u=U) -> dict[str, float]:
    weights, top = WEIGHTS[pairs], pairs * tau
    sink = math.ceil(math.log(tokens) + top - math.log(u))
    leak = tokens * math.exp(top - sink)
    amplified = sum(abs(w) * math.cosh(g * tau) / (g * tau) for g, w in enumerate(weights, 1))
    plain = sum(abs(w) * math.exp(g * tau) for g, w in enumerate(weights, 1))
    score = (sink + 3 * lift + top + 4) * u + gamma(width + 2, u) * offset
    stray = u * math.exp((top - 6.0) * cauchy) if offset else 0.0
    sums = 2 * leak + stray + 3 * u + gamma(summed + 2, u) + gamma(2 * pairs + 4, u)
    rounding = math.expm1(score + sums) * amplified * (1 + leak) + gamma(width + 3, u) * cauchy * plain
    return {"truncation": truncation(pairs, tau), "leak": leak * amplified, "rounding": rounding}


def heads(made: Stencil, u: float = U, **wanted) -> float:
    """What heads made for these scores add to a sum of values ≤ 1; only τ is their own."""
    wanted = {"cauchy": 1.0, "offset": 0.0, "lift": 0.0} | wanted
    assert {name: getattr(made, name) for name in wanted} == about(wanted)
    terms = head_terms(made.pairs, made.tau, u=u, **{name: wanted[name] for name in wanted if name != "reach"})
    assert made.terms == about(terms, rel=1e-9) and made.error(2.0) == about(
        2 * wanted["reach"] * sum(made.terms.values())
    )
    return made.reach * made.relative


def coded(reach: float, cauchy: float, u: float = U) -> dict[str, float]:
    """Heads within one token of ten: codes of three digits, lowered by log(10/u) + 6·cauchy, an integer a digit."""
    offset = 2 * math.ceil((math.log(10) - math.log(u) + 6 * cauchy) / 2) * 3
    return {"reach": reach, "cauchy": cauchy, "tokens": 10, "summed": 1, "width": 6, "offset": offset}


# Heads


@pytest.mark.parametrize("pairs", WEIGHTS)
@pytest.mark.parametrize("offset", [0.0, 2.0])
def test_a_stencils_terms_are_what_its_docstring_says(pairs: int, offset: float) -> None:
    """Few tokens, so that no term drowns the others."""
    given = {"tokens": 4, "summed": 3, "width": 2, "cauchy": 1.5, "offset": offset, "lift": 0.5}
    made = Stencil(pairs, 1.5, reach=3.0, dtype=f64, **given)
    heads(made, reach=3.0, **given)
    truncated = sum(w * math.sinh(g * 1.5) / (g * 1.5) for g, w in enumerate(WEIGHTS[pairs], 1)) - 1
    assert made.terms["truncation"] == about(abs(truncated), rel=1e-9)
    assert made.sink == math.ceil(math.log(4) + pairs * 1.5 - math.log(U))


@pytest.mark.parametrize("far", [{"offset": 2.0**52}, {"offset": 1.0, "cauchy": 30.0}], ids=["offset", "strays"])
def test_a_stencil_whose_weights_may_be_anything_promises_nothing(far: dict[str, float]) -> None:
    """An offset that leaves no digit of the score, or strays that weigh u·e^{1.5·30} = 4,000 times their share."""
    made = Stencil(1, 7.5, reach=3.0, tokens=4, summed=3, width=2, dtype=f64, **far)
    assert made.terms["rounding"] == made.relative == math.inf


@pytest.mark.parametrize(("pairs", "tau"), [(1, 1.0), (1, 60.0), (2, 30.0), (2, 35.0), (3, 25.0)])
def test_what_forty_terms_leave_out_of_the_series_is_counted(pairs: int, tau: float) -> None:
    """Σ|w_g|·(mτ)^{2k}/(2k + 1)! from k = m + 40 on, as a geometric series: up to a few per cent of it all here."""
    exact = [Fraction(w).limit_denominator(1000) for w in WEIGHTS[pairs]]

    def moment(k: int) -> Fraction:
        return (
            abs(sum(w * g ** (2 * k) for g, w in enumerate(exact, 1))) * Fraction(tau) ** (2 * k) / factorial(2 * k + 1)
        )

    first = pairs + 40
    head = sum(map(abs, exact)) * Fraction(pairs * tau) ** (2 * first) / factorial(2 * first + 1)
    left = head / (1 - Fraction(pairs * tau) ** 2 / ((2 * first + 2) * (2 * first + 3)))
    assert sum(moment(k) for k in range(first, first + 60)) <= left
    wanted = float(sum(moment(k) for k in range(pairs, first)) + left) * (1 + 1e-12)
    assert truncation(pairs, tau) == about(wanted, rel=2e-13 if tau == 1 else 1e-10)
    assert truncation(1, 100.0) == math.inf


# Gradient descent


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
    """The truth is max |1 − (1 − ησ²)^M|/σ over the spectrum, by looking."""
    domain = Domain(4, 2, 2.0, 3.0, 0.0, spectrum=Spectrum(2.0, smallest, 1.5))
    squares = torch.linspace(max(smallest, 1e-9), 2.0, 200_001, dtype=f64)
    true = ((1 - (1 - step_size * squares) ** steps).abs() / squares.sqrt()).max().item()
    assert true <= wanted and (steps not in (1, 400) or true >= 0.999 * wanted)
    assert gain(domain, step_size, steps) == about(wanted) and gain(domain, step_size, 0) == 0.0
    assert largest_prediction(domain, step_size, steps) == about(1.5 * wanted * 3.0)


def drifted(relative: float, label_error: float, loops: int, u: float, step: float = 0.5) -> float:
    """`descent_error` on DOMAIN: each step's error is carried to the answer by the steps that follow."""
    carry = [1.5 * gain(DOMAIN, step, steps) for steps in range(loops + 1)]
    drift, total, shocks = 2 * label_error, 0.0, []
    for done in range(loops):
        size = 2 * 3.0 + drift
        rounded = 4 * u * (size + carry[done + 1] * 3.0 + total)
        shocks.append(step * 1.5**2 * size / 2 * relative + rounded)
        drift += 2 * shocks[-1]
        total = (1 + carry[done + 1]) * drift / 2
    later = [shock * (1 + carry[loops - 1 - done]) for done, shock in enumerate(shocks)]
    return (carry[loops] * label_error + sum(later)) * (1 + 1e-6)


@pytest.mark.parametrize("dtype, u", UNITS)
@pytest.mark.parametrize("relative, label_error", [(1e-3, 0.0), (0.0, 0.0), (0.0, 1e-2), (1e-3, 1e-2)])
def test_errors_of_steps_and_labels_add_up_as_the_proof_says(relative: float, label_error: float, dtype, u) -> None:
    for loops in range(4):
        wanted = drifted(relative, label_error, loops, u)
        assert descent_error(DOMAIN, 0.5, relative, loops, dtype, label_error) == about(wanted)


def test_features_and_labels_that_are_off_have_terms_of_their_own() -> None:
    exact = DescentLoop(DOMAIN, 0.5, 6, f64)
    blurred = DescentLoop(DOMAIN, 0.5, 6, f64, feature_error=0.15, label_error=0.01)
    off = 0.15 / 1.5
    # ‖x‖ is granted 1e-9 more, twice in a product, and once for what that rounds.
    heads(blurred.stencil(2), reach=1.65**2 * (1 + 3 * SLACK), tokens=6, summed=4, width=3)
    parts = {name: part * (1 + off) ** 2 for name, part in blurred.stencil(2).terms.items()}
    parts["representation"] = off * (2 + off)
    total, with_labels = (drifted(sum(parts.values()), error, 3, U) for error in (0.0, 0.01))
    wanted = {name: total * part / sum(parts.values()) for name, part in parts.items()}
    assert blurred.certificate(2, 3).terms == about(wanted | {"labels": with_labels - total}, rel=1e-9)
    assert exact.certificate(2, 3).terms["labels"] == exact.certificate(2, 3).terms["representation"] == 0.0
    assert exact.largest_prediction(3) == largest_prediction(DOMAIN, 0.5, 3) + exact.bound(1, 3)
    assert share(6.0, {"a": 1.0, "b": 2.0, "c": 0.0}) == {"a": 2.0, "b": 4.0, "c": 0.0}


def test_a_gradient_step_shuts_out_all_that_it_may_move() -> None:
    """2·η·reach·√N·y for tokens that are not asked; reach is 2.25."""
    made = LoopedGradientDescent(DOMAIN, 1e-3, step_size=0.5, horizon=3)
    assert made.frame.loop[0].w_1.abs().max() == gate_height(2 * 0.5 * 2.25 * 2 * 3.0)


def test_steps_beyond_two_over_l_are_refused() -> None:
    DescentLoop(DOMAIN, 1.0 + 9e-13, 6, f64)  # 2/L as it may be rounded
    for step_size in (1.0 + 1e-9, 0.0, -0.5):
        with pytest.raises(OutOfDomain, match="step size"):
            DescentLoop(DOMAIN, step_size, 6, f64)


@pytest.mark.parametrize("dtype, u", UNITS)
def test_a_representation_rounds_at_every_level_and_passes_on_what_came_in(dtype, u) -> None:
    """‖W‖ is √2 and √5, ‖|W|‖ 2 and √5, biases ½ and 1; eight roundings a level, of two products."""
    weights = [torch.tensor(rows, dtype=f64) for rows in ([[1.0, 1.0], [1.0, -1.0]], [[1.0, 2.0]])]
    biases = [torch.tensor(row, dtype=f64) for row in ([0.5, 0.0], [-1.0])]
    phi = RepresentationNetwork(weights, biases, slope=0.1, bound=2.0)
    assert phi.reach() == [2.0, 4.5, 4.5 + 2 * 4.0 + 1.0]
    size = 2 * math.sqrt(2)
    first = gamma(8, u) * (2 * size + 0.5)
    error = math.sqrt(5) * first + gamma(8, u) * (math.sqrt(5) * (math.sqrt(2) * size + 0.5 + first) + 1.0)
    assert phi.error(dtype) == about(error * (1 + 1e-9))


def test_what_else_a_looped_transformer_rounds_is_in_its_promise() -> None:
    """A chain's labels are divided by the slope, 4u of them, and its answer is activated, 2u of the largest."""
    made = LoopedChainOfThought(DOMAIN, 1e-3, depth=2, step_size=0.25, horizon=3)
    assert made.descent.label_error == 4 * U * 3.0 and made.descent.tokens == 5 * 3 + 1
    activated = {"activation": 2 * U * made.descent.largest_prediction(3)}
    assert made.promise_after(2).terms == made.descent.certificate(made.pairs, 2).terms | activated
    assert LoopedGradientDescent(DOMAIN, 1e-3, horizon=3).descent.tokens == 10


# Newton–Schulz


def newton(domain: Domain, pairs: int, loops: int, dtype: torch.dtype = f64, u: float = U) -> list[float]:
    """‖P̂ − P‖ inside and outside of the columns of X, for four samples of two features."""
    n, d, norm, largest = 4, 2, domain.norm, domain.largest
    start, step, _ = newton_stencils(domain, pairs, 10, dtype)
    top, low = n * largest * (1 + 2 * SLACK), n * (domain.smallest - SLACK * largest)
    if low <= 0:
        return [math.inf] * (loops + 1)
    # α = 1/(N·largest)², granted 2e-9. Every entry of αSXᵀ errs by what heads do for Σ|x| ≤ √(N·top), and rounds.
    alpha, columns = 1 / top**2, math.sqrt(n * top)
    inside = outside = alpha * math.sqrt(n * d) * columns * (start.reach * start.relative + 4 * u * norm**2)
    least, long, errors = alpha * low**2, math.sqrt(d / top), []
    for done in range(loops + 1):
        errors.append(inside + outside)
        if norm * errors[-1] > ROOM:
            return errors + [math.inf] * (loops - done)
        size = long + inside + outside
        shock = n * size * step.reach * step.relative + 8 * u * (1 + math.sqrt(n)) * size
        curve = math.sqrt(top) * inside
        inside, outside = inside * (2 - 2 * least + curve) + shock, outside * (2 - least + curve) + shock
        least, long = least * (2 - least), min(2 * long, math.sqrt(d / low))
    return errors


@pytest.mark.parametrize("dtype, u", UNITS)
def test_newtons_errors_grow_as_the_proof_says(dtype, u) -> None:
    """‖MXᵀ‖ ≤ 1/√(4·smallest); leverages up to 1 and a 64th."""
    for domain in (DOMAIN, replace(DOMAIN, spectrum=Spectrum(2.0, 0.5, 0.75))):
        stencils = newton_stencils(domain, 2, 10, dtype)
        long = domain.norm / math.sqrt(4 * domain.smallest) * (1 + ROOM)
        common = {"tokens": 10, "summed": 4, "width": 3, "u": u}
        heads(stencils[0], reach=domain.norm**2 * (1 + 3 * SLACK), **common)
        # Leverages may be short, and yet Σ|q·k| may be as large as the largest score.
        heads(stencils[1], reach=1 + ROOM, cauchy=max(1.0, long / (1 + ROOM)), **common)
        heads(stencils[2], reach=long, **common)
        assert start_scale(domain) == about(1 / (8 * (1 + 2 * SLACK)) ** 2)
        assert newton_errors(domain, stencils, 9) == about(newton(domain, 2, 9, dtype, u))
    blind = replace(DOMAIN, spectrum=Spectrum(2.0, 1e-9, 1.5))  # nothing is known of the smallest
    assert newton_errors(blind, stencils, 2) == [math.inf] * 3


def test_a_newton_prediction_is_off_by_the_inverse_and_by_its_own_readout() -> None:
    """Scores x_query·m̂ ≤ norm·(‖m‖ + error), made for a 64th beyond norm·‖m‖; here ‖m‖ is 1, and ½."""
    made = LoopedNewton(DOMAIN, horizon=3)
    own = newton_stencils(DOMAIN, made.pairs, 10, f64)[2].error(4 * 3.0)
    for error in (1e-3, 0.0):
        found = made._certificate(made.pairs, error)
        assert found.bound == about(error * 1.5 * 2 * 3.0 + own)
        answers = sum(value for name, value in found.terms.items() if name.startswith("answer"))
        assert answers == about(own)
    assert made.tokens == 10 and made.slots.size("code") == 3  # of four samples and the query
    other = LoopedNewton(Domain(16, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5)), horizon=3)
    for error, promised in ((0.5 / 64, True), (0.5 / 64 * (1 + 1e-9), False)):
        assert (other._certificate(other.pairs, error).bound < math.inf) == promised


# Decoders


def causal(step_size: float, pairs: int, horizon: int, loops: int, dtype: torch.dtype = f64, u: float = U):
    """`causal_error` on DOMAIN: ‖w_k‖ ≤ 2√(cap·ηT)·y; residuals ≤ √N·y or ‖w‖‖x‖ + y, and a hundredth."""
    stencils = causal_stencils(DOMAIN, step_size, pairs, dtype, horizon)

    def length(steps: int) -> float:
        return 2 * math.sqrt((1.0 if step_size * 1.5**2 <= 1 else 2.0) * step_size * max(steps, 1)) * 3.0

    reach = 1.01 * min(2 * 3.0, length(horizon) / 2 * 1.5 + 3.0)
    within, longest = max(1.0, (length(horizon) * 1.5 * (1 + SLACK) + 3.0) / reach), length(horizon) * 1.5 * (1 + SLACK)
    step = heads(stencils[0], u, reach=reach, cauchy=within, tokens=10, summed=4, width=5, lift=math.log(4))
    answer = heads(stencils[1], u, **coded(longest, 1.0, u))
    drift = loops * math.sqrt(2) * (step_size * 1.25 * step + 4 * u * length(loops)) * (1 + 1e-6)
    lost = drift > length(loops) / 2 or drift * 1.5 > 0.009 * reach
    return stencils, (math.inf, math.inf) if lost else (drift, drift * 1.5 * (1 + SLACK) + answer)


@pytest.mark.parametrize("step_size", [0.01, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("dtype, u", UNITS)
def test_causal_descent_errs_as_the_proof_says(step_size: float, dtype, u) -> None:
    for pairs, loops in ((1, 0), (2, 1), (3, 3)):
        stencils, wanted = causal(step_size, pairs, 3, loops, dtype, u)
        assert causal_error(DOMAIN, step_size, stencils, loops) == about(wanted)
    made = CausalLoopedGradientDescent(DOMAIN, 1e-3, step_size=0.25, horizon=3)
    assert made.promise_after(2).bound == about(causal(0.25, made.pairs, 3, 2)[1][1])


def test_causal_descent_takes_steps_up_to_two_over_norm_squared() -> None:
    limit = 2 / (1.5 * (1 + SLACK)) ** 2
    assert CausalLoopedGradientDescent(DOMAIN, 1e-3, horizon=1).step_size == about(limit / 2)
    CausalLoopedGradientDescent(DOMAIN, 1e-3, step_size=limit * (1 - 1e-15), horizon=1)
    with pytest.raises(OutOfDomain, match="2/norm²"):
        CausalLoopedGradientDescent(DOMAIN, 1e-3, step_size=limit * (1 + 1e-12), horizon=1)


# Where promises end: (what is promised, what the proof says, a number that is promised, one that is not)
EDGES = {
    "scores of newton": (
        lambda norm: newton_errors(of_norm(norm), newton_stencils(of_norm(norm), 1, 10, f32), 5)[-1],
        lambda norm: newton(of_norm(norm), 1, 5, f32, 2.0**-24)[-1],
        (0.1, 1.7),
    ),
    "residuals of causal descent": (
        lambda loops: causal_error(DOMAIN, 0.25, causal_stencils(DOMAIN, 0.25, 1, f32, 10**6), loops)[1],
        lambda loops: causal(0.25, 1, 10**6, loops, f32, 2.0**-24)[1][1],
        (1, 10**6),
    ),
    "weights of causal descent": (
        lambda loops: causal_error(DOMAIN, 1e-12, causal_stencils(DOMAIN, 1e-12, 1, f32, loops), loops)[1],
        lambda loops: causal(1e-12, 1, loops, loops, f32, 2.0**-24)[1][1],
        (1, 10**7),
    ),
}


def of_norm(norm: float) -> Domain:
    return replace(DOMAIN, spectrum=Spectrum(2.0, 0.25, norm))


@pytest.mark.parametrize("name", EDGES)
def test_promises_end_where_the_proofs_do(name: str) -> None:
    promised, proved, (low, high) = EDGES[name]
    whole = isinstance(low, int)
    assert proved(low) < math.inf == proved(high)
    while high - low > (1 if whole else 1e-12 * high):
        middle = (low + high) // 2 if whole else (low + high) / 2
        low, high = (middle, high) if proved(middle) < math.inf else (low, middle)
    assert promised(low if whole else low * (1 - 1e-9)) < math.inf == promised(high if whole else high * (1 + 1e-9))
