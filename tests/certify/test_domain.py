"""Data outside the domain is refused, with the name of what is outside; eigenvalues are enclosed with certainty."""

import math
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulon import Domain
from emulon.certify import Spectrum
from emulon.certify.domain import (
    BLOCK,
    SLACK,
    _above,
    by_target,
    eigenvalues,
    enclosure,
    largest_eigenvalue,
    require_shape,
    require_within,
    smallest_eigenvalue,
)
from emulon.core.errors import BadShape, OutOfDomain

f64 = torch.float64
DOMAIN = Domain(samples=3, features=2, x=2.0, y=1.0, w=0.5)


def data(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    good = {"x": torch.full((3, 2), 2.0), "y": torch.full((3,), -1.0), "w": torch.full((2,), 0.5)}
    return good | changed


def regression(samples: int, features: int, batch: tuple[int, ...] = ()) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    shapes = ((*batch, samples, features), (*batch, samples), (*batch, features))
    return tuple(torch.randn(shape, generator=draw, dtype=f64) for shape in shapes)


def test_other_bounds_follow_from_those_on_entries_where_these_say_more() -> None:
    assert DOMAIN.residual == DOMAIN.absolute == DOMAIN.widest == 2 * 2.0 * 0.5 + 1.0
    loose = Domain(3, 2, x=2.0, y=1.0, w=0.5, residual=100.0, absolute=3.5)
    assert (loose.residual, loose.absolute) == (3.0, 3.0)
    domain = Domain(5, 4, 2.0, 1.0, 1.0)
    assert (domain.norm, domain.largest, domain.smallest) == (4.0, 16.0, 0.0)
    assert (replace(domain, x=3.0).norm, replace(domain, x=3.0).largest) == (6.0, 36.0)


@pytest.mark.parametrize("name", ["x", "y", "w"])
def test_data_at_the_very_edges_is_inside_and_what_is_beyond_or_not_finite_is_refused_by_name(name: str) -> None:
    DOMAIN.check(**data())
    DOMAIN.check(x=torch.full((5, 4, 3, 2), -2.0), y=torch.ones(5, 4, 3), w=torch.full((5, 4, 2), -0.5))
    beyond = data()[name].double()
    beyond.view(-1)[-1] *= 1 + 1e-12
    with pytest.raises(OutOfDomain, match=rf"\|{name}\| reaches .* rescale or build a wider domain"):
        DOMAIN.check(**data(**{name: beyond}))
    for bad in (math.nan, math.inf, -math.inf):
        beyond.view(-1)[0] = bad
        with pytest.raises(OutOfDomain, match=f"{name} contains NaN or infinity"):
            DOMAIN.check(**data(**{name: beyond}))


@pytest.mark.parametrize("name, shape", [("x", (2, 3)), ("x", (2,)), ("y", (2,)), ("y", ()), ("w", (3,)), ("w", ())])
def test_wrong_shapes_are_refused_with_the_wanted_one(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(BadShape, match=rf"{name} has shape .* wanted \(\.\.\., "):
        DOMAIN.check(**data(**{name: torch.zeros(shape)}))


@given(seed=st.integers(0, 10**6), batch=st.integers(1, 3), scale=st.floats(1e-3, 1e3))
def test_the_domain_of_data_holds_that_data_tightly(seed: int, batch: int, scale: float) -> None:
    g = torch.Generator().manual_seed(seed)
    x, y, w = (scale * torch.randn(batch, *shape, generator=g) for shape in ((4, 3), (4,), (3,)))
    domain = Domain.of(x, y, w)
    domain.check(x, y, w)
    assert (domain.samples, domain.features) == (4, 3)
    assert (domain.x, domain.y, domain.w) == tuple(part.abs().max().item() for part in (x, y, w))


REFUSED = [
    (lambda: Domain.of(torch.full((3, 2), math.nan), torch.zeros(3)), "x contains NaN"),
    (lambda: Domain.of(torch.zeros(3, 2), torch.zeros(2)), "samples, features"),
    (lambda: Domain.of(torch.zeros(3), torch.zeros(())), "samples, features"),
    *((lambda w=w: Domain.of(torch.ones(3, 2), torch.ones(3), w), "w must be") for w in (math.nan, math.inf, -1.0)),
    (lambda: Domain.of(torch.ones(3, 2), torch.ones(3), torch.tensor([1.0, math.nan])), "bound w must be"),
    (lambda: Domain(0, 2, 1.0, 1.0, 1.0), "at least one of samples"),
    (lambda: Domain(2, 0, 1.0, 1.0, 1.0), "at least one of features"),
    (lambda: Domain(2, 2, -1.0, 1.0, 1.0), "bound x must be"),
    (lambda: Domain(2, 2, 1.0, math.nan, 1.0), "bound y must be"),
    (lambda: Domain(2, 2, 1.0, 1.0, math.inf), "bound w must be"),
    (lambda: Domain(2, 2, 1.0, 0.0, 0.0), "only zero residuals"),
    (lambda: Domain(2, 2, 1e80, 1.0, 1.0), r"the bound of \|x\| is 1e\+80, not between 1e-60 and 1e\+60; rescale"),
    (lambda: Domain(2, 2, 1e-80, 1.0, 1.0), r"the bound of \|x\| is 1e-80"),
    (lambda: Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=3.0, largest=2.0)), "smallest"),
    (lambda: Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=3.0)), "smallest"),
    *((lambda bad=bad: Spectrum(norm=bad), "norm") for bad in (-1.0, math.nan, math.inf)),
    (lambda: require_shape(torch.zeros(3), "x", 3, 3), "x has shape"),
    (lambda: require_shape(torch.zeros(()), "x", 1), "x has shape"),
]


