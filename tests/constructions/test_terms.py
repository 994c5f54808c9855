"""Every named term of a construction's certificate, against what its docstring says it is made of."""

import math
from contextlib import nullcontext

import pytest
import torch

from emulon.algorithms import LinearRegression
from emulon.algorithms.losses import as_loss
from emulon.certify import Domain, Spectrum
from emulon.constructions import (
    DescentInContext,
    GradientStep,
    HeadInEmbedding,
    HeadInTokens,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)
from emulon.constructions.accuracy import Accuracy, checked_to, rounded_up
from emulon.constructions.emulated_head import entry_tolerance
from emulon.constructions.gradient_step import Proximal, domain_step_size
from emulon.constructions.linear_layer import padded, with_room
from emulon.constructions.residual_map import template
from emulon.constructions.truncated_linear import RowHeads, SharpGrid
from emulon.core.errors import OutOfDomain, ToleranceTooTight
from emulon.expressions import parse

f64, U = torch.float64, 2.0**-53
DOMAIN = Domain(5, 3, 2.0, 1.0, 0.5)


def gamma(count: int) -> float:
    return count * U / (1 - count * U)


def test_a_residual_map_leaks_the_largest_value_and_what_it_stands_for() -> None:
    made = ResidualMap("tanh(t)", DOMAIN, 1e-6).template
    own, largest = made.f.certificate.terms, float(made.grid.values.abs().max()) + made.f.interpolation.size
    for scale in (1.0, 0.25):
        terms = made.certificate(scale).terms
        assert terms["interpolation"] == own["interpolation"] * 2.0 * scale
        assert terms["rounding"] == own["rounding"] * 2.0 * scale
        assert terms["routing leak"] == pytest.approx(made.leak * largest * 2.0 * scale, rel=1e-14, abs=0.0)


def test_a_proximal_step_leaks_from_every_query_and_rounds_their_sum() -> None:
    made = Proximal(0.25, 3, 2.0, Accuracy(1e-3, None, "auto", f64))
    own, size = made.template.certificate().terms, made.f.interpolation.size
    assert made.certificate.terms["routing leak"] == 3 * own["routing leak"] > 0
    rounding = made.certificate.terms["rounding"] - own["rounding"]
    assert rounding == pytest.approx(gamma(3) * size, rel=1e-6, abs=0.0) and size >= 1.75


@pytest.mark.parametrize("loss, fixed", [("squared", 0.0), ("poisson", 2.0)])
def test_a_gradient_step_rounds_the_state_the_values_and_the_readout(loss: str, fixed: float) -> None:
    step, l2 = 0.125, 2.0
    made = GradientStep(loss, DOMAIN, 1e-5, step_size=step, l2=l2)
    own, f = made.template.certificate(step).terms, made.template.f
    carried = (1 + step * l2) * 0.5 + step * fixed
    largest, moved = step * 2.0 * float(made.template.grid.values.abs().max()), step * 2.0 * f.interpolation.size
    state = gamma(6) * (carried + largest) + 2 * gamma(f.keys + 2) * carried + gamma(6) * (carried + moved)
    assert made.certificate.terms["rounding"] == pytest.approx(own["rounding"] + state, rel=1e-12, abs=0.0)
    leak = own["routing leak"] + 2 * made.template.leak * step * fixed
    assert made.certificate.terms["routing leak"] == pytest.approx(leak, rel=1e-12, abs=0.0)
    assert made.certificate.terms["interpolation"] == own["interpolation"]
    assert math.isclose(made._state_rounding(made.template), state, rel_tol=1e-12)


@pytest.mark.parametrize("loss, fixed", [("squared", 0.0), ("poisson", 2.0)])
def test_a_step_with_a_penalty_adds_the_second_heads_whole_bound(loss: str, fixed: float) -> None:
    made = GradientStep(loss, DOMAIN, 1e-2, step_size=0.125, l1=0.5, l2=2.0)
    assert made.proximal is not None
    assert made.certificate.terms["proximal step"] == made.proximal.certificate.bound > 0
    first = sum(value for name, value in made.certificate.terms.items() if name != "proximal step")
    # |1 − η·l2|·w + η·(x·|F| + |yx|), and what the first head errs by.
    reach = 0.75 * 0.5 + 0.125 * (2.0 * made.template.f.interpolation.size + fixed)
    assert made.proximal.domain.w == pytest.approx(reach * (1 + 1e-9) + first, rel=1e-14, abs=0.0)
    x, y, w = 2 * torch.rand(5, 3, dtype=f64) - 1, torch.rand(5, dtype=f64), torch.tensor([0.5, -0.25, 0.1]).double()
    means = torch.exp(x @ w) if loss == "poisson" else x @ w
    moved = w - 0.125 * (x.mT @ (means - y) / 5 + 2.0 * w)
    exact = moved.sign() * (moved.abs() - 0.125 * 0.5).clamp(min=0)
    assert made.certificate.verify(made(x, y, w), exact) < 1e-2


