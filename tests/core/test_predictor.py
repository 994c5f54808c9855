"""One call for everything that predicts."""

import pytest
import torch
from sklearn.neighbors import KNeighborsRegressor

from emulon.algorithms import RidgeRegression
from emulon.certify import Domain
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import NotAPredictor, Predictor, as_predictor, predict_at, predict_queries
from emulon.looped import LoopedNewton
from emulon.tasks import Linear

XS, YS = Linear(3, noise=0.3).held_out(0, 6, 9).pairs


def test_algorithms_and_predictors_are_taken_as_they_are():
    algorithm = RidgeRegression(1.0)
    assert as_predictor(algorithm) is algorithm
    wrapped = as_predictor(algorithm.predict)
    assert as_predictor(wrapped) is wrapped and isinstance(wrapped, Predictor)
    assert torch.equal(
        wrapped.predict(XS[:, :8], YS[:, :8], XS[:, 8]), algorithm.predict(XS[:, :8], YS[:, :8], XS[:, 8])
    )


def test_a_looped_transformer_needs_its_number_of_loops():
    looped = LoopedNewton(Domain.covering(XS[:, :8], YS[:, :8], XS[:, 8]), horizon=30)
    with pytest.raises(NotAPredictor, match="loops="):
        as_predictor(looped)
    assert as_predictor(looped, loops=30).examples == (8,)


def test_a_function_of_one_dataset_is_found_out_by_its_first_batch():
    algorithm, asked = RidgeRegression(0.8), []

    def one(xs, ys, x_query):
        asked.append(xs.ndim)
        return (x_query @ torch.linalg.solve(xs.T @ xs + 0.8 * torch.eye(3), xs.T @ ys)).item()

    predictor = as_predictor(one)
    for _ in range(2):
        expected = algorithm.predict(XS[:, :8], YS[:, :8], XS[:, 8])
        torch.testing.assert_close(predictor.predict(XS[:, :8], YS[:, :8], XS[:, 8]), expected)
    assert asked == [3, *[2] * 12]


def test_answers_of_the_wrong_kind_are_refused():
    with pytest.raises(BadShape, match="one number a dataset"):
        as_predictor(lambda xs, ys, x_query: x_query).predict(XS, YS, XS[:, 0])
    with pytest.raises(NotAPredictor, match="failed on xs") as refused:
        as_predictor(lambda xs, ys, x_query: {}["a"]).predict(XS, YS, XS[:, 0])
    assert refused.value.__cause__ is not None
    with pytest.raises(NotAPredictor, match=r"KNeighborsRegressor failed .* ask after more"):
        as_predictor(KNeighborsRegressor(5)).predict(XS[:, :2], YS[:, :2], XS[:, 2])
    for nothing in (3, "ridge", RidgeRegression, lambda xs, ys: ys):
        with pytest.raises(NotAPredictor, match="does not predict"):
            as_predictor(nothing)


class Given:
    """Somebody's own predictor, with what it answers."""

    def __init__(self, answer):
        self.answer = answer

    def predict(self, xs, ys, x_query):
        return self.answer(xs, ys, x_query)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda xs, ys, q: 1 / 0, "failed on xs of shape .*: ZeroDivisionError: division by zero"),
        (lambda xs, ys, q: xs.nothing, "failed on xs of shape .*: AttributeError: .*nothing"),
        (lambda xs, ys, q: None, "answered NoneType; wanted one number a dataset"),
        (lambda xs, ys, q: ["a"] * len(xs), "answered list; wanted one number a dataset"),
        (lambda xs, ys, q: 1j * q[:, 0], "complex numbers"),
        (lambda xs, ys, q: ys[:, 0] * torch.tensor([1.0] * 5 + [torch.nan]), "after 2 examples, in 1 of 6 datasets"),
        (lambda xs, ys, q: 1e200 * q[:, 0], "too large to be squared after 2 examples"),
    ],
)
def test_what_fails_or_answers_no_numbers_is_told_in_one_line(answer, words):
    for thing in (answer, Given(answer)):
        with pytest.raises(EmulonError, match=words) as refused:
            predict_at(as_predictor(thing), XS, YS, (2, 3))
        assert "\n" not in str(refused.value)
    numpy = Given(lambda xs, ys, q: q[:, 0].numpy())
    assert torch.equal(predict_at(as_predictor(numpy), XS, YS, (2,))[:, 0], XS[:, 2, 0])
    assert torch.equal(predict_queries(as_predictor(numpy), XS, YS, XS), XS[..., 0])