@pytest.mark.parametrize("make, reason", REFUSED)
def test_what_is_no_data_or_no_domain_is_refused(make, reason: str) -> None:
    with pytest.raises((OutOfDomain, BadShape), match=reason):
        make()


def test_no_data_is_inside_every_bound() -> None:
    require_within(0.0, x=torch.empty(0, 3))


def test_without_weights_the_domain_follows_descent_towards_least_squares() -> None:
    """‖w‖ ≤ 2‖w*‖ on the way, of the dataset whose fit is the longest; a row of length 5 then bounds the residual.

    Directions that data hardly determine do not count.
    """
    x = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]], dtype=f64)
    fits = torch.tensor([[1.0, -1.0], [0.0, 3.0]], dtype=f64)
    domain = Domain.of(x, (x @ fits.unsqueeze(-1)).squeeze(-1))
    assert domain.w == pytest.approx(2 * 3.0 + 1e-3)
    assert domain.residual == domain.absolute == pytest.approx(5.0 * domain.w + 3.0)
    assert domain.widest > domain.residual
    hardly, enough = (Domain.of(torch.diag(torch.tensor([1.0, s], dtype=f64)), torch.ones(2)) for s in (7e-11, 1.5e-10))
    assert hardly.w < 3 and enough.w > 1e9


def test_covering_is_the_tightest_domain_of_one_output_or_several_and_refuses_what_does_not_fit() -> None:
    xs, query = torch.tensor([[3.0, 4.0], [0.5, 0.0]]), torch.tensor([6.0, -8.0])
    one, two = torch.tensor([1.0, -7.0]), torch.tensor([[1.0, 9.0], [2.0, 0.0]])
    tight, wide = Domain.covering(xs, one, query), Domain.covering(xs, one, query, margin=2.0)
    assert (wide.x, wide.y, wide.w, wide.norm) == (16.0, 14.0, 0.0, 20.0)
    assert wide.spectrum == tight.spectrum.widened(2.0)
    assert (wide.largest, wide.smallest) == (2 * tight.largest, tight.smallest / 2)
    assert Domain.covering(xs, two, query[None]).y == 9.0
    for bad in ((xs[0], one[:1], query), (xs, one[:1], query), (xs, one, query[:1])):
        with pytest.raises(BadShape, match="do not fit together"):
            Domain.covering(*bad)
    for k, name in enumerate(("xs", "ys", "x_query")):
        bad = [part * (math.nan if i == k else 1.0) for i, part in enumerate((xs, one, query))]
        with pytest.raises(OutOfDomain, match=f"^{name} contains NaN"):
            Domain.covering(*bad)
    data = regression(8, 3, batch=(2,))
    problem = (data[0], data[1].unsqueeze(-1), data[2])
    domain = Domain.covering(*data)
    domain.check_problem(*problem)
    for factor, said in ((1.001, "reaches"), (0.5, "eigenvalues")):
        with pytest.raises(OutOfDomain, match=said):
            domain.check_problem(factor * problem[0], *problem[1:])
    domain.check_problem(0.5 * problem[0], *problem[1:], spectrum=False)