def test_without_a_step_size_it_is_one_over_the_worst_smoothness() -> None:
    domain = Domain(5, 3, 2.0, 1.0, 0.5, spectrum=Spectrum())
    assert domain_step_size(as_loss("squared"), domain, 0.5) == 1 / (3 * 4.0 + 0.5)
    assert domain_step_size(as_loss("logistic"), domain, 0.0) == 1 / (0.25 * 3 * 4.0)


SHARP = SharpGrid(tokens=6, heads=3, lo=-1.5, hi=2.0)


def test_sharp_heads_share_a_range_and_weigh_its_points_by_their_distance() -> None:
    """Scores 2βk·s − β·k(L_k + L_0) are −(β/ΔL)(s − L_k)² but for what all keys have in common."""
    spacing = 3.5 / 11
    assert (SHARP.points, SHARP.spacing) == (12, pytest.approx(spacing, rel=1e-15))
    index = torch.tensor([[4.0 * head - 1 + token for token in range(6)] for head in range(3)], dtype=f64)
    levels = -1.5 + index * spacing
    torch.testing.assert_close(SHARP.levels, levels, rtol=1e-14, atol=1e-14)
    assert torch.equal(SHARP.offsets, index[:, 0])
    assert SHARP.beta * spacing == pytest.approx(-math.log(0.01 * spacing / (12 * 2.0)), rel=1e-12)
    for s in (-1.5, 0.3, 2.0):
        common = 2 * SHARP.beta * index * s + SHARP.intercepts + SHARP.beta / spacing * (s - levels) ** 2
        torch.testing.assert_close(common, common[:1, :1].expand_as(common), rtol=1e-12, atol=1e-10)
    inside = SHARP.values[:, 1:-1]
    assert torch.equal(inside, SHARP.levels[:, 1:-1]) and not SHARP.values[:, [0, -1]].any()
    # At most a spacing of 2·max|L|, which leaves it far below the tenth that the proof needs.
    assert SharpGrid(3, 2, -1e-3, 1e-3).q == pytest.approx(0.01 / 6) and SharpGrid(3, 2, 0.1, 100.0).q < 1 / 600


@pytest.mark.parametrize("tolerance, tokens", [(0.01, 10), (0.2, 4), (0.356, 5), (5.0, 3)])
def test_a_tolerance_takes_the_heads_that_halve_it_and_a_little_more(tolerance: float, tokens: int) -> None:
    """0.6·range/tolerance points and one: half a spacing is then five sixths of the tolerance at most."""
    made = SharpGrid.within(tolerance, tokens, -1.5, 2.0)
    assert made.heads == max(2, math.ceil((0.6 * 3.5 / tolerance + 1) / (tokens - 2)))
    assert made.spacing / 2 <= tolerance / 1.2


