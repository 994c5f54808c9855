"""The bounds of looped Newton–Schulz steps, term by term: recursions worked out by hand, and exact small problems."""

import math

import pytest
import torch
from exact_solvers import U, gamma

from emulon.certify import Domain, Spectrum
from emulon.looped.newton import (
    ROOM,
    LoopedNewton,
    NewtonAudit,
    inverse_norm,
    newton_errors,
    newton_stencils,
    start_scale,
)

f64 = torch.float64
DOMAIN = Domain(4, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))


def test_scales_and_reaches_are_those_of_the_spectrum() -> None:
    """α = 1/(4·2)², granted 2e-9 of the largest; ‖MXᵀ‖ ≤ 1/√(4·¼) = 1; leverages up to 1 and a 64th."""
    assert start_scale(DOMAIN) == pytest.approx(1 / (8 * (1 + 2e-9)) ** 2, rel=1e-14)
    assert inverse_norm(DOMAIN) == 1.0 and ROOM == 1 / 64
    other = Domain(4, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 0.5, 1.5))
    assert inverse_norm(other) == pytest.approx(1 / math.sqrt(2)) and start_scale(other) == start_scale(DOMAIN)
    assert newton_stencils(other, 2, 10, f64)[2].reach == pytest.approx(1.5 / math.sqrt(2) * (1 + 1 / 64), rel=1e-14)
    start, step, answer = newton_stencils(DOMAIN, 2, 10, f64)
    assert start.reach == pytest.approx(2.25 * (1 + 3e-9), rel=1e-14) and step.reach == 1 + 1 / 64
    assert answer.reach == pytest.approx(1.5 * (1 + 1 / 64), rel=1e-14)
    assert (start.cauchy, step.cauchy, answer.cauchy) == (1.0, pytest.approx(1.5), 1.0)
    assert {(one.tokens, one.summed, one.width) for one in (start, step, answer)} == {(10, 4, 3)}
    # Many samples make leverages short, and yet Σ|q·k| may be as large as the largest score.
    many = Domain(16, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 1.0, 1.5))
    assert newton_stencils(many, 2, 34, f64)[1].cauchy == 1.0


def test_errors_inside_and_outside_of_the_columns_grow_as_the_proof_says() -> None:
    start, step, _ = stencils = newton_stencils(DOMAIN, 3, 10, f64)
    top, low = 8 * (1 + 2e-9), 4 * (0.25 - 2e-9)
    alpha, columns = start_scale(DOMAIN), math.sqrt(4 * top)
    # Every entry of αSXᵀ: what the stencil errs by for Σ|x| ≤ √(N·top), and its rounding; √(N·d) entries.
    inside = alpha * math.sqrt(8) * (start.error(columns) + 4 * U * 2.25 * columns)
    outside, least, norm = inside, alpha * low**2, math.sqrt(2 / top)
    wanted = [2 * inside]
    for _ in range(7):
        size = norm + inside + outside
        shock = 4 * size * step.reach * step.relative + 8 * U * 3 * size
        curve = math.sqrt(top) * inside
        inside, outside = inside * (2 - 2 * least + curve) + shock, outside * (2 - least + curve) + shock
        least, norm = least * (2 - least), min(2 * norm, math.sqrt(2 / low))
        wanted.append(inside + outside)
    assert newton_errors(DOMAIN, stencils, 7) == pytest.approx(wanted, rel=1e-12, abs=0.0)
    # Once leverages may be more than a 64th too large, and where nothing is known of the smallest, nothing is promised.
    blind = Domain(4, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 1e-9, 1.5))
    assert newton_errors(blind, stencils, 2) == [math.inf] * 3
    for norm in (1.5, 0.75):
        domain = Domain(4, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, norm))
        coarse = newton_errors(domain, newton_stencils(domain, 1, 10, torch.float32), 9)
        lost = next(k for k, error in enumerate(coarse) if norm * error > 1 / 64)
        assert len(coarse) == 10 and lost > 0 and coarse[lost] < math.inf
        assert coarse[lost + 1 :] == [math.inf] * (9 - lost)


def test_a_prediction_is_off_by_the_inverse_and_by_its_own_readout() -> None:
    made = LoopedNewton(DOMAIN, horizon=3)
    _, _, answer = newton_stencils(DOMAIN, made.pairs, made.tokens, f64)
    own = answer.error(4 * 3.0)
    for error in (1e-3, 0.0):
        found = made._certificate(made.pairs, error)
        assert found.bound == pytest.approx(error * 1.5 * 2 * 3.0 + own, rel=1e-12, abs=0.0)
        answers = sum(value for name, value in found.terms.items() if name.startswith("answer"))
        assert answers == pytest.approx(own, rel=1e-12, abs=0.0)
    assert made.tokens == 10 and made.slots.size("code") == 3  # of four samples and the query


def test_nothing_is_promised_of_an_answer_whose_scores_may_leave_their_reach() -> None:
    """x_query·m̂ ≤ norm·(‖m‖ + error), and the answer's heads reach a 64th beyond norm·‖m‖, here 1.5·½."""
    domain = Domain(16, 2, 1.5, 3.0, 0.0, spectrum=Spectrum(2.0, 0.25, 1.5))
    made = LoopedNewton(domain, horizon=3)
    assert made._certificate(made.pairs, 0.5 / 64).bound < math.inf
    assert made._certificate(made.pairs, 0.5 / 64 * (1 + 1e-9)).bound == math.inf