@pytest.mark.parametrize(
    ("x", "y", "w", "inside"),
    [
        # |w·x − y| ≤ 1 and |w|·|x| + |y| ≤ 4, where entries alone would allow 21.
        ([2.0, -1.0], 0.0, [1.0, 1.0], True),
        ([2.0, -1.0], 0.5, [1.0, 1.0], True),
        ([2.0, -1.0], -0.5, [1.0, 1.0], False),
        ([2.0, 1.0], 3.0, [-1.0, -1.0], False),
        ([2.0, -1.0], 1.25, [1.0, 1.0], False),
        ([2.0, -2.0], 0.0, [-1.0, -1.0], True),
        ([2.0, -2.5], 0.0, [-1.0, -1.0], False),
        ([2.0, -1.0], -2.0, [1.0, 3.0], False),
    ],
)
def test_residuals_and_their_absolute_sums_are_held_to_their_own_bounds(x, y, w, inside) -> None:
    """Of every dataset of a batch."""
    tight = Domain(1, 2, x=5.0, y=3.0, w=3.0, residual=1.0, absolute=4.0)
    for place in (0, 3):
        rows = torch.zeros(4, 1, 2), torch.zeros(4, 1), torch.zeros(4, 2)
        rows[0][place, 0], rows[1][place, 0], rows[2][place] = torch.tensor(x), y, torch.tensor(w)
        if inside:
            tight.check(*rows)
        else:
            with pytest.raises(OutOfDomain, match="reaches"):
                tight.check(*rows)


def test_several_targets_are_problems_that_share_their_rows_and_all_else_is_left_as_it_is() -> None:
    x, y = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    rows, targets = by_target(x, y)
    assert rows.shape == (2, 4, 5, 3) and targets.shape == (2, 4, 5)
    assert all(torch.equal(rows[:, k], x) and torch.equal(targets[:, k], y[..., k]) for k in range(4))
    assert by_target(x[0], y[0])[0].shape == (4, 5, 3)
    for other in ((x, y[..., 0]), (x, y[:, :4]), (x, y[..., :0]), (x[0, 0], y[0, 0]), (x[0, 0], y[0, 0, :3])):
        assert all(one is given for one, given in zip(by_target(*other), other, strict=True))


@pytest.mark.parametrize(
    "rows", [[[1.0, 1.0], [1.0, 1.0 + 2**-26]], [[3.0, 0.1], [0.1, 7.0]], [[1e-160, 0.0], [0.0, 1.0]]]
)
def test_the_enclosure_holds_in_exact_arithmetic(rows: list[list[float]]) -> None:
    """det(XᵀX/n − λ) changes sign across the enclosure of each end, in fractions."""
    low, high = (Fraction(end.item()) for end in enclosure(torch.tensor(rows, dtype=f64)))
    (a, b), (c, d) = [[Fraction(entry) for entry in row] for row in rows]
    p, q, r = (a * a + c * c) / 2, (a * b + c * d) / 2, (b * b + d * d) / 2
    for shift, sign in ((low, 1), (high, -1)):  # XᵀX/n − low and high − XᵀX/n have no negative eigenvalue
        assert sign * (p - shift) >= 0 and sign * (r - shift) >= 0 and (p - shift) * (r - shift) >= q * q
    assert high - low <= (p + r) * Fraction(1.0001)


