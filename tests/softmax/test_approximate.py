"""approximate(): keys, proofs and refusals, as promised."""

import math
import sys
import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from emulon.core.errors import BadExpression, EmulonError, OutOfDomain, ToleranceTooTight
from emulon.expressions import parse
from emulon.softmax import Approximation, approximate
from emulon.softmax.piecewise import Piecewise

TABLE = [
    ("t", (-1000, 1000), 1e-9, 32),
    ("tanh(t)", (-8, 8), 1e-10, 128),
    ("sin(10*t)", (-1, 1), 1e-10, 32),
    ("Max(t,0)", (-1, 1), 1e-6, 40),
    ("sign(t)*Max(Abs(t)-0.3,0)", (-1, 1), 1e-6, 60),
]


def observed(F: Approximation, s: torch.Tensor) -> float:
    """The largest error outside the bands, against f in double precision at the very numbers F was given."""
    s = s.to(F.grid.dtype).unique()
    s = s[(s.double() >= F.grid.lo) & (s.double() <= F.grid.hi)]
    for band in F.grid.bands:
        s = s[(s.double() <= band.lo) | (s.double() >= band.hi)]
    return (F(s).double() - F.function(s.double())).abs().max().item()


def points(F: Approximation, count: int = 20_001) -> torch.Tensor:
    return torch.linspace(F.grid.lo, F.grid.hi, count, dtype=torch.float64)


@pytest.mark.parametrize("f, interval, tolerance, most", TABLE)
def test_the_table_of_keys(f: str, interval: tuple, tolerance: float, most: int) -> None:
    start = time.process_time()
    F = approximate(f, interval, tolerance=tolerance)
    assert time.process_time() - start < 5  # 2 s on a machine of its own
    assert F.keys <= most and F.certificate.proved and F.certificate.bound <= tolerance
    assert observed(F, points(F)) <= F.certificate.bound
    assert F.values.abs().max() <= 30 * F.function(points(F)).abs().max()


@pytest.mark.parametrize("f", ["tanh(t)", "sigmoid", "tanh(3*t - 1)", "2 - 5/(1 + exp(-t/2))"])
@pytest.mark.parametrize("half", [0.5, 8, 300])
def test_logistic_functions_are_exactly_two_keys_on_any_range(f: str, half: float) -> None:
    F = approximate(f, (-half, half), tolerance=1e-11)
    assert (
        F.keys == 2 and F.certificate.bound < 1e-12 * max(1.0, half) and observed(F, points(F)) < 1e-14 * max(1, half)
    )


