"""Data outside the domain is refused, with the name of what is outside."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulon import Domain
from emulon.errors import BadShape, OutOfDomain

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


def test_a_tighter_residual_is_checked_on_the_data() -> None:
    tight = Domain(3, 2, x=2.0, y=1.0, w=0.5, residual=0.5, absolute=1.5)
    x = torch.zeros(3, 2)
    tight.check(x=x, y=torch.full((3,), 0.5), w=torch.full((2,), 0.5))
    with pytest.raises(OutOfDomain, match=r"\|w·x − y\| reaches 0.75"):
        tight.check(x=x, y=torch.full((3,), 0.75), w=torch.full((2,), 0.5))
    x[0] = torch.tensor([2.0, -2.0])
    with pytest.raises(OutOfDomain, match=r"\|w\|·\|x\| \+ \|y\| reaches 2"):
        tight.check(x=x, y=torch.zeros(3), w=torch.full((2,), 0.5))


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
        ((2, 2, 1e80, 1.0, 1.0), r"the bound of \|x\| is 1e\+80, not within 1e-60 and 1e\+60; rescale"),
        ((2, 2, 1e-80, 1.0, 1.0), r"the bound of \|x\| is 1e-80"),
    ],
)
def test_impossible_domains_are_refused(sizes: tuple, reason: str) -> None:
    with pytest.raises(OutOfDomain, match=reason):
        Domain(*sizes)