@pytest.mark.parametrize("noise, shift", [(0.0, 0.3), (0.0, -0.3), (0.2, 0.0), (3.0, 0.0), (math.nan, 0.0)])
def test_whatever_the_solvers_say_the_enclosure_holds(noise: float, shift: float, monkeypatch) -> None:
    xs, _, _ = regression(20, 4)
    true, factorise = eigenvalues(xs), torch.linalg.cholesky_ex
    wrong = noise * torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=f64)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda _: true + shift)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a: SimpleNamespace(L=factorise(a).L + wrong))
    low, high = enclosure(xs)
    assert 0 <= low < true[0] and true[-1] < high <= xs.square().sum() / 20 * 1.001


def test_single_eigenvalues_are_those_at_the_ends_and_never_negative() -> None:
    xs, _, _ = regression(2, 3, batch=(2,))
    assert torch.equal(largest_eigenvalue(xs), eigenvalues(xs)[..., -1:])
    assert eigenvalues(xs).shape == (2, 3) and (smallest_eigenvalue(xs) == 0).all()
    torch.testing.assert_close(eigenvalues(xs), torch.linalg.eigvalsh(xs.mT @ xs / 2), rtol=1e-12, atol=1e-14)
    assert eigenvalues(xs.float()).dtype == f64


@pytest.mark.parametrize("samples, features", [(500, 600), (5000, 400), (50, 5000)])
def test_data_of_any_shape_are_in_the_domain_made_of_them(samples: int, features: int) -> None:
    """The bounds leave a tenth of the slack and less, whichever side is longer."""
    xs, ys, query = regression(samples, features)
    domain = Domain.covering(xs, ys, query)
    low, high = enclosure(xs)
    assert domain.largest <= high <= domain.largest * (1 + SLACK / 10)
    assert domain.smallest - SLACK / 10 * domain.largest <= low <= domain.smallest
    domain.check_problem(xs, ys.unsqueeze(-1), query)


LIMITED, YS = Domain(2, 2, 3.0, 1.0, 1.0, spectrum=Spectrum(2.0, 0.5, 2.0)), torch.ones(2, 1, dtype=f64)
INSIDE, BEYOND = 2 * (1 + SLACK / 2), 2 * (1 + 2 * SLACK)


@pytest.mark.parametrize(
    ("eigenvalues", "query", "spectrum", "said"),
    # On the edge of ‖x‖ ≤ 2 and 0.5 ≤ λ ≤ 2: half the slack beyond passes, twice does not.
    [
        ((0.5 - SLACK, INSIDE), 0.0, True, ""),
        ((0.5 - 3 * SLACK, 2.0), 0.0, True, "has eigenvalues"),
        ((0.5, BEYOND), 0.0, True, "has eigenvalues"),
        ((0.5, 1.0), INSIDE, True, ""),
        ((0.5, 1.0), BEYOND, True, "‖x‖ reaches"),
        ((1 / 128, 1 / 128), 0.0, False, ""),
        ((0.5, 3.125), 0.0, False, "‖x‖ reaches"),
    ],
)
def test_checks_of_a_problem_allow_their_own_rounding_and_no_more(eigenvalues, query, spectrum, said) -> None:
    """Of the steepest and the flattest dataset of a batch."""
    xs = torch.diag(torch.tensor(eigenvalues, dtype=f64) * 2).sqrt()
    batch = torch.stack([torch.eye(2, dtype=f64) * math.sqrt(2), xs, torch.eye(2, dtype=f64) * math.sqrt(2)])
    queries = torch.zeros(3, 2, dtype=f64)
    queries[1, 0] = query
    if not said:
        LIMITED.check_problem(batch, YS.expand(3, 2, 1), queries, spectrum=spectrum)
        return
    with pytest.raises(OutOfDomain, match=said):
        LIMITED.check_problem(batch, YS.expand(3, 2, 1), queries, spectrum=spectrum)