@pytest.mark.parametrize("dtype, u", [(f64, U), (torch.float32, 2.0**-24)])
def test_sharp_heads_promise_half_a_spacing_their_sharpness_and_the_rounding_of_all(dtype, u) -> None:
    """Points go one beyond each end, to 2 + ΔL. Scores are β·(p + 2)·(2·4 + 2)·largest before they cancel."""
    largest, spacing = 2.0 + 3.5 / 11, 3.5 / 11
    terms = SHARP.certificate(4, dtype).terms

    def grown(count: int) -> float:
        return count * u / (1 - count * u)

    delta = grown(4 + 12) * SHARP.beta * 14 * 10 * largest + (4 + 64) * u
    each = math.tanh(delta / 2) * 2 * largest + 2 * grown(6 + 3) * largest
    assert terms["interpolation"] == pytest.approx(spacing / 2, rel=1e-14)
    assert terms["sharpness"] == pytest.approx(12 * 0.01 * spacing / 24 * largest, rel=1e-12)
    assert terms["rounding"] == pytest.approx(3 * each + 2 * grown(3) * largest, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("made, slopes, operations", [(LinearLayer, 1.0, 2), (HeadInEmbedding, 3.0, 7)])
def test_a_row_of_products_rounds_its_terms_before_they_cancel(made, slopes, operations) -> None:
    """Σ|θx| may be four times the bound; a head in the embedding forms its slopes itself, of up to three times more."""
    module = made(4, 3, 2, 2.0, points=8)
    grid, bound = module.f.grid, module.bound
    wanted = gamma(3 + operations) * (slopes * grid.steepest * 4 * bound + grid.highest)
    found, exact = module._rounding_error(grid, 1e-3, 2.0), grid.rounding_error(1e-3, 2.0, wanted)
    assert found == pytest.approx(exact, rel=1e-12, abs=0.0)
    assert module.f.certificate.terms["rounding"] >= grid.rounding_error(0.0, 0.0, wanted)


def test_bounds_on_products_have_room_for_storing_and_checking_them() -> None:
    assert checked_to(3, 2.0) == pytest.approx(gamma(7) * 2.0, rel=1e-14, abs=0.0)
    for dtype, u in ((f64, U), (torch.float32, 2.0**-24)):
        room = with_room(2.0, 3, dtype) - 2.0
        assert room == pytest.approx(4 * u * 8.0 + gamma(7) * 8.0, abs=2 * U * 2)
    for module in (LinearLayer(4, 3, 2, 2.0, points=8), HeadInEmbedding(4, 3, 2, 2.0, points=8)):
        assert module.f.grid.hi == module.bound + checked_to(3, 4 * module.bound) > 2.0


@pytest.mark.parametrize("bound", [2.0, 2e-3])
def test_tokens_that_only_pad_are_silent_wherever_they_are_asked(bound: float) -> None:
    """e^{−800} of any key there is, for products to the end of the range; slopes are small, or large."""
    grid = LinearLayer(4, 3, 2, bound, points=8).f.grid
    slopes, intercepts, values = padded(grid, 40)
    heads = RowHeads.soft((40, 3, 1), grid)
    indexed = heads.starts[0] + heads.step * torch.arange(40, dtype=f64)
    for s in (-grid.range, grid.range):
        for scores in (slopes * s + intercepts, indexed * s + heads.intercepts[0]):
            assert scores[len(grid) :].max() <= scores[: len(grid)].min() - 799.9
        assert (slopes * s + intercepts)[
            len(grid) :
        ].max() > grid.intercepts.min() - 801 - 2 * grid.steepest * grid.range
    assert not values[len(grid) :].any() and torch.equal(values[: len(grid)], grid.values)
    torch.testing.assert_close(indexed[: len(grid)], grid.slopes, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", [HeadInTokens, HeadInEmbedding])
@pytest.mark.parametrize("beta, points", [(1.0, 3), (0.25, 3), (4.0, 8)])
@pytest.mark.parametrize("dtype, u", [(f64, U), (torch.float32, 2.0**-24)])
def test_an_emulated_head_moves_scores_by_what_keys_and_queries_are_off(kind, beta, points, dtype, u) -> None:
    """ε + tanh(δ/2)·2·(values + ε), δ = β·ε·(keys + queries + width·ε); and the same with all that is rounded.

    In float32 what entries that are off add to the rounding of scores and averages is seen, where keys are small.
    """
    made = kind(5, 3, 2, 2.0, points=points, beta=beta, dtype=dtype)
    own, bound = made.entries, made.bound
    exact = own.bound - own.terms["rounding"]

    def grown(count: int) -> float:
        return count * u / (1 - count * u)

    for keys, queries, values in (
        (2 * bound, 2 * bound, bound),
        (0.5, 3.0, 1.5),
        (3.0, 0.25, 1e-3),
        (0.01, 0.02, 0.01),
    ):

        def output(entry: float, score: float, keys=keys, queries=queries, values=values) -> float:
            return entry + 2 * (values + entry) * math.tanh((beta * entry * (keys + queries + 2 * entry) + score) / 2)

        terms = made._certificate(keys, queries, values).terms
        least, most = sorted((keys + 2 * own.bound, queries + 2 * own.bound))
        products = beta * least * min(most, bound + own.bound)
        score = grown(4) * products + (4 + min(2 * products, 64.0)) * u
        total = output(own.bound, score) + 2 * grown(7) * (values + own.bound)
        assert terms["interpolation"] == pytest.approx(output(exact, 0.0), rel=1e-12, abs=0.0)
        assert terms["rounding"] + terms["interpolation"] == pytest.approx(total, rel=1e-12, abs=0.0)
        assert terms["rounding"] == pytest.approx(
            total - output(exact, 0.0), rel=1e-4 if dtype == f64 else 1e-8, abs=0.0
        )
    assert made.certificate.terms == made._certificate(2 * bound, 2 * bound, bound).terms


def test_an_audit_of_a_head_takes_the_norms_of_its_own_rows() -> None:
    made = HeadInTokens(2, 2, 2, 4.0, points=6)
    x = torch.tensor([[1.0, 0.5], [-0.25, 1.0]], dtype=f64)
    w_k, w_q, w_v = (
        torch.tensor(part, dtype=f64) for part in ([[1, -1], [0, 1]], [[1, 0], [2, 1]], [[0, -1.5], [1, 0]])
    )
    # x·W_Kᵀ has rows (½, ½) and (−5/4, 1); x·W_Qᵀ (1, 5/2) and (−¼, ½); x·W_Vᵀ (−¾, 1) and (−3/2, −¼).
    found, lift = made.audit(x, w_k.double(), w_q.double(), w_v.double()), 1 + 1e-12
    # Each lifted over its own rounding.
    assert found.scope == "run" and found.terms == made._certificate(2.25 * lift, 3.5 * lift, 1.5 * lift).terms


def test_entries_must_be_as_exact_as_scores_and_values_make_of_them() -> None:
    """1 + 2β·width·bound²: half as much again would be refused by no one; below a last place of the bound it is."""
    assert entry_tolerance(1e-6, 3.0, 2, 0.5, f64) == pytest.approx(1e-6 / (1 + 18) / 1.05, rel=1e-14)
    with pytest.raises(ToleranceTooTight) as caught:
        entry_tolerance(19 * U * 3.0 * 0.999, 3.0, 2, 0.5, f64)
    assert caught.value.smallest == rounded_up(19 * U * 3.0)
    assert entry_tolerance(19 * U * 3.0 * 1.001, 3.0, 2, 0.5, f64) > 0


def test_a_tolerance_is_named_with_two_digits_and_never_below_itself() -> None:
    assert [rounded_up(number) for number in (1.234e-5, 9.95, 2.0, 1.0001e-300)] == [1.3e-5, 10.0, 2.0, 1.1e-300]
    assert rounded_up(math.inf) == math.inf


def test_steps_in_context_are_what_was_asked_for_and_promise_all_of_them() -> None:
    """√d·T times a step's terms; and curvature is enclosed wherever errors of that size can carry a residual."""
    options = {"step_size": 0.01, "l2": 0.5, "l1": 0.25, "dtype": torch.float32}
    made = DescentInContext("squared", DOMAIN, steps=4000, points=5, grid="spectral", **options)
    step = made.step
    assert (step.step_size, step.l2, step.l1, step.head.w_k.dtype) == (0.01, 0.5, 0.25, torch.float32)
    assert step.f.grid.way == "spectral" and step.f.keys <= 6
    for name, term in step.certificate.terms.items():
        assert made.certificate.terms[name] == pytest.approx(math.sqrt(3) * 4000 * term, rel=1e-4)
    plan, bound = made.plan, made.certificate.bound
    assert 3 * 2.0 * bound > plan.inner.residual and plan.proves(bound) and made.certificate.proved


def test_what_is_constructed_for_data_counts_on_their_least_eigenvalue() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 0.5], [-1.0, 0.5], [0.0, 0.0]], dtype=f64)
    made = DescentInContext.of(LinearRegression(steps=2), x, x @ torch.tensor([1.0, -0.5]).double(), 1e-2)
    least = torch.linalg.eigvalsh(x.mT @ x / 4)[0].item()
    assert made.plan.strong_convexity == pytest.approx(least, rel=1e-6)


