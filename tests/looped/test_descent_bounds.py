"""The bounds of looped descent, term by term: where one rules, it is as large as it says, and it is not left out."""

import math
from fractions import Fraction
from math import factorial

import pytest
import torch
from exact_solvers import U, gamma

from emulon.certify import Domain, Spectrum
from emulon.errors import OutOfDomain
from emulon.looped import LoopedChainOfThought, LoopedGradientDescent, RepresentationNetwork
from emulon.looped.descent import DescentAudit, DescentLoop, descent_error, gain, largest_prediction
from emulon.looped.stencil import Stencil, truncation
from emulon.looped.transformer import share, worst_of

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


def audited(shock: float = 0.0, jump: float = 0.0, **errors: float) -> tuple[float, float]:
    """(bound, direct): after three steps; a shock to the residuals, a jump of the prediction, after the first."""
    xs = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0], [0.0, 0.0]], dtype=f64)
    ys, query, step = torch.tensor([[1.0], [2.0], [0.5], [0.0]], dtype=f64), torch.tensor([0.6, 0.8], dtype=f64), 0.5
    audit, residuals, weights = DescentAudit(xs, ys, query, step, **errors), -ys, torch.zeros(2, 1, dtype=f64)
    audit.watch(residuals, query @ weights, start=True)
    for number in range(3):
        weights = weights - step / 4 * xs.mT @ (xs @ weights - ys)
        residuals = xs @ weights - ys
        moved = shock * torch.ones_like(residuals) if number == 2 else 0.0
        audit.watch(residuals + moved, query @ weights + jump * (number == 2))
    return audit.bound.item(), audit.direct.item()


def test_an_audit_of_a_run_without_a_fault_is_a_few_roundings() -> None:
    bound, direct = audited()
    ops = gamma(4 + 2 + 8)
    assert direct <= 6 * ops * 3 and direct <= bound <= 60 * ops
    # Of one step from the labels, lengths √5.25: what the check itself rounds.
    xs, ys = torch.eye(1, dtype=f64), torch.ones(1, 1, dtype=f64)
    audit = DescentAudit(xs, ys, xs[0], 1.0)
    audit.watch(-ys, torch.zeros(1, dtype=f64), start=True)
    audit.watch(torch.zeros(1, 1, dtype=f64), torch.ones(1, dtype=f64))
    rounding = gamma(1 + 1 + 8)
    assert audit.direct.item() == pytest.approx(rounding + rounding * (1 + 0 + 1), rel=1e-12, abs=0.0)
    assert audit.shocks[1].item() == pytest.approx(rounding * 3, rel=1e-12, abs=0.0)


def test_an_audit_counts_what_jumped_and_what_a_shock_becomes() -> None:
    clean, _ = audited()
    assert audited(jump=1e-3)[0] == pytest.approx(1e-3 * (1 + 1e-6), rel=1e-9, abs=0.0)
    # A shock after the last step has no step to travel through: the prediction does not feel it.
    assert audited(shock=1e-3)[0] == pytest.approx(clean, rel=1e-3, abs=0.0)


def test_a_loop_is_audited_by_the_worst_of_its_outputs() -> None:
    """One sample, one step of ½ on two outputs: predictions ½ and 1, of which the second jumps."""
    xs, ys = torch.ones(1, 1, dtype=f64), torch.tensor([[1.0, 2.0]], dtype=f64)
    readings = [(-ys, torch.zeros(2, dtype=f64)), (-ys / 2, torch.tensor([0.5, 1.0 + 1e-3], dtype=f64))]
    found = DescentLoop(DOMAIN, 0.5, 6, f64).audit(xs, ys, xs[0], readings)
    assert found.terms == {"loop": pytest.approx(1e-3 * (1 + 1e-6), rel=1e-9)} and found.scope == "run"


def test_an_audit_carries_an_early_shock_by_the_gain_of_the_steps_that_follow() -> None:
    """λ of XᵀX/n is 1 in the only direction; ‖x‖ = 2; two steps of ½ follow a shock of 1e-3 in every residual."""
    xs, step = torch.full((4, 1), 1.0, dtype=f64), 0.5
    ys, query = torch.ones(4, 1, dtype=f64), torch.tensor([2.0], dtype=f64)
    audit = DescentAudit(xs, ys, query, step)
    residuals, prediction = -ys + 1e-3, torch.zeros(1, dtype=f64)
    audit.watch(residuals, prediction, start=True)
    for _ in range(2):
        back = step / 4 * xs.mT @ residuals
        residuals, prediction = residuals - xs @ back, prediction - (query @ back)
        audit.watch(residuals, prediction)
    # min(√(ηM), η·√λ·M, 1/√λ) = 1, times the query's norm 2, times ‖shock‖/√N.
    assert audit.bound.item() == pytest.approx(2 * 1.0 * 1e-3, rel=1e-5, abs=0.0)
    # One that comes with the first step has one step to travel through.
    between, back = DescentAudit(xs, ys, query, step), step / 4 * xs.mT @ -ys
    between.watch(-ys, torch.zeros(1, dtype=f64), start=True)
    residuals, prediction = -ys - xs @ back + 1e-3, -(query @ back)
    between.watch(residuals, prediction)
    back = step / 4 * xs.mT @ residuals
    between.watch(residuals - xs @ back, prediction - query @ back)
    assert between.bound.item() == pytest.approx(2 * 0.5 * 1e-3, rel=1e-5, abs=0.0)
    late = DescentAudit(xs, ys, query, step)
    late.watch(-ys + 1e-3, torch.zeros(1, dtype=f64), start=True)
    back = step / 4 * xs.mT @ (-ys + 1e-3)
    late.watch(-ys + 1e-3 - xs @ back, -(query @ back))
    assert late.bound.item() == pytest.approx(2 * 0.5 * 1e-3, rel=1e-5, abs=0.0)