@pytest.mark.parametrize(
    ("name", "bad", "said"),
    [
        ("xs", torch.eye(3), "xs has shape"),
        ("ys", torch.ones(3, 1), "ys has shape"),
        ("x_query", torch.ones(3), "x_query has shape"),
        ("xs", torch.tensor([[1.1, 0], [0, 1]]), r"\|xs\| reaches 1.1"),
        ("ys", torch.full((2, 1), 1.1), r"\|ys\| reaches 1.1"),
        ("x_query", torch.tensor([1.1, 0]), r"\|x_query\| reaches 1.1"),
    ],
)
def test_a_problem_of_the_wrong_shape_or_out_of_bounds_is_refused_by_name(name, bad, said) -> None:
    domain = Domain(2, 2, 1.0, 1.0, 1.0, spectrum=Spectrum(norm=1.5))
    good = {"xs": torch.eye(2), "ys": torch.ones(2, 1), "x_query": torch.ones(2)}
    domain.check_problem(**good)
    with pytest.raises((BadShape, OutOfDomain), match=said):
        domain.check_problem(**good | {name: bad})


def gamma(k: int) -> Fraction:
    return Fraction(k, 2**53 - k)


@pytest.mark.parametrize(
    "samples, features, entry", [(4, 4, 255 / 64), (8192, 16, 2.0), (16, 8192, 2.0), (1100, 1100, 2.0)]
)
def test_what_is_rounded_on_the_way_to_eigenvalues_is_counted(samples: int, features: int, entry: float) -> None:
    """Of a multiple of I, known without rounding: γ of sums over 1024 products and over blocks, times the trace.

    The guess is 16·short·u beyond, and the factor, a multiple of I, rounds once for every entry: below γ·‖L‖² itself.
    """
    short, long = sorted((samples, features))
    x = torch.eye(short, dtype=f64).mul(entry).repeat(long // short, 1)
    value = Fraction(entry) ** 2 * (long // short) / samples
    low, high = (Fraction(end.item()) for end in enclosure(x if samples == long else x.mT))
    trace, u = value * short, Fraction(1, 2**53)
    room = 16 * short * u * value
    summed = gamma(min(long, 1024) + long // 1024 + 6) * trace
    factored = gamma(min(short, 1024) + 2 * (short // 1024) + 6) * room * short
    for found, sign in ((high, 1), (low, -1)) if samples >= features else ((high, 1),):
        beyond = sign * (found - value) - room - summed - factored
        assert 2 * u * value < beyond < 8 * u * value + 2 * u * room * short
    assert samples >= features or low == 0


@pytest.mark.parametrize("size", [1, 7, BLOCK + 1])
def test_what_a_factorisation_rounds_is_granted_where_nothing_is_left_of_it(size: int) -> None:
    """4·I is 2·I times 2·I exactly: γ·‖L‖² and a last addition remain."""
    u, terms = 2.0**-53, min(size, BLOCK) + 2 * (size // BLOCK) + 6
    found = _above(torch.zeros(size, size, dtype=f64), torch.tensor(4.0, dtype=f64))
    granted = terms * u / (1 - terms * u) * 4 * size + 4 * u * 4
    assert found.item() - 4 == pytest.approx(granted, rel=1e-5, abs=8 * u)


def test_the_enclosure_of_extremes_is_tight_or_refused() -> None:
    """Of one feature λ is known exactly. Of two that are one, the smaller is zero, and nothing is promised of it."""
    low, high = enclosure(torch.full((4, 1), 2.0))
    assert 4.0 - 1e-13 < low.item() < 4.0 < high.item() < 4.0 + 1e-13 and SLACK == 1e-9
    assert enclosure(torch.full((4, 2), 2.0))[0].item() == 0.0
    low, high = enclosure(torch.full((1, 1), 1e-170, dtype=f64))
    assert low == 0 and Fraction(1, 10**340) <= Fraction(high.item()) < Fraction(1, 10**307)
    wide = torch.eye(2, dtype=f64)
    wide[0, 0] = 1e155
    with pytest.raises(OutOfDomain, match="overflows float64 when squared"):
        enclosure(wide)
