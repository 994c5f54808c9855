"""Data outside the domain is refused, with the name of what is outside."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulon import Domain
from emulon.certify import Spectrum
from emulon.certify.domain import by_target, require_shape, require_within
from emulon.core.errors import BadShape, OutOfDomain

DOMAIN = Domain(samples=3, features=2, x=2.0, y=1.0, w=0.5)


def data(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    good = {"x": torch.full((3, 2), 2.0), "y": torch.full((3,), -1.0), "w": torch.full((2,), 0.5)}
    return good | changed


def test_residual_and_absolute_follow_from_the_other_bounds() -> None:
    assert DOMAIN.residual == DOMAIN.absolute == DOMAIN.widest == 2 * 2.0 * 0.5 + 1.0


def test_data_at_the_very_edges_is_inside() -> None:
    DOMAIN.check(**data())
    DOMAIN.check(x=torch.full((5, 4, 3, 2), -2.0), y=torch.ones(5, 4, 3), w=torch.full((5, 4, 2), -0.5))


@pytest.mark.parametrize("name", ["x", "y", "w"])
def test_an_entry_beyond_its_bound_is_refused_by_name(name: str) -> None:
    beyond = data()[name].double()
    beyond.view(-1)[-1] *= 1 + 1e-12
    with pytest.raises(OutOfDomain, match=rf"\|{name}\| reaches .* rescale or build a wider domain"):
        DOMAIN.check(**data(**{name: beyond}))


@pytest.mark.parametrize("name", ["x", "y", "w"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_name(name: str, bad: float) -> None:
    broken = data()[name].clone()
    broken.view(-1)[0] = bad
    with pytest.raises(OutOfDomain, match=f"{name} contains NaN or infinity"):
        DOMAIN.check(**data(**{name: broken}))


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


def test_the_domain_of_data_refuses_what_is_no_data() -> None:
    with pytest.raises(OutOfDomain, match="x contains NaN"):
        Domain.of(torch.full((3, 2), math.nan), torch.zeros(3))
    with pytest.raises(BadShape, match="samples, features"):
        Domain.of(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(BadShape, match="samples, features"):
        Domain.of(torch.zeros(3), torch.zeros(()))


@pytest.mark.parametrize("weights", [torch.tensor([1.0, math.nan]), math.nan, math.inf, -1.0])
def test_the_domain_of_data_refuses_bad_weights(weights) -> None:
    with pytest.raises(OutOfDomain):
        Domain.of(torch.ones(3, 2), torch.ones(3), weights)


@pytest.mark.parametrize(
    "sizes, reason",
    [
        ((0, 2, 1.0, 1.0, 1.0), "at least one of samples"),
        ((2, 0, 1.0, 1.0, 1.0), "at least one of features"),
        ((2, 2, -1.0, 1.0, 1.0), "bound x must be"),
        ((2, 2, 1.0, math.nan, 1.0), "bound y must be"),
        ((2, 2, 1.0, 1.0, math.inf), "bound w must be"),
        ((2, 2, 1.0, 0.0, 0.0), "only zero residuals"),
        ((2, 2, 1e80, 1.0, 1.0), r"the bound of \|x\| is 1e\+80, not between 1e-60 and 1e\+60; rescale"),
        ((2, 2, 1e-80, 1.0, 1.0), r"the bound of \|x\| is 1e-80"),
    ],
)
def test_impossible_domains_are_refused(sizes: tuple, reason: str) -> None:
    with pytest.raises(OutOfDomain, match=reason):
        Domain(*sizes)


def test_without_weights_the_domain_follows_descent_towards_least_squares() -> None:
    """‖w‖ ≤ 2‖w*‖ on the way, of the dataset whose fit is the longest; a row of length 5 then bounds the residual."""
    x = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)
    fits = torch.tensor([[1.0, -1.0], [0.0, 3.0]], dtype=torch.float64)
    y = (x @ fits.unsqueeze(-1)).squeeze(-1)
    domain = Domain.of(x, y)
    assert domain.w == pytest.approx(2 * 3.0 + 1e-3)
    assert domain.residual == domain.absolute == pytest.approx(5.0 * domain.w + 3.0)
    assert domain.widest > domain.residual


def test_directions_that_data_hardly_determine_do_not_count_for_the_weights() -> None:
    x = torch.diag(torch.tensor([1.0, 7e-11], dtype=torch.float64))
    assert Domain.of(x, torch.tensor([1.0, 1.0], dtype=torch.float64)).w < 3
    x = torch.diag(torch.tensor([1.0, 1.5e-10], dtype=torch.float64))
    assert Domain.of(x, torch.tensor([1.0, 1.0], dtype=torch.float64)).w > 1e9


def test_bounds_that_say_less_than_the_entries_do_are_replaced_by_theirs() -> None:
    loose = Domain(3, 2, x=2.0, y=1.0, w=0.5, residual=100.0, absolute=3.5)
    assert (loose.residual, loose.absolute) == (3.0, 3.0)


def test_covering_takes_one_output_or_several_and_refuses_what_does_not_fit() -> None:
    xs, query = torch.tensor([[3.0, 4.0], [0.5, 0.0]]), torch.tensor([6.0, -8.0])
    one, two = torch.tensor([1.0, -7.0]), torch.tensor([[1.0, 9.0], [2.0, 0.0]])
    domain = Domain.covering(xs, one, query, margin=2.0)
    assert (domain.x, domain.y, domain.w, domain.norm) == (16.0, 14.0, 0.0, 20.0)
    assert Domain.covering(xs, two, query[None]).y == 9.0
    for bad in ((xs[0], one[:1], query), (xs, one[:1], query), (xs, one, query[:1])):
        with pytest.raises(BadShape, match="do not fit together"):
            Domain.covering(*bad)
    for name, bad in (
        ("xs", (math.nan * xs, one, query)),
        ("ys", (xs, math.inf * one, query)),
        ("x_query", (xs, one, math.nan * query)),
    ):
        with pytest.raises(OutOfDomain, match=f"^{name} contains NaN"):
            Domain.covering(*bad)


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
    tight = Domain(1, 2, x=5.0, y=3.0, w=3.0, residual=1.0, absolute=4.0)
    rows = torch.tensor([x]), torch.tensor([y]), torch.tensor(w)
    if inside:
        tight.check(*rows)
    else:
        with pytest.raises(OutOfDomain):
            tight.check(*rows)


def test_no_data_is_inside_every_bound_and_too_few_dimensions_are_told() -> None:
    require_within(0.0, x=torch.empty(0, 3))
    with pytest.raises(BadShape):
        require_shape(torch.zeros(3), "x", 3, 3)
    with pytest.raises(BadShape):
        require_shape(torch.zeros(()), "x", 1)


def test_every_dataset_of_a_batch_is_held_to_the_bounds() -> None:
    tight = Domain(1, 2, x=5.0, y=3.0, w=3.0, residual=1.0, absolute=4.0, spectrum=Spectrum(norm=2.0))
    x, y, w = torch.zeros(4, 1, 2), torch.zeros(4, 1), torch.zeros(4, 2)
    tight.check(x, y, w)
    for entry, bad in ((0, 1.5), (3, -1.5)):
        beyond = y.clone()
        beyond[entry] = bad
        with pytest.raises(OutOfDomain):
            tight.check(x, beyond, w)
    x[2], w[2] = torch.tensor([2.0, 2.5]), torch.tensor([1.0, -1.0])
    with pytest.raises(OutOfDomain, match=r"\|w\|·\|x\| \+ \|y\| reaches 4.5"):
        tight.check(x, y, w)
    queries = torch.zeros(4, 2)
    queries[1, 0] = 2.5
    with pytest.raises(OutOfDomain, match=r"‖x‖ reaches 2\.5"):
        tight.check_problem(torch.zeros(4, 1, 2), torch.zeros(4, 1, 1), queries)


def test_several_targets_are_problems_that_share_their_rows_and_all_else_is_left_as_it_is() -> None:
    x, y = torch.randn(2, 5, 3), torch.randn(2, 5, 4)
    rows, targets = by_target(x, y)
    assert rows.shape == (2, 4, 5, 3) and targets.shape == (2, 4, 5)
    assert all(torch.equal(rows[:, k], x) and torch.equal(targets[:, k], y[..., k]) for k in range(4))
    assert by_target(x[0], y[0])[0].shape == (4, 5, 3)
    for other in ((x, y[..., 0]), (x, y[:, :4]), (x, y[..., :0]), (x[0, 0], y[0, 0]), (x[0, 0], y[0, 0, :3])):
        assert all(one is given for one, given in zip(by_target(*other), other, strict=True))