def test_an_exact_run_is_off_by_what_its_check_rounds() -> None:
    """x = 2, α = 1/64: P = 1/8 and then 2/8 − 2/64, without any rounding; p = 1/4 at first."""
    audit, ops, tilt = NewtonAudit(torch.tensor([[2.0]], dtype=f64), 1 / 64), gamma(10), 2 * gamma(12)
    audit.watch(torch.tensor([[0.125]], dtype=f64), start=True)
    room = ops / 64 * 8
    inside, outside = room * (1 + tilt) * (1 + 1e-9), room * (1 + 1e-9)
    assert audit.inside.item() == pytest.approx(inside, rel=1e-12, abs=0.0)
    assert audit.outside.item() == pytest.approx(outside, rel=1e-12, abs=0.0)
    audit.watch(torch.tensor([[0.21875]], dtype=f64))
    room = ops * (3 * 0.125 + 0.125**2 * 2)
    inside = ((2 - 2 * 0.25 + 2 * inside) * inside + room * (1 + tilt)) * (1 + 1e-9)
    outside = ((2 - 0.25) * outside + room) * (1 + 1e-9)
    assert audit.inside.item() == pytest.approx(inside, rel=1e-10, abs=0.0)
    assert audit.outside.item() == pytest.approx(outside, rel=1e-10, abs=0.0)
    assert audit.least.item() == pytest.approx(0.25 * 1.75, rel=1e-12)
    query, ys = torch.tensor([3.0], dtype=f64), torch.tensor([0.5], dtype=f64)
    # P̂ = 7/32: the prediction is 3·7/32·½, and its check rounds γ times its sizes.
    found = audit.answer(ys, query, torch.tensor(0.328125, dtype=f64)).item()
    assert found == pytest.approx(ops * 3 * 0.5 * 0.21875, rel=1e-12, abs=0.0)
    off = audit.answer(ys, query, torch.tensor(0.25, dtype=f64)).item()
    assert off == pytest.approx(0.078125, rel=1e-12)


def test_a_basis_that_is_tilted_by_rounding_lets_errors_through() -> None:
    """2·√d·γ_{12Nd}·√(top/low) of all there is: singular values 2 and ½, three samples."""
    rows = torch.tensor([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]], dtype=f64)
    audit, tilt = NewtonAudit(rows, 1.0), 2 * math.sqrt(2) * gamma(72) * 4
    assert audit.tilt.item() == pytest.approx(tilt, rel=1e-9, abs=0.0)
    start = rows.mT @ rows @ rows.mT
    across = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=f64)
    audit.watch(start + 1e3 * across, start=True)
    room = gamma(3 + 2 + 8) * math.sqrt(4.25) ** 3
    assert audit.inside.item() == pytest.approx(1e3 * tilt + room, rel=1e-6, abs=0.0)
    explained = torch.tensor([3.0, 4.0, 0.0], dtype=f64)
    found = audit.carried(explained, torch.tensor([0.0, 2.0], dtype=f64)).item()
    assert found == pytest.approx(2 * (audit.inside.item() * 5 + audit.outside.item() * tilt * 5), rel=1e-6, abs=0.0)


def test_errors_along_the_columns_and_across_them_are_carried_apart() -> None:
    """X = (1, 2, 2), p = 1/4: an error of 1e-3 along X, one of 1e-2 across it, then an exact step."""
    rows = torch.tensor([[1.0], [2.0], [2.0]], dtype=f64)
    along, across = rows.mT / 3, torch.tensor([[2.0, -1.0, 0.0]], dtype=f64) / math.sqrt(5)
    audit = NewtonAudit(rows, 1 / 324)
    iterate = rows.mT / 36 + 1e-3 * along + 1e-2 * across
    audit.watch(iterate, start=True)
    whole = math.hypot(1e-3, 1e-2)
    assert audit.inside.item() == pytest.approx(1e-3, rel=1e-8) and audit.outside.item() == pytest.approx(
        whole, rel=1e-8
    )
    audit.watch(2 * iterate - iterate @ rows @ iterate)
    curve = 3 * 1e-3
    inside, outside = (2 - 2 * 0.25 + curve) * 1e-3, (2 - 0.25 + curve) * whole
    assert audit.inside.item() == pytest.approx(inside, rel=1e-7)
    assert audit.outside.item() == pytest.approx(outside, rel=1e-7)
    # Labels 2 along X and 3 across: all of them meet what is inside, and only those across what is outside.
    ys, query = (2 * along + 3 * across).squeeze(0), torch.tensor([-0.5], dtype=f64)
    wanted = 0.5 * (inside * math.sqrt(13) + outside * 3)
    assert audit.carried(ys, query).item() == pytest.approx(wanted, rel=1e-7)
    explained = audit.carried((2 * along).squeeze(0), query).item()
    assert explained == pytest.approx(0.5 * inside * 2, rel=1e-7)
    blind = NewtonAudit(torch.zeros(3, 1, dtype=f64), 1.0)
    blind.watch(torch.zeros(1, 3, dtype=f64), start=True)
    assert blind.inside.item() == blind.outside.item() == math.inf
