"""The bounds of looped Newton–Schulz steps, term by term: recursions worked out by hand, and exact small problems."""

import math

import pytest
import torch
from exact_solvers import U

from emulon.certify import Domain, Spectrum
from emulon.looped.newton import (
    ROOM,
    LoopedNewton,
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
