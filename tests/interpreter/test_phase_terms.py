"""Terms of one application of the interpreter, worked out a second time by hand: each is what its docstring says."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from emulon.attention.codes import Codes
from emulon.certify import Domain
from emulon.certify.interpolation import Interpolation
from emulon.interpreter import identity_grid as room
from emulon.interpreter.identity_grid import MATTERS, ErrorBound, IdentityGrid
from emulon.interpreter.phase import (
    Carried,
    Phase,
    ProvedBounds,
    code_error,
    leaked,
    phase_terms,
    product_error,
    reading_scale,
    score_error,
)
from emulon.softmax import Grid

f32, f64 = torch.float32, torch.float64
DTYPES = {f64: 2.0**-53, f32: 2.0**-24}
DOMAIN = Domain(samples=5, features=3, x=2.0, y=1.0, w=0.5)
HELD = Carried(step=0.25, shrink=-0.8, momentum=0.15, fixed=0.3)
PROVED = ProvedBounds(interpolation=3e-4, deviation=0.7, size=1.5, leak=2e-5, proved=True)


def grid(dtype: torch.dtype) -> Grid:
    return Grid.stored(
        np.array([-3.0, 1.0, 2.5]), np.array([0.5, -0.25, 0.0]), np.array([1.0, -4.0, 2.0]), dtype, -2.0, 1.5, ""
    )


def phase(readout: str, dtype: torch.dtype = f64, domain: Domain = DOMAIN) -> Phase:
    codes = Codes(0.9 * torch.eye(5, dtype=dtype), 0.5)
    return Phase.of("made", readout, grid(dtype), domain, codes, 64.0)


def line(dtype: torch.dtype, worst: float) -> IdentityGrid:
    """Wide awake only at powers of two: errors that differ from one magnitude to the next."""
    reaches = tuple(2.0**k for k in range(-4, 8))
    return IdentityGrid(grid(dtype), reaches, tuple(worst * (k + 1) for k in range(12)), (0.0,) * 12)


def gamma(count: int, u: float) -> float:
    return count * u / (1 - count * u)


def products(line: IdentityGrid, key: float, query: float) -> float:
    """The worst of (key + a)·(query + b) − key·query, |a| and |b| what the line may err by."""
    key, query, *off = map(Fraction, (key, query, line.error(key), line.error(query)))
    corners = ((key + a * off[0]) * (query + b * off[1]) for a, b in product((-1, 1), (-1, 1)))
    return float(max(abs(corner - key * query) for corner in corners))


def scores(made: Phase, line: IdentityGrid, u: float) -> tuple[float, float]:
    """How far the grid's part of a score may be off, and the codes'."""
    x, y, bias = made.scales.x, made.scales.y, made.scales.bias
    emulated = 3 * products(line, 3 * 2.0 * x, 0.5 / x) + products(line, 0.5 * bias, 1 / bias)
    if made.domain.y:
        emulated += products(line, 3 * made.domain.y * y, 1 / y)
    magnitude = 3 * made.domain.absolute + 0.5 + 64 * 1.001
    width = max(3 + 2 + 5, 2 * 3)
    code = 8 * made.codes.vectors.max().item()
    return emulated + gamma(width + 1, u) * magnitude, 5 * products(line, code, code)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("readout", ["mean", "sum", "rest"])
@pytest.mark.parametrize("worst", [1e-9, 1e-3])
@pytest.mark.parametrize("y", [1.0, 0.0])
def test_every_term_is_what_it_is_made_of(dtype, readout, worst, y) -> None:
    made, known, u = phase(readout, dtype, replace(DOMAIN, y=y)), line(dtype, worst), DTYPES[dtype]
    own, codes = scores(made, known, u)
    assert score_error(made, known) == pytest.approx(own, rel=1e-9, abs=0.0)
    assert code_error(made, known) == pytest.approx(codes, rel=1e-6, abs=0.0)
    # The codes have a tenth to spare; an error of δ in every score changes odds by e^{2δ}.
    leak = min(1.0, 2e-5 * math.exp(max(0.0, 2 * (own + codes) - 0.1)))
    assert leaked(made, PROVED, known) == pytest.approx(leak, rel=1e-6, abs=0.0)
    assert (leak > 2.1e-5) == (worst == 1e-3)
    rounded = made.grid.rounding_error(0.7, 1.5, 0.0)
    emulated = made.grid.rounding_error(0.7, 1.5, own) - rounded
    value, state = 0.25 * (4.0 * 2.0 + 0.3), (0.8 + 0.3) * 0.5
    scales = [1.0 if dtype == f64 else 2.0 ** math.floor(math.log2(16 / size)) for size in (value, state)]
    scales[1] *= 4 if readout == "rest" else 1
    copies, entry = 1 if readout == "mean" else 5, 0.25 * 2.0
    terms = {
        "interpolation": entry * 3e-4,
        "routing leak": copies * leak * (entry * (4.0 + 1.5) + 2 * 0.25 * 0.3),
        "emulated scores": entry * emulated,
        "emulated values": copies * known.error(value * scales[0]) / scales[0]
        + (known.error(state * scales[1]) / scales[1] if readout != "sum" else 0.0),
        "rounding": entry * rounded
        + 2 * gamma(3 + 2, u) * (state + 0.25 * 0.3)
        + gamma(5 + 2, u) * (state + entry * 1.5 + 0.25 * 0.3),
    }
    found = phase_terms(made, PROVED, known, HELD)
    assert found == pytest.approx({name: value * (1 + gamma(7, u)) for name, value in terms.items()}, rel=1e-8, abs=0.0)


def test_errors_of_factors_multiply_too() -> None:
    known = IdentityGrid(grid(f64), (1.0, 8.0), (0.25, 0.5), (0.0, 0.0))
    assert product_error(known, 4.0, 1.0, 3) == 3 * ((4.0 + 0.5) * (1.0 + 0.25) - 4.0)


@pytest.mark.parametrize("size, scale", [(0.4, 32.0), (16.0, 1.0), (16.1, 0.5), (100.0, 0.125)])
def test_in_float32_rows_are_read_at_sixteen(size: float, scale: float) -> None:
    assert reading_scale(size, f32) == scale and reading_scale(size, f64) == 1.0 == reading_scale(0.0, f32)


def test_magnitudes_are_the_largest_entries_of_prompts_and_heads() -> None:
    made = phase("mean", domain=replace(DOMAIN, y=8.0))
    made = replace(made, grid=replace(made.grid, intercepts=16 * made.grid.intercepts))
    assert 1.0 not in (made.scales.y, made.scales.bias)
    rows = made.data_rows(torch.full((5, 3), 2.0, dtype=f64), torch.full((5,), 8.0, dtype=f64))
    asked = made.query_rows(torch.full((3,), 0.5, dtype=f64))
    sizes = made.magnitudes(HELD)
    for name, part in (rows | asked).items():
        if name in sizes and name != "value":
            assert sizes[name] == pytest.approx(part.abs().max().item(), rel=1e-12), name
    assert sizes["value"] == pytest.approx(0.25 * (4.0 * 2.0 + 0.3)) and sizes["state"] == pytest.approx(0.55)
    assert made.capacity(sizes).reach == max(sizes.values()) and made.width == 10
    assert replace(made, domain=replace(made.domain, features=20)).width == 40


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("readout", ["mean", "sum", "rest"])
def test_values_hold_a_step_and_what_is_carried_and_are_read_out_as_that(readout: str, dtype: torch.dtype) -> None:
    made, draw = phase(readout, dtype), torch.Generator().manual_seed(0)
    value, fixed, state, before = torch.randn(4, 5, 3, dtype=f64, generator=draw).to(dtype)
    state, before = state[:1].expand(5, 3), before[:1].expand(5, 3)
    tokens = torch.zeros(5, made.slots.width, dtype=dtype)
    for name, part in (("value", value), ("fixed", fixed), ("state", state), ("before", before)):
        tokens[:, made.slots[name]] = part
    found = made.read_out(tokens @ made.weights(HELD)[2].mT, HELD)
    step = -0.25 * (value - fixed)
    answer = step.mean(dim=0) if readout == "mean" else step.sum(dim=0)
    carried = (-0.8 + 0.15) * state[0] - 0.15 * before[0]
    wanted = answer if readout == "sum" else answer + carried
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-14 if dtype == f64 else 1e-5)


def test_its_beginning_keeps_the_first_codes_and_the_strength_of_all() -> None:
    made = phase("mean")
    first = made.beginning(2)
    assert first.domain.samples == 2 and torch.equal(first.codes.vectors, made.codes.vectors[:2])
    assert (first.strength, first.codes.gap, first.tokens) == (made.strength, made.codes.gap, 6)


def test_no_more_than_all_leaks_however_far_scores_are_off() -> None:
    assert leaked(phase("mean"), replace(PROVED, leak=1e-200), line(f64, 1e3)) == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_line_is_off_by_its_proof_its_scores_its_sums_and_what_is_lost(dtype) -> None:
    u, known = DTYPES[dtype], Interpolation(error=3e-7, attained=0.0, deviation=0.5, size=2.0)
    for delta, lost in ((1e-6, 1e-9), (1e-9, 1e-6)):
        moved = min(math.tanh(delta / 2) * 16.0, math.exp(delta) * math.expm1(delta) * (0.5 + lost))
        wanted = 3e-7 + moved + 2 * gamma(7 + 2, u) * (2.0 + 0.5 + lost) + lost + u * 2.0
        assert ErrorBound(delta, 7, 8.0, lost).error(known, 2.0, dtype) == pytest.approx(wanted, rel=1e-9, abs=0.0)
    # Where values deviate by more than they can, the average moves by what all of them span, from −8 to 8.
    wide = 3e-7 + math.tanh(5e-7) * 16.0 + 2 * gamma(7 + 2, u) * (2.0 + 100.0) + u * 2.0
    found = ErrorBound(1e-6, 7, 8.0, 0.0).error(replace(known, deviation=100.0), 2.0, dtype)
    assert found == pytest.approx(wide, rel=1e-9, abs=0.0)


# (slope, intercept, value) of a third key that does not matter, how far it is below, and the largest of other values.
FAR = {
    "its share": (f32, (2.0**20, -(2.0**20) - 50, 4e18), 52.25, 1.3),
    "what it replaces": (f32, (2.0**20, -(2.0**20) - 50, 0.0), 52.25, 1e15),
    "scores that say nothing": (f32, (2.0**31, -(2.0**31) - 256, 4e18), 258.25, 1.3),
    "weights that vanish": (f64, (0.0, -200.0, 4e18), 202.25, 1.3),
}


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize(("terms", "absolute"), [(3, 0.0), (9, 5.0), (3, 50.0)])
def test_scores_are_as_uncertain_as_their_keys_are_large_and_shares_as_those_of_any_key(
    name: str, terms: int, absolute: float, monkeypatch
) -> None:
    """Two keys matter, with scores 1½ − 3s and ¼ + 2s; of a proof only deviation and size are left."""
    known = Interpolation(error=0.0, attained=0.0, deviation=0.5, size=2.0)
    monkeypatch.setattr(room, "proved_between", lambda numbers, lo, hi: known)
    dtype, (slope, intercept, value), below, largest = FAR[name]
    u, reach = DTYPES[dtype], max(1.0, absolute)
    far = Grid.stored(
        np.array([-3.0, 2.0, slope]),
        np.array([1.5, 0.25, intercept]),
        np.array([-largest, 1.3, value]),
        dtype,
        -1.0,
        1.0,
        "",
    )
    delta, any_delta = (
        gamma(terms + 1, u) * size + (4 + min(2 * size, 64.0)) * u
        for size in (3 * reach + 1.5, max(3 * reach + 1.5, slope * reach - intercept))
    )
    largest = float(torch.tensor(largest, dtype=dtype))
    share = math.exp(-below) * (1 + math.exp(min(2 * any_delta, 700.0)))
    lost = 1.01 * share * (value + largest) + 3 * 2 * math.exp(-64) * max(value, largest)
    wanted = ErrorBound(delta, 2, largest, lost).error(known, 1.0, dtype)
    found, _ = room._certified(far, 0.0, 1.0, terms, absolute)
    # Of scores as large as 2³¹ it is less sure how far below they are.
    assert found == pytest.approx(wanted, rel=1e-4 if slope > 2.0**30 else 1e-6, abs=0.0)


@pytest.mark.parametrize("samples", [1, 2, 12, 500])
def test_for_other_samples_codes_are_as_strong_as_the_leak_asks_for(samples: int) -> None:
    """All others together, as far ahead as the normaliser's range lets them, weigh the leak less what is spared."""
    made = phase("mean").for_samples(samples, 1e-6)
    assert made.domain.samples == samples == len(made.codes.vectors) and made.readout == "mean"
    ahead = made.grid.log_normaliser_range - made.strength * made.codes.gap
    assert max(samples - 1, 1) * math.exp(ahead) == pytest.approx(1e-6 * math.exp(-0.1), rel=1e-9, abs=0.0)


