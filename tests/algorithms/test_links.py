"""A link is all that a loss knows about targets: which it takes, how they enter, and how predictions are read."""

import numpy as np
import pytest
import torch

from emulon.algorithms import MARGIN, RATE, RESIDUAL, as_loss
from emulon.algorithms.losses import LINKS
from emulon.certify.domain import Domain
from emulon.core.errors import EmulonError, OutOfDomain

f64 = torch.float64
X = torch.randn(12, 3, dtype=f64, generator=torch.Generator().manual_seed(0))
MEASURED = {
    "residual": np.array([3.0, -1.0, 2.5, 7.0]),
    "margin": np.array(["cat", "dog", "cat", "dog"]),
    "rate": np.array([0.0, 4.0, 2.0, 2.0]),
}


@pytest.mark.parametrize("name", LINKS)
def test_what_is_encoded_is_taken_and_decodes_to_what_was_measured(name: str):
    encoding = LINKS[name].encode(MEASURED[name])
    LINKS[name].require_targets(encoding.targets)
    decoded = encoding.decode(encoding.targets.numpy())
    if name == "margin":
        assert list(decoded) == list(MEASURED[name])
    else:
        np.testing.assert_allclose(decoded, MEASURED[name], atol=1e-12)


def test_residual_targets_are_learned_with_mean_zero_and_variance_one():
    targets = RESIDUAL.encode(MEASURED["residual"]).targets
    assert targets.mean().abs() < 1e-15
    assert targets.var(correction=0).item() == pytest.approx(1.0)


def test_rates_are_learned_over_their_mean():
    assert RATE.encode(MEASURED["rate"]).targets.tolist() == [0.0, 2.0, 1.0, 1.0]


def test_several_classes_are_one_row_each_and_the_largest_score_decides():
    encoding = MARGIN.encode(np.array(["a", "b", "c", "a"]))
    assert encoding.targets.tolist() == [[1, -1, -1, 1], [-1, 1, -1, -1], [-1, -1, 1, -1]]
    assert list(encoding.decode(np.array([[0.1, -3.0], [-0.2, -1.0], [0.3, -2.0]]))) == ["c", "b"]


@pytest.mark.parametrize(("link", "y"), [(MARGIN, [1.0, 0.0]), (RATE, [1.0, -2.0])])
def test_targets_of_another_kind_are_refused(link, y):
    with pytest.raises(OutOfDomain):
        link.require_targets(torch.tensor(y, dtype=f64))


def test_what_cannot_be_encoded_is_refused():
    with pytest.raises(OutOfDomain, match="non-negative"):
        RATE.encode(np.array([1.0, -1.0]))
    with pytest.raises(EmulonError, match="one class"):
        MARGIN.encode(np.array(["a", "a"]))


@pytest.mark.parametrize(("link", "y"), [(RESIDUAL, X[:, 0]), (MARGIN, X[:, 0].sign()), (RATE, X[:, 0].abs())])
def test_template_data_lie_in_the_template_domain(link, y):
    x, inner_y, fixed = link.template_data(X, y)
    domain = Domain.of(X, y, 2.0)
    inner = link.template_domain(domain)
    assert x.abs().max() <= inner.x and inner_y.abs().max() <= inner.y
    assert (0.0 if fixed is None else fixed.abs().max().item()) <= link.largest_fixed(domain)


def test_a_rate_predicts_its_slope_and_the_others_the_score():
    score = torch.tensor([0.0, 1.0], dtype=f64)
    assert torch.equal(as_loss("poisson").mean_response(score), score.exp())
    assert torch.equal(as_loss("logistic").mean_response(score), score)
