"""What is known of X beyond its entries: measured, derived, widened, and refused where the data do not keep it."""

import math
from dataclasses import replace
from fractions import Fraction
from typing import NamedTuple

import pytest
import torch

from emulon.certify import Domain, Spectrum
from emulon.certify.domain import SLACK, eigenvalues, enclosure, largest_eigenvalue, smallest_eigenvalue
from emulon.core.errors import BadShape, OutOfDomain


class Factor(NamedTuple):
    """What `torch.linalg.cholesky_ex` returns, as far as it is looked at."""

    L: torch.Tensor


def regression(samples: int, features: int, batch: tuple[int, ...] = (), seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    shapes = ((*batch, samples, features), (*batch, samples), (*batch, features))
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize(
    "rows", [[[1.0, 1.0], [1.0, 1.0 + 2**-26]], [[3.0, 0.1], [0.1, 7.0]], [[1e-160, 0.0], [0.0, 1.0]]]
)
def test_the_enclosure_holds_in_exact_arithmetic(rows: list[list[float]]) -> None:
    """det(XᵀX/n − λ) changes sign across the enclosure of each end, in fractions."""
    low, high = (Fraction(end.item()) for end in enclosure(torch.tensor(rows, dtype=torch.float64)))
    (a, b), (c, d) = [[Fraction(entry) for entry in row] for row in rows]
    p, q, r = (a * a + c * c) / 2, (a * b + c * d) / 2, (b * b + d * d) / 2

    def positive(shift: Fraction) -> bool:
        """Whether XᵀX/n − shift is positive semidefinite."""
        return p - shift >= 0 and r - shift >= 0 and (p - shift) * (r - shift) >= q * q

    assert positive(low) and (high - p) * (high - r) >= q * q and high >= max(p, r)
    assert high - low <= (p + r) * Fraction(1.0001)


@pytest.mark.parametrize("noise, shift", [(0.0, 0.3), (0.0, -0.3), (0.2, 0.0), (3.0, 0.0), (math.nan, 0.0)])
def test_whatever_the_solvers_say_the_enclosure_holds(
    noise: float, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    xs, _, _ = regression(20, 4)
    true, factorise = eigenvalues(xs), torch.linalg.cholesky_ex
    wrong = noise * torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda _: true + shift)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a: Factor(factorise(a).L + wrong))
    low, high = enclosure(xs)
    assert 0 <= low < true[0] and true[-1] < high <= xs.square().sum() / 20 * 1.001


def test_single_eigenvalues_are_those_at_the_ends_and_never_negative() -> None:
    xs, _, _ = regression(2, 3, batch=(2,))
    assert torch.equal(largest_eigenvalue(xs), eigenvalues(xs)[..., -1:])
    assert eigenvalues(xs).shape == (2, 3) and (smallest_eigenvalue(xs) == 0).all()
    torch.testing.assert_close(eigenvalues(xs), torch.linalg.eigvalsh(xs.mT @ xs / 2), rtol=1e-12, atol=1e-14)
    assert eigenvalues(xs.float()).dtype == torch.float64


def test_norm_and_largest_follow_from_the_entries() -> None:
    domain = Domain(5, 4, 2.0, 1.0, 1.0)
    assert (domain.norm, domain.largest, domain.smallest) == (4.0, 16.0, 0.0)
    wider = replace(domain, x=3.0)
    assert (wider.norm, wider.largest) == (6.0, 36.0)


def test_covering_is_the_tightest_domain_that_accepts_the_data() -> None:
    xs, ys, x_query = regression(8, 3, batch=(2,))
    domain = Domain.covering(xs, ys, x_query)
    domain.check_problem(xs, ys.unsqueeze(-1), x_query)
    with pytest.raises(OutOfDomain):
        domain.check_problem(1.001 * xs, ys.unsqueeze(-1), x_query)
    with pytest.raises(OutOfDomain, match="eigenvalues"):
        domain.check_problem(0.5 * xs, ys.unsqueeze(-1), x_query)
    domain.check_problem(0.5 * xs, ys.unsqueeze(-1), x_query, spectrum=False)


def test_a_margin_widens_every_bound() -> None:
    data = regression(8, 3)
    tight, wide = Domain.covering(*data), Domain.covering(*data, margin=2.0)
    assert wide.spectrum == tight.spectrum.widened(2.0)
    assert (wide.norm, wide.largest, wide.smallest) == (2 * tight.norm, 2 * tight.largest, tight.smallest / 2)
    assert (wide.x, wide.y) == (2 * tight.x, 2 * tight.y)


def test_nonsense_is_refused() -> None:
    with pytest.raises(OutOfDomain, match="smallest"):
        Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=3.0, largest=2.0))
    with pytest.raises(OutOfDomain, match="smallest"):
        Domain(4, 2, 1.0, 1.0, 0.0, spectrum=Spectrum(smallest=3.0))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(OutOfDomain, match="norm"):
            Spectrum(norm=bad)
    xs, ys, x_query = regression(8, 3)
    with pytest.raises(BadShape):
        Domain.covering(xs, ys[:7], x_query)
    with pytest.raises(OutOfDomain):
        Domain.covering(xs, ys, x_query * torch.nan)


def test_the_enclosure_is_far_tighter_than_what_plans_grant() -> None:
    """Of one feature: λ is known exactly. Of two that are one, the smaller is zero, and nothing is promised of it."""
    low, high = enclosure(torch.full((4, 1), 2.0))
    assert 4.0 - 1e-13 < low.item() < 4.0 < high.item() < 4.0 + 1e-13 and SLACK == 1e-9
    assert enclosure(torch.full((4, 2), 2.0))[0].item() == 0.0
    wide = torch.zeros(6400, 800, dtype=torch.float64)
    wide[0, 0] = 80.0
    assert 1.0 <= enclosure(wide)[1].item() < 1.0 + SLACK / 10