def test_what_a_check_rounds_grows_with_the_data_and_is_felt_by_every_residual() -> None:
    """Four samples 2 with target 1, asked at 4, η = 1/4: one exact step, from residuals of length 2 to none.

    γ·(‖x‖²·η·‖res‖/√N + ‖res‖ + |prediction|) in every entry, ‖x‖ = 4 the query's: γ·(4 + 2 + 2), of 4 + 1 + 8 terms.
    """
    xs, ys, query = torch.full((4, 1), 2.0, dtype=f64), torch.ones(4, 1, dtype=f64), torch.tensor([4.0], dtype=f64)
    audit = DescentAudit(xs, ys, query, 0.25)
    audit.watch(-ys, torch.zeros(1, dtype=f64), start=True)
    audit.watch(torch.zeros(4, 1, dtype=f64), torch.tensor([2.0], dtype=f64))
    assert audit.direct.item() == pytest.approx(8 * gamma(13), rel=1e-12, abs=0.0)
    assert audit.shocks[1].item() == pytest.approx(2 * 8 * gamma(13), rel=1e-12, abs=0.0)
    audit.watch(torch.zeros(4, 1, dtype=f64), torch.tensor([2.0], dtype=f64))
    assert audit.direct.item() == pytest.approx((8 + 4) * gamma(13), rel=1e-12, abs=0.0)


@pytest.mark.parametrize(("features", "steps", "carried"), [(1, 2, 2.0), (2, 3, 3.0), (2, 1, 1.5)])
def test_steps_beyond_one_over_l_may_carry_a_shock_twice_as_far(features: int, steps: int, carried: float) -> None:
    """λ = 1 and η = 3/2: 2/σ where it is the only one; √(2ηM) where there is none below; η·σ after one step."""
    xs, ys = torch.zeros(4, features, dtype=f64), torch.ones(4, 1, dtype=f64)
    xs[:, 0] = 1.0
    query = 2 * xs[0]
    audit, residuals, prediction = DescentAudit(xs, ys, query, 1.5), -ys + 1e-3, torch.zeros(1, dtype=f64)
    audit.watch(residuals, prediction, start=True)
    for _ in range(steps):
        back = 1.5 / 4 * xs.mT @ residuals
        residuals, prediction = residuals - xs @ back, prediction - query @ back
        audit.watch(residuals, prediction)
    assert audit.bound.item() == pytest.approx(2 * carried * 1e-3, rel=1e-5, abs=0.0)


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


def test_an_audit_counts_labels_and_features_that_are_off() -> None:
    clean, direct = audited()
    xs_norm, step = 2.0, 0.5
    by_labels = audited(label_error=1e-4)[0]
    # λmax = 1, λmin = 1/4: three steps carry min(√1.5, 1.5, 2) of a residual's error.
    assert by_labels - clean == pytest.approx(xs_norm * math.sqrt(1.5) * 1e-4, rel=1e-4, abs=0.0)
    with_features = audited(feature_error=1e-6)[1] - direct
    # 3·e·‖x‖·η·‖res‖/√N in every step: residuals of length √5.25 at first, then shrinking.
    lengths = [math.sqrt((1 - 1 / 8) ** (2 * k) + 4 * 0.5 ** (2 * k) + 0.25) for k in range(3)]
    assert with_features == pytest.approx(3e-6 * xs_norm * step * sum(lengths) / 2, rel=1e-4, abs=0.0)


@pytest.mark.parametrize("dtype, u", [(f64, U), (torch.float32, 2.0**-24)])
def test_a_representation_rounds_at_every_level_and_passes_on_what_came_in(dtype, u) -> None:
    """‖W‖ is √2 and √5, ‖|W|‖ 2 and √5, biases ½ and 1; eight roundings a level, of two products."""
    weights = [torch.tensor(rows, dtype=f64) for rows in ([[1.0, 1.0], [1.0, -1.0]], [[1.0, 2.0]])]
    biases = [torch.tensor(row, dtype=f64) for row in ([0.5, 0.0], [-1.0])]
    phi, grown = RepresentationNetwork(weights, biases, slope=0.1, bound=2.0), 8 * u / (1 - 8 * u)
    assert phi.reach() == [2.0, 4.5, 4.5 + 2 * 4.0 + 1.0]
    given = torch.tensor([[0.3, 0.4], [0.0, 0.1]], dtype=f64)
    for size, inputs in ((2 * math.sqrt(2), ()), (0.5, (given, 0.5 * given))):
        first = grown * (2 * size + 0.5)
        second = math.sqrt(2) * size + 0.5
        error = math.sqrt(5) * first + grown * (math.sqrt(5) * (second + first) + 1.0)
        assert phi.error(dtype, *inputs) == pytest.approx(error * (1 + 1e-9), rel=1e-13, abs=0.0)


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
    several = worst_of(f64, loop=torch.tensor([[1.0, 3.0], [2.0, 0.0]]), answer=torch.tensor([[2.5, 0.0], [2.5, 3.0]]))
    assert several.terms == {"loop": 2.0, "answer": 2.5} and several.scope == "run"
    assert share(6.0, {"a": 1.0, "b": 2.0, "c": 0.0}) == {"a": 2.0, "b": 4.0, "c": 0.0}
