"""Baselines are predictors like any other."""

import pytest
import torch

from emulon.algorithms import Ridge
from emulon.errors import EmulonError
from emulon.tasks import ClosedRidge, LeastSquares, NearestNeighbours, Zero, prefix_predictions

XS, YS, QUERIES = (
    torch.randn(*shape, generator=torch.Generator().manual_seed(0)) for shape in ((2, 8, 3), (2, 8), (2, 5, 3))
)


@pytest.mark.parametrize("baseline", [Zero(), LeastSquares(), ClosedRidge(0.5), NearestNeighbours()])
def test_several_queries_are_answered_as_each_alone(baseline):
    together = baseline.predict(XS, YS, QUERIES)
    assert together.shape == (2, 5) and together.dtype == torch.float64
    for k in range(5):
        torch.testing.assert_close(together[:, k], baseline.predict(XS, YS, QUERIES[:, k]))
    torch.testing.assert_close(baseline.predict(XS[0], YS[0], QUERIES[0]), together[0])


def test_the_closed_ridge_is_the_librarys_ridge_run_to_the_end():
    descent = Ridge(penalty=0.5 / 8, steps=3000).predict(XS, YS, QUERIES)
    torch.testing.assert_close(ClosedRidge(0.5).predict(XS, YS, QUERIES), descent, atol=1e-9, rtol=1e-9)


def test_a_neighbour_that_is_the_query_answers():
    assert NearestNeighbours(1).predict(XS, YS, XS[:, 3]).tolist() == YS[:, 3].double().tolist()


def test_prefixes_never_see_their_own_answer():
    xs, ys = XS.double(), YS.double()
    changed = ys.clone()
    changed[:, 4:] += 7
    before, after = (prefix_predictions(LeastSquares(), xs, seen) for seen in (ys, changed))
    assert torch.equal(before[:, :5], after[:, :5]) and not torch.equal(before[:, 5:], after[:, 5:])


def test_a_ridge_without_penalty_is_refused():
    with pytest.raises(EmulonError, match="LeastSquares"):
        ClosedRidge(0.0)
