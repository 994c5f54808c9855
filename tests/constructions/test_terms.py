"""The terms of every construction's certificate, as recorded in `terms.json`, and what they are made of.

`python tests/constructions/test_terms.py` writes the record anew (see `tests/recorded.py`).
"""

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from recorded import require_as_recorded, write

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

f64, f32, U = torch.float64, torch.float32, 2.0**-53
DOMAIN = Domain(5, 3, 2.0, 1.0, 0.5)
SHARP = SharpGrid(tokens=6, heads=3, lo=-1.5, hi=2.0)
PAPER = {"points": 17, "grid": "paper"}
RECORD = Path(__file__).with_name("terms.json")


def of_step(loss: str, dtype: torch.dtype) -> dict[str, float]:
    plain = GradientStep(loss, DOMAIN, step_size=0.125, l2=2.0, dtype=dtype, **PAPER)
    soft = GradientStep(loss, DOMAIN, step_size=0.125, l1=0.5, l2=2.0, dtype=dtype, **PAPER)
    assert soft.proximal is not None
    penalised = {f"with l1, {name}": value for name, value in soft.certificate.terms.items()}
    return plain.certificate.terms | penalised | {"reach of the proximal step": soft.proximal.domain.w}


def of_head(made: HeadInTokens | HeadInEmbedding) -> dict[str, float]:
    """For the whole domain, and for a head with smaller keys and values than its largest."""
    small = made._certificate(0.01, 0.02, 0.01).terms | {"bound": made.bound}
    whole = {f"domain, {term}": value for term, value in made.certificate.terms.items()}
    return small | whole | {f"entries, {name}": value for name, value in made.entries.terms.items()}


def of_residual_map(scale: float) -> dict[str, float]:
    made = ResidualMap("tanh(t)", DOMAIN, **PAPER).template
    return made.certificate(scale).terms | {"leak": made.leak}


def of_descent() -> dict[str, float]:
    options = {"step_size": 0.01, "l2": 0.5, "l1": 0.25, "dtype": f32}
    return DescentInContext("squared", DOMAIN, steps=40, **options, **PAPER).certificate.terms


def of_tolerances() -> dict[str, float]:
    heads = ((0.01, 10), (0.2, 4), (0.356, 5), (5.0, 3))
    found = {f"heads for {one}": float(SharpGrid.within(*one, -1.5, 2.0).heads) for one in heads}
    rooms = {f"room, {dtype}": with_room(2.0, 3, dtype) - 2.0 for dtype in (f64, f32)}
    return found | rooms | {"checked": checked_to(3, 2.0), "entries": entry_tolerance(1e-6, 3.0, 2, 0.5, f64)}


IN_EACH_DTYPE = {
    "squared step": lambda dtype: of_step("squared", dtype),
    "poisson step": lambda dtype: of_step("poisson", dtype),
    "sharp heads": lambda dtype: SHARP.certificate(4, dtype).terms,
    "linear layer": lambda dtype: LinearLayer(4, 3, 2, 2.0, dtype=dtype, **PAPER).certificate.terms,
    "head in tokens": lambda dtype: of_head(HeadInTokens(5, 3, 2, 2.0, beta=4.0, dtype=dtype, **PAPER)),
    "head in embedding": lambda dtype: of_head(HeadInEmbedding(5, 3, 2, 2.0, points=3, beta=0.25, dtype=dtype)),
    "head in embedding, paper": lambda dtype: of_head(
        HeadInEmbedding(5, 3, 2, 2.0, heads=9, grid="paper", dtype=dtype)
    ),
}
CASES = {
    **{f"residual map, {scale}": lambda scale=scale: of_residual_map(scale) for scale in (1.0, 0.25)},
    "proximal step": lambda: Proximal(0.25, 3, 2.0, Accuracy(None, 17, "paper", f64)).certificate.terms,
    **{
        f"{name}, {dtype}": lambda make=make, dtype=dtype: make(dtype)
        for name, make in IN_EACH_DTYPE.items()
        for dtype in (f64, f32)
    },
    "descent": of_descent,
    "tolerances": of_tolerances,
}


@pytest.mark.parametrize("name", CASES)
def test_every_term_is_as_recorded(name: str) -> None:
    require_as_recorded(RECORD, name, CASES[name](), rel=1e-7)


def test_without_a_step_size_it_is_one_over_the_worst_smoothness() -> None:
    domain = Domain(5, 3, 2.0, 1.0, 0.5, spectrum=Spectrum())
    assert domain_step_size(as_loss("squared"), domain, 0.5) == 1 / (3 * 4.0 + 0.5)
    assert domain_step_size(as_loss("logistic"), domain, 0.0) == 1 / (0.25 * 3 * 4.0)