def test_a_template_keeps_its_tolerance_whatever_multiplies_it_and_leaks_next_to_nothing_without_one() -> None:
    made = template(parse("tanh(t)"), DOMAIN, Accuracy(1e-5, None, "auto", f64), 8.0)
    terms = made.certificate(8.0).terms
    assert sum(terms.values()) <= 1e-5 and 0 < terms["routing leak"] <= 0.02 * 1e-5 * made.grid.largest * 2
    free = template(parse("tanh(t)"), DOMAIN, Accuracy(None, 8, "auto", f64))
    assert 0 < free.leak <= 0.1 * torch.finfo(f64).eps


def test_a_sharp_range_is_kept_to_at_both_ends_with_room_for_rounding() -> None:
    made, w = TruncatedLinear(6, 1, -1.5, 2.0, heads=3, grid="paper"), torch.full((1,), 0.5, dtype=f64)
    x = torch.linspace(-1.0, 1.5, 6, dtype=f64).unsqueeze(-1)
    for edge, allowed in ((-1.5 - 2e-15, True), (2 + 2e-15, True), (-1.5 - 1e-9, False), (2 + 1e-9, False)):
        x[0] = edge
        with nullcontext() if allowed else pytest.raises(OutOfDomain):
            assert made.certificate.verify(made(2 * x, w), x.squeeze(-1)) < 0.2
    assert TruncatedLinear(6, 1, -1.5, 2.0, 0.3, grid="paper").certificate.bound <= 0.3
    # Elsewhere half as much again is taken, and clipped.
    assert TruncatedLinear(6, 1, -1.5, 2.0, points=8).heads.bound == with_room(3.0, 1, f64)