@pytest.mark.parametrize(
    "grid, f, tolerance", [("paper", "tanh(t)", 0.1), ("spectral", "gelu", 1e-8), ("piecewise", "gelu", 1e-6)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_way_keeps_the_tolerance(grid: str, f: str, tolerance: float, dtype: torch.dtype) -> None:
    tolerance = tolerance if dtype == torch.float64 else max(tolerance, 1e-3)
    F = approximate(f, (-3, 3), tolerance=tolerance, grid=grid, dtype=dtype)
    assert F.grid.way == grid and F.certificate.proved and F.certificate.bound <= tolerance
    assert F(torch.zeros(3)).dtype == dtype
    assert observed(F, points(F)) <= F.certificate.bound


def test_spectral_keys_grow_with_the_logarithm_and_paper_keys_with_the_inverse() -> None:
    spectral = [approximate("sin(3*t)", (-1, 1), tolerance=10.0**-k, grid="spectral").keys for k in (2, 4, 6, 8, 10)]
    assert all(later - earlier <= 8 for earlier, later in pairwise(spectral))
    paper = [
        approximate("sin(3*t)", (-1, 1), tolerance=tolerance, grid="paper").keys for tolerance in (0.4, 0.1, 0.025)
    ]
    assert all(2.5 < later / earlier < 6 for earlier, later in pairwise(paper))


def test_the_paper_grid_is_the_papers() -> None:
    F = approximate("tanh(t)", (-2, 2), points=9, grid="paper")
    nodes = torch.linspace(-2, 2, 9, dtype=torch.float64)
    spacing, beta = 0.5, 4 / (3 * 0.5**2) * math.log(8 * 4 / 0.5)
    torch.testing.assert_close(F.values, torch.tanh(nodes))
    torch.testing.assert_close(F.slopes, 2 * beta * nodes)
    torch.testing.assert_close(F.intercepts, -beta * nodes**2)
    weights = torch.softmax(-beta * (0.3 - nodes) ** 2, dim=0)
    torch.testing.assert_close(F(0.3), weights @ torch.tanh(nodes))
    assert F.certificate.bound < spacing and observed(F, points(F)) <= F.certificate.bound
    soft = approximate("tanh(t)", (-2, 2), points=9, grid="paper", beta=2.0)
    torch.testing.assert_close(soft.slopes, 4 * nodes)


@pytest.mark.parametrize(
    "f, dtype",
    [("t", torch.float32), ("sin(3*t)", torch.float32), ("sin(3*t)", torch.float64), ("Max(t, 0)", torch.float64)],
)
def test_points_are_used_but_not_exceeded_and_more_are_no_worse(f: str, dtype: torch.dtype) -> None:
    found = []
    for count in (5, 12, 33):
        F = approximate(f, (-1, 1), points=count, dtype=dtype)
        assert F.keys <= count and F.certificate.proved
        found.append(observed(F, points(F, 2001)))
        assert found[-1] <= F.certificate.bound
    assert all(later <= 2 * earlier + 1e-6 for earlier, later in pairwise(found))
    assert found[-1] < 0.1 * found[0] or found[0] < 1e-5


def test_too_few_points_for_the_pieces_are_refused() -> None:
    with pytest.raises(EmulonError, match="2 points are too few"):
        approximate("sign(t)*Max(Abs(t)-0.3,0)", (-1, 1), points=2)


@pytest.mark.parametrize(
    "f, interval, dtype",
    [
        ("t", (-1000, 1000), torch.float32),
        ("exp(t)", (-5, 5), torch.float64),
        ("Max(t,0)", (-1, 1), torch.float64),
        ("Heaviside(t - 0.3)", (-1, 1), torch.float32),
    ],
)
def test_a_tolerance_below_the_floor_is_refused_with_one_that_can_be_kept(
    f: str, interval: tuple, dtype: torch.dtype
) -> None:
    with pytest.raises(ToleranceTooTight, match=r"can promise .* loosen it") as refusal:
        approximate(f, interval, tolerance=1e-17, dtype=dtype)
    smallest = refusal.value.smallest
    scale = parse(f)(torch.linspace(*interval, 101, dtype=torch.float64)).abs().max().item()
    assert smallest < scale * (1e-3 if dtype == torch.float32 else 1e-8)
    assert ("or use float64" in str(refusal.value)) == (dtype == torch.float32)
    F = approximate(f, interval, tolerance=smallest, dtype=dtype)
    assert F.certificate.bound <= smallest and observed(F, points(F)) <= F.certificate.bound
    shown = float(str(refusal.value).split("can promise ")[1].split(",")[0])
    assert smallest <= shown <= 1.2 * smallest


def test_a_jump_is_right_outside_a_narrow_band_which_the_certificate_names() -> None:
    for dtype, most in ((torch.float32, 0.03), (torch.float64, 1e-4)):
        F = approximate("Piecewise((t, t < 0.3), (1, True))", (-1, 1), tolerance=1e-3, dtype=dtype)
        (band,) = F.certificate.bands
        assert band.lo < 0.3 <= band.hi and band.hi - band.lo < most
        assert f"outside ({band.lo:.6g}, " in str(F.certificate)
        assert observed(F, points(F)) <= F.certificate.bound <= 1e-3


@pytest.mark.parametrize("f, value", [("Heaviside(t, 1)", 1.0), ("Heaviside(t, 0)", 0.0)])
def test_the_jump_itself_is_promised_where_it_belongs_to_a_side(f: str, value: float) -> None:
    """A perceptron starts at w = 0, on the jump exactly."""
    F = approximate(f, (-1, 1), tolerance=1e-6)
    assert abs(F(0.0).item() - value) <= F.certificate.bound
    assert all(not band.lo < 0 < band.hi for band in F.certificate.bands)


def test_what_turns_too_often_on_a_part_of_the_interval_is_refused() -> None:
    """Found by random cases: 48,000 turns, of which 4,001 points tell a thousand."""
    with pytest.raises(BadExpression, match="turns at least"):
        approximate("sin(Max(t**7, atan(t)))", (-5.5, 5.5), points=2)


def test_a_segment_is_not_cut_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert approximate("cos(90*t)", (-1, 1), tolerance=1e-4, grid="piecewise").keys > 56
    monkeypatch.setattr("emulon.softmax.piecewise.MOST_PIECES", 1)
    with pytest.raises(BadExpression):
        approximate("cos(90*t)", (-1, 1), tolerance=1e-4, grid="piecewise")


def test_paper_grids_that_a_narrow_dtype_does_not_hold_are_not_weighed() -> None:
    """Slopes of many points are beyond float16: the search goes on to them, and comes back with those it holds."""
    with pytest.raises(ToleranceTooTight, match=r"can promise 7\.0e-03, not 1\.0e-03"):
        approximate("1", (0, 3), tolerance=1e-3, grid="paper", dtype=torch.float16)


def test_an_odd_function_on_mirrored_keys_is_odd_to_the_last_bit_so_that_half_of_them_need_be_read() -> None:
    keys = approximate("Min(Max(t, -1.35), 1.35)", (-6, 6), tolerance=1e-7).grid.numbers
    assert np.array_equal(keys.slopes, -keys.slopes[::-1]) and np.array_equal(keys.values, -keys.values[::-1])


def test_ends_that_float32_rounds_outwards_belong_to_the_proof() -> None:
    F = approximate("exp(3*t)", (-0.1, 0.3), tolerance=1e-3, dtype=torch.float32)
    end = torch.tensor(0.3, dtype=torch.float32)
    assert end.item() > 0.3 and F.grid.hi >= end.item()
    assert abs(F(end).item() - math.exp(3 * end.item())) <= F.certificate.bound


@pytest.mark.parametrize("s", [1.0001, -1.0001, math.nan, math.inf, torch.tensor([0.0, math.nan])])
def test_outside_the_interval_it_answers_nothing(s) -> None:
    F = approximate("t**2", (-1, 1), tolerance=1e-3)
    with pytest.raises(OutOfDomain, match=r"approximate on a wider interval|NaN or infinity"):
        F(s)


def test_its_repr_shows_what_it_does() -> None:
    text = repr(approximate("tanh(t)", (-8, 8), tolerance=1e-10))
    for part in ("'tanh(t)' on (-8, 8)", "spectral", "keys=2", "proved", "interpolation", "rounding"):
        assert part in text


@pytest.mark.parametrize(
    "arguments, error, reason",
    [
        ({"f": "1/t"}, BadExpression, "not finite and smooth at t = .*choose an interval"),
        ({"f": "sqrt(t)"}, BadExpression, "choose an interval"),
        ({"f": "tanh(t"}, BadExpression, "check brackets"),
        ({"f": "foo(t)"}, BadExpression, "unknown name"),
        ({"f": torch.tanh}, BadExpression, "a name or an expression"),
        ({"f": "exp(t)", "interval": (-700, 700)}, ToleranceTooTight, "can promise"),
        ({"f": "t**6", "interval": (-1e59, 1e59)}, BadExpression, "not finite at t = -1e"),
        ({"f": "1/t", "interval": (1e-300, 1)}, BadExpression, "not finite and smooth"),
        ({"f": "t", "interval": (-1e59, 1e59)}, ToleranceTooTight, r"can promise \S+e\+45, not 1.0e-03"),
        ({"f": "t", "interval": (-1e300, 1e300)}, OutOfDomain, "rescale"),
        ({"f": "t", "interval": (0, 1e-300)}, OutOfDomain, "rescale"),
        ({"f": "t", "interval": (-6e59, 6e59)}, OutOfDomain, r"hi − lo is 1.2e\+60"),
        ({"f": "t", "interval": (6e59, 1.5e60)}, OutOfDomain, r"\|t\| is 1.5e\+60"),
        ({"interval": (1, 1)}, OutOfDomain, "give lo < hi"),
        ({"interval": (2, 1)}, OutOfDomain, "give lo < hi"),
        ({"interval": (0, math.inf)}, OutOfDomain, "not finite"),
        ({"interval": (0, 1e200)}, OutOfDomain, "rescale"),
        ({"interval": (0, 1e-200)}, OutOfDomain, "rescale"),
        ({"f": "erf(t)", "interval": (-3e7, 3e7)}, BadExpression, "no grid came near it; try a smaller interval"),
        (
            {
                "f": "t*t",
                "interval": (0.0, 3e20),
                "tolerance": None,
                "points": 8,
                "grid": "piecewise",
                "dtype": torch.float32,
            },
            EmulonError,
            "8 points are too few",
        ),
        ({"f": "exp(1000*t)"}, BadExpression, "not finite at t = 0.7"),
        (
            {"f": "1/sinh(t)", "interval": (-1e8, 1e8)},
            BadExpression,
            "is not seen to exist .* choose a shorter interval",
        ),
        ({"f": "sin(t)", "interval": (-1e8, 1e8)}, BadExpression, "turns at least .* choose a shorter interval"),
        ({"f": "t + cos(t)", "interval": (-1e20, 1e20), "tolerance": 1e5}, BadExpression, "takes too long to prove"),
        (
            {"f": "Piecewise((0, t < 1), (1, t < 1 + 2e-16), (3, True))", "interval": (1 - 2e-16, 1 + 4e-16)},
            BadExpression,
            "so close to everything in .* choose a wider interval",
        ),
        ({"tolerance": None}, EmulonError, "either tolerance=… or points=…"),
        ({"points": 5}, EmulonError, "either tolerance=… or points=…"),
        ({"tolerance": 0.0}, EmulonError, "positive"),
        ({"tolerance": math.nan}, EmulonError, "positive"),
        ({"tolerance": None, "points": 0}, EmulonError, "at least 1"),
        ({"grid": "magic"}, EmulonError, "choose one of auto, paper, spectral, piecewise"),
        ({"beta": 2.0}, EmulonError, "give beta together with points"),
    ],
)
def test_bad_requests_are_refused_in_one_line(arguments: dict, error: type, reason: str) -> None:
    request = {"f": "tanh(t)", "interval": (-1, 1), "tolerance": 1e-3} | arguments
    with pytest.raises(error, match=reason) as refusal:
        approximate(**request)
    assert "\n" not in str(refusal.value)


def test_wide_and_large_functions_are_approximated_like_others(capfd: pytest.CaptureFixture[str]) -> None:
    for f, half, tolerance in (("t", 1e59, 1e50), ("t**4", 1e59, 1e230), ("1e-300*t", 1.0, 1e-305)):
        F = approximate(f, (-half, half), tolerance=tolerance)
        assert F.certificate.proved and observed(F, points(F, 201)) <= F.certificate.bound <= tolerance
    assert capfd.readouterr() == ("", "")


def test_functions_and_breaks_on_tiny_intervals_are_approximated_like_others() -> None:
    """What is near is a part of the interval, not of 1: breaks 5e-30 apart used to be one jump."""
    F = approximate("Max(-3e-30, Min(2e-30, t))", (-6e-30, 6e-30), tolerance=1e-33)
    assert not F.certificate.bands and len(F.function.breaks(-6e-30, 6e-30)) == 2
    assert observed(F, points(F, 201)) <= F.certificate.bound <= 1e-33


@pytest.mark.parametrize("f, asked, rounding", [("sign(t)", 1e-13, 1e249), ("Abs(t)", 2e290, 4e294)])
def test_tolerances_beyond_all_products_end_the_search_for_what_can_be_kept(f, asked, rounding) -> None:
    F = approximate(f, (-1, 1), tolerance=asked, rounding=lambda grid, deviation, size: rounding, best_effort=True)
    assert rounding <= F.certificate.bound < 1.1 * rounding
    assert all(band.lo < 0 < band.hi for band in F.certificate.bands)


def test_a_hopeless_kink_is_not_cut_into_a_staircase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth in ten million, in float32: only one key a piece rounds well, and pieces of those have no end."""
    cuts, plan = [], Piecewise._plan
    monkeypatch.setattr(Piecewise, "_plan", lambda self, *given: cuts.append(given) or plan(self, *given))
    with pytest.raises(ToleranceTooTight, match="can promise"):
        approximate("Max(-0.001, Min(0.001, t))", (-1e7, 1e7), tolerance=1e-7, dtype=torch.float32)
    assert len(cuts) < 100


def test_a_jump_that_samples_miss_is_not_approached_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proof met, not what was sampled, says which tolerance to try next."""
    proofs: list[object] = []
    module = sys.modules[approximate.__module__]
    prove = module.prove
    monkeypatch.setattr(module, "prove", lambda *a, **k: proofs.append(a) or prove(*a, **k))
    with pytest.raises(BadExpression, match="no grid came near it"):
        approximate("sign(t)", (-2.1, 2.1), tolerance=0.5, grid="paper")
    assert len(proofs) <= 3