def test_sharp_heads_share_a_range_and_weigh_its_points_by_their_distance() -> None:
    """Scores 2βk·s − β·k(L_k + L_0) are −(β/ΔL)(s − L_k)² but for what all keys have in common."""
    spacing = 3.5 / 11
    assert (SHARP.points, SHARP.spacing) == (12, pytest.approx(spacing, rel=1e-15))
    index = torch.tensor([[4.0 * head - 1 + token for token in range(6)] for head in range(3)], dtype=f64)
    levels = -1.5 + index * spacing
    torch.testing.assert_close(SHARP.levels, levels, rtol=1e-14, atol=1e-14)
    assert torch.equal(SHARP.offsets, index[:, 0])
    for s in (-1.5, 0.3, 2.0):
        common = 2 * SHARP.beta * index * s + SHARP.intercepts + SHARP.beta / spacing * (s - levels) ** 2
        torch.testing.assert_close(common, common[:1, :1].expand_as(common), rtol=1e-12, atol=1e-10)
    inside = SHARP.values[:, 1:-1]
    assert torch.equal(inside, SHARP.levels[:, 1:-1]) and not SHARP.values[:, [0, -1]].any()
    # At most a spacing of 2·max|L|, which leaves it far below the tenth that the proof needs.
    assert SharpGrid(3, 2, -1e-3, 1e-3).q == pytest.approx(0.01 / 6) and SharpGrid(3, 2, 0.1, 100.0).q < 1 / 600


@pytest.mark.parametrize("bound", [2.0, 2e-3])
def test_tokens_that_only_pad_are_silent_wherever_they_are_asked(bound: float) -> None:
    """e^{−800} of any key there is, for products to the end of the range; slopes are small, or large."""
    module = LinearLayer(4, 3, 2, bound, points=8)
    grid = module.f.grid
    assert grid.hi == module.bound + checked_to(3, 4 * module.bound) > bound
    slopes, intercepts, values = padded(grid, 40)
    heads = RowHeads.soft((40, 3, 1), grid)
    indexed = heads.starts[0] + heads.step * torch.arange(40, dtype=f64)
    for s in (-grid.range, grid.range):
        for scores in (slopes * s + intercepts, indexed * s + heads.intercepts[0]):
            assert scores[len(grid) :].max() <= scores[: len(grid)].min() - 799.9
    assert not values[len(grid) :].any() and torch.equal(values[: len(grid)], grid.values)
    torch.testing.assert_close(indexed[: len(grid)], grid.slopes, rtol=1e-13, atol=1e-13)


def test_an_audit_of_a_head_takes_the_norms_of_its_own_rows() -> None:
    made = HeadInTokens(2, 2, 2, 4.0, points=6)
    x = torch.tensor([[1.0, 0.5], [-0.25, 1.0]], dtype=f64)
    w_k, w_q, w_v = (
        torch.tensor(part, dtype=f64) for part in ([[1, -1], [0, 1]], [[1, 0], [2, 1]], [[0, -1.5], [1, 0]])
    )
    # x·W_Kᵀ has rows (½, ½) and (−5/4, 1); x·W_Qᵀ (1, 5/2) and (−¼, ½); x·W_Vᵀ (−¾, 1) and (−3/2, −¼).
    found, lift = made.audit(x, w_k, w_q, w_v), 1 + 1e-12  # each lifted over its own rounding
    assert found.scope == "run" and found.terms == made._certificate(2.25 * lift, 3.5 * lift, 1.5 * lift).terms


def test_entries_must_be_as_exact_as_scores_and_values_make_of_them() -> None:
    """1 + 2β·width·bound² = 19 last places of the bound; below that a tolerance is refused."""
    with pytest.raises(ToleranceTooTight) as caught:
        entry_tolerance(19 * U * 3.0 * 0.999, 3.0, 2, 0.5, f64)
    assert caught.value.smallest == rounded_up(19 * U * 3.0)
    assert entry_tolerance(19 * U * 3.0 * 1.001, 3.0, 2, 0.5, f64) > 0


def test_a_tolerance_is_named_with_two_digits_and_never_below_itself() -> None:
    assert [rounded_up(number) for number in (1.234e-5, 9.95, 2.0, 1.0001e-300)] == [1.3e-5, 10.0, 2.0, 1.1e-300]
    assert rounded_up(math.inf) == math.inf


def test_steps_in_context_are_what_was_asked_for_and_curvature_is_enclosed_where_errors_can_carry_residuals() -> None:
    options = {"step_size": 0.01, "l2": 0.5, "l1": 0.25, "dtype": f32}
    made = DescentInContext("squared", DOMAIN, steps=4000, points=5, grid="spectral", **options)
    step, plan, bound = made.step, made.plan, made.certificate.bound
    assert (step.step_size, step.l2, step.l1, step.head.w_k.dtype) == (0.01, 0.5, 0.25, f32)
    assert step.f.grid.way == "spectral" and step.f.keys <= 6
    assert bound == pytest.approx(math.sqrt(3) * 4000 * step.certificate.bound, rel=1e-4)
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


if __name__ == "__main__":
    write(RECORD, CASES)
