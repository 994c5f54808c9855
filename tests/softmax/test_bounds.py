"""Observed ≤ bound, always: random functions, intervals and tolerances, looked at where it is worst."""

import statistics

import numpy as np
import torch
from flint import arb, ctx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from emulon.core.errors import ToleranceTooTight
from emulon.softmax import Approximation, Grid, approximate

SMOOTH = [
    "t",
    "{a}*t + {b}",
    "tanh({a}*t)",
    "sin({a}*t + {b})",
    "exp({b}*t)",
    "t**2/{a} - t",
    "gelu",
    "log(9 + t)",
    "1/(5 + t)",
]
BROKEN = [
    "Max(t - {c}, 0)",
    "Abs({a}*t)",
    "sign(t)*Max(Abs(t) - {c}, 0)",
    "Min(Max(t, -{c}), {c})",
    "sign(t - {c})",
    "Piecewise((t, t < {c}), (2, True))",
]


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, tuple[float, float], float, torch.dtype]:
    numbers = {name: draw(st.integers(1, 30)) / 10 for name in "abc"}
    f = draw(st.sampled_from([*SMOOTH, *BROKEN])).format(**numbers)
    interval = (-draw(st.integers(1, 40)) / 10, draw(st.integers(1, 40)) / 10)
    if draw(st.booleans()):
        return f, interval, 10.0 ** -draw(st.integers(1, 3)), torch.float32
    return f, interval, 10.0 ** -draw(st.integers(2, 10)), torch.float64


def made(f: str, interval: tuple[float, float], tolerance: float, dtype: torch.dtype) -> Approximation:
    """Asked for too much, it is made as well as it can be."""
    try:
        return approximate(f, interval, tolerance=tolerance, dtype=dtype)
    except ToleranceTooTight as refusal:
        return approximate(f, interval, tolerance=refusal.smallest, dtype=dtype)


def suspicious(F: Approximation, rng: np.random.Generator) -> torch.Tensor:
    """Ends, random points, breaks, band edges and seams, and the floats next to each."""
    grid = F.grid
    s = np.linspace(grid.lo, grid.hi, 2001)
    top = (np.multiply.outer(s, grid.numbers.slopes) + grid.numbers.intercepts).argmax(axis=1)
    special = [grid.lo, grid.hi, *(b.at for b in F.function.breaks(grid.lo, grid.hi))]
    special += [edge for band in grid.bands for edge in (band.lo, band.hi)]
    special += s[1:][top[1:] != top[:-1]].tolist()
    steepest = max(float(np.ptp(grid.numbers.slopes)), 1e-9)
    near = np.concatenate([[0.0], np.geomspace(0.01, 40, 25) / steepest, np.geomspace(1e-16, 1e-2, 15)])
    around = np.add.outer(special, np.concatenate([-near, near])).ravel()
    drawn = torch.from_numpy(np.concatenate([s, around, rng.uniform(grid.lo, grid.hi, 500)])).to(grid.dtype)
    wide = drawn.double()
    inside = (wide >= grid.lo) & (wide <= grid.hi)
    for band in grid.bands:
        inside &= (wide <= band.lo) | (wide >= band.hi)
    return drawn[inside].unique()


def worst(F: Approximation, s: torch.Tensor, count: int = 6) -> float:
    """The largest |F(s) − f(s)|: found in double precision, settled in balls of 200 bits."""
    values = F(s).double()
    suspects = (values - F.function(s.double())).abs().argsort(descending=True)[:count]
    with ctx.workprec(200):
        errors = []
        for point, value in zip(s[suspects].double().tolist(), values[suspects].tolist(), strict=True):
            (signs,) = F.function.arb_branches(point, point)
            errors.append(float(abs(F.function.arb_series(arb(point), signs) - arb(value))))
    return max(errors)


@settings(max_examples=16, phases=[Phase.explicit, Phase.generate])
@given(request=requests(), seed=st.integers(0, 1000))
def test_no_error_is_above_its_bound(request: tuple, seed: int) -> None:
    F = made(*request)
    assert F.certificate.proved
    assert worst(F, suspicious(F, np.random.default_rng(seed))) <= F.certificate.bound
    assert F.values.abs().max() <= 31 * F.function(torch.linspace(F.grid.lo, F.grid.hi, 4001).double()).abs().max()


def test_bounds_are_within_a_hundred_of_the_worst_that_is_found() -> None:
    """Where interpolation rules. The bound is the proof's, which is tight, and hardly any rounding."""
    rng = np.random.default_rng(0)
    cases = [
        ("sin(3*t)", 1e-6),
        ("exp(t)", 1e-8),
        ("gelu", 1e-5),
        ("Max(t, 0)", 1e-4),
        ("t", 1e-9),
        ("sign(t)*Max(Abs(t) - 0.3, 0)", 1e-5),
        ("log(3 + t)", 1e-7),
    ]
    ratios = []
    for f, tolerance in cases:
        F = approximate(f, (-2, 2), tolerance=tolerance)
        assert F.certificate.terms["interpolation"] > F.certificate.terms["rounding"]
        ratios.append(F.certificate.bound / worst(F, suspicious(F, rng)))
    assert max(ratios) < 10 and statistics.median(ratios) < 3 and min(ratios) >= 1


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), keys=st.integers(1, 40), steepness=st.sampled_from([1.0, 30.0, 1e3, 1e5]))
def test_rounding_stays_within_its_bound_for_any_keys(seed: int, keys: int, steepness: float) -> None:
    """Random keys in float32, evaluated by torch's softmax and in float64: what rounding adds, and nothing else."""
    rng = np.random.default_rng(seed)
    parts = (steepness * rng.normal(size=keys), steepness * rng.normal(size=keys), 10 * rng.normal(size=keys))
    grid = Grid.stored(*parts, torch.float32, -1.0, 1.0, "random")
    s = torch.linspace(-1, 1, 4001)
    computed = torch.softmax(torch.outer(s, grid.slopes) + grid.intercepts, dim=-1) @ grid.values
    weights = grid.numbers.weights(s.double().numpy())
    exact = weights @ grid.numbers.values
    deviation = float((weights * np.abs(grid.numbers.values - exact[:, None])).sum(axis=1).max())
    bound = grid.rounding_error(deviation, float(np.abs(exact).max()))
    assert np.abs(computed.double().numpy() - exact).max() <= bound
    assert bound <= 2.5 * np.abs(grid.numbers.values).max()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), keys=st.integers(1, 20), steepness=st.sampled_from([0.1, 3.0, 300.0, 1e7]))
def test_the_log_normaliser_stays_within_its_range(seed: int, keys: int, steepness: float) -> None:
    rng = np.random.default_rng(seed)
    lo, hi = np.sort(rng.uniform(-3, 3, 2)).tolist()
    a, b = steepness * rng.normal(size=keys), steepness * rng.normal(size=keys)
    grid = Grid.stored(a, b, np.zeros(keys), torch.float64, lo, hi, "random")
    scores = np.multiply.outer(np.linspace(lo, hi, 20_001), a) + b
    top = scores.max(axis=1)
    logs = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    slack = 2e-9 * (1 + grid.score_size)
    steepest_step = np.abs(a).max() * (hi - lo) / 20_000
    assert np.ptp(logs) <= grid.log_normaliser_range <= np.ptp(logs) + steepest_step + slack