@pytest.mark.parametrize("samples, features", [(500, 600), (5000, 400), (600, 600), (50, 5000)])
def test_data_of_any_shape_are_in_the_domain_made_of_them(samples: int, features: int) -> None:
    """The bounds leave a tenth of the slack and less, whichever side is longer."""
    xs, ys, query = regression(samples, features)
    domain = Domain.covering(xs, ys, query)
    low, high = enclosure(xs)
    assert domain.largest <= high <= domain.largest * (1 + SLACK / 10)
    assert domain.smallest - SLACK / 10 * domain.largest <= low <= domain.smallest
    domain.check_problem(xs, ys.unsqueeze(-1), query)


def test_checks_allow_their_own_rounding_and_no_more() -> None:
    """On the edge of ‖x‖ ≤ 2 and 0.5 ≤ λ ≤ 2: half the slack beyond passes, twice does not."""
    domain = Domain(2, 2, 3.0, 1.0, 1.0, spectrum=Spectrum(2.0, 0.5, 2.0))
    ys, query = torch.ones(2, 1, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)

    def with_eigenvalues(low: float, high: float) -> torch.Tensor:
        return torch.diag(query.new_tensor([high, low]) * 2).sqrt()

    domain.check_problem(with_eigenvalues(0.5 - SLACK, 2 * (1 + SLACK / 2)), ys, query)
    for low, high in ((0.5 - 3 * SLACK, 2.0), (0.5, 2 * (1 + 2 * SLACK))):
        with pytest.raises(OutOfDomain, match="has eigenvalues"):
            domain.check_problem(with_eigenvalues(low, high), ys, query)
    domain.check_problem(with_eigenvalues(0.5, 1.0), ys, query.new_tensor([2 * (1 + SLACK / 2), 0.0]))
    with pytest.raises(OutOfDomain, match="‖x‖ reaches"):
        domain.check_problem(with_eigenvalues(0.5, 1.0), ys, query.new_tensor([2 * (1 + 2 * SLACK), 0.0]))
    with pytest.raises(OutOfDomain, match="‖x‖ reaches"):
        domain.check_problem(torch.diag(query.new_tensor([1.0, 2.5])), ys, query, spectrum=False)
    domain.check_problem(torch.eye(2) / 8, ys, query, spectrum=False)


def test_a_problem_of_the_wrong_shape_or_out_of_bounds_is_refused_by_name() -> None:
    domain = Domain(2, 2, 1.0, 1.0, 1.0)
    good = {"xs": torch.eye(2), "ys": torch.ones(2, 1), "x_query": torch.ones(2)}
    domain.check_problem(**good)
    for name, bad in (("xs", torch.eye(3)), ("ys", torch.ones(3, 1)), ("x_query", torch.ones(3))):
        with pytest.raises(BadShape, match=f"{name} has shape"):
            domain.check_problem(**good | {name: bad})
    wide = replace(domain, spectrum=Spectrum(norm=1.5))
    for name, bad in (
        ("xs", torch.tensor([[1.1, 0], [0, 1]])),
        ("ys", torch.full((2, 1), 1.1)),
        ("x_query", torch.tensor([1.1, 0])),
    ):
        with pytest.raises(OutOfDomain, match=rf"\|{name}\| reaches 1.1"):
            wide.check_problem(**good | {name: bad})


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
    x = torch.eye(short, dtype=torch.float64).mul(entry).repeat(long // short, 1)
    x = x if samples == long else x.mT
    value = Fraction(entry) ** 2 * (long // short) / samples
    low, high = (Fraction(end.item()) for end in enclosure(x))
    trace, u = value * short, Fraction(1, 2**53)
    room = 16 * short * u * value
    summed = gamma(min(long, 1024) + long // 1024 + 6) * trace
    factored = gamma(min(short, 1024) + 2 * (short // 1024) + 6) * room * short
    for found, sign in ((high, 1), (low, -1)) if samples >= features else ((high, 1),):
        beyond = sign * (found - value) - room - summed - factored
        assert 2 * u * value < beyond < 8 * u * value + 2 * u * room * short
    assert samples >= features or low == 0


def test_squares_below_the_smallest_number_are_above_zero_and_those_beyond_the_largest_refused() -> None:
    low, high = enclosure(torch.full((1, 1), 1e-170, dtype=torch.float64))
    assert low == 0 and Fraction(1, 10**340) <= Fraction(high.item()) < Fraction(1, 10**307)
    wide = torch.eye(2, dtype=torch.float64)
    wide[0, 0] = 1e155
    with pytest.raises(OutOfDomain, match="overflows float64 when squared"):
        enclosure(wide)


def test_the_steepest_and_the_flattest_dataset_of_a_batch_are_held_to_the_eigenvalues() -> None:
    domain = Domain(2, 2, 3.0, 1.0, 1.0, spectrum=Spectrum(2.0, 0.5, 3.0))
    xs, ys, query = torch.eye(2).mul(math.sqrt(2)).repeat(3, 1, 1), torch.ones(3, 2, 1), torch.zeros(3, 2)
    domain.check_problem(xs, ys, query)
    for factor in (1.5, 0.6):
        one = xs.clone()
        one[1] *= factor
        with pytest.raises(OutOfDomain, match="has eigenvalues"):
            domain.check_problem(one, ys, query)