def test_keys_that_hardly_matter_are_counted_by_their_shares_on_either_side() -> None:
    """The third key is 48½ below on the right and further on the left; values up to 4,000,000 make that felt."""
    far = Grid.stored(
        np.array([-1.0, 1.0, 200.0]), np.array([0.0, 0.0, -247.5]), np.array([-1.3, 1.3, 4e18]), f64, -1.0, 1.0, ""
    )
    u, share = 2.0**-53, math.exp(-48.5)
    assert math.exp(-MATTERS) < 1e-20
    for terms, absolute in ((3, 0.0), (9, 5.0)):
        size = max(1.0, absolute)
        delta = gamma(terms + 1, u) * size + (4 + min(2 * size, 64.0)) * u
        others = gamma(terms + 1, u) * (200 * size + 247.5) + (4 + 64.0) * u
        lost = 1.01 * share * (1 + math.exp(2 * others)) * (4e18 + 1.3) + 3 * 2 * math.exp(-64) * 4e18
        known = max(
            (room.proved_between(far.numbers, *side) for side in ((0.0, 1.0), (-1.0, 0.0))), key=lambda k: k.error
        )
        error, exact = room._certified(far, 0.0, 1.0, terms, absolute)
        assert exact == known.error
        assert error == pytest.approx(ErrorBound(delta, 2, 1.3, lost).error(known, 1.0, f64), rel=1e-6, abs=0.0)


def test_rows_of_many_terms_are_bounded_band_by_band() -> None:
    short = room.identity_grid(200.0)
    bands = [(0.0, 16.0), (16.0, 32.0), (32.0, 256.0)]
    each = [room._certified(short.grid, lo, hi, 40, 900.0)[0] for lo, hi in bands]
    assert short.error(10.0, 40, 900.0) == each[0] and short.error(250.0, 40, 900.0) == max(each)
    assert short.error(10.0, 3, 16.0 + 900) > short.error(10.0) and short.error(257.0, 40) == math.inf
    assert list(short.errors) == pytest.approx(
        np.maximum.accumulate([room._certified(short.grid, *b)[0] for b in bands])
    )


def test_pieces_cover_their_magnitudes_and_a_little_of_their_neighbours() -> None:
    assert room.covered(0) == (-32 * 1.08, 32 * 1.08)
    assert room.covered(1) == (32 * 0.92, 32 * 8.08) and room.covered(2) == (256 * 0.92, 256 * 8.08)
    assert room.bands(1) == [(0.0, 16.0), (16.0, 32.0), (32.0, 256.0)]
    assert [room.octaves_for(reach) for reach in (1.0, 32.0, 32.1, 256.0, 257.0)] == [0, 0, 1, 1, 2]
