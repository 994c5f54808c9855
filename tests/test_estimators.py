"""The estimators keep scikit-learn's contract, and fit what their algorithm fits."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LinearRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from emulon.algorithms import GradientDescent, HuberRegression, LogisticRegression, Loss
from emulon.core.errors import BadShape, EmulonError
from emulon.estimators import EmulatedClassifier, EmulatedRegressor
from emulon.interpreter import Capacity, Interpreter


# A small number of steps: the checks ask about conduct.
@parametrize_with_checks([EmulatedRegressor(steps=20, tolerance=1e-4), EmulatedClassifier(steps=20)])
def test_keeps_scikit_learns_contract(estimator: Any, check: Any):
    check(estimator)


def values(outputs: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) * [1.0, 20.0, 0.1] + [5.0, -3.0, 0.0]
    y = x @ rng.normal(size=(3, outputs or 1)) + 7.0 + rng.normal(size=(40, outputs or 1))
    return x, y if outputs else y[:, 0]


def test_linear_regression_is_least_squares_with_an_intercept():
    x, y = values()
    ours = EmulatedRegressor("linear_regression", steps=400).fit(x, y)
    reference = LinearRegression().fit(x, y)
    np.testing.assert_allclose(ours.coef_, reference.coef_, rtol=1e-9)
    assert ours.intercept_ == pytest.approx(reference.intercept_, rel=1e-9)
    np.testing.assert_allclose(ours.predict(x), reference.predict(x), rtol=1e-9)
    ours = EmulatedRegressor("linear_regression", steps=2000, fit_intercept=False).fit(x, y)
    np.testing.assert_allclose(ours.coef_, np.linalg.lstsq(x, y, rcond=None)[0], rtol=1e-6)
    assert ours.intercept_ == 0


def test_several_targets_are_one_batch():
    x, y = values(outputs=3)
    together = EmulatedRegressor(steps=30).fit(x, y)
    assert together.coef_.shape == (3, 3) and together.intercept_.shape == (3,)
    assert together.run_.weights.shape == (3, 3)
    assert together.predict(x).shape == y.shape
    alone = EmulatedRegressor(steps=30).fit(x, y[:, 1])
    np.testing.assert_allclose(together.coef_[1], alone.coef_, atol=1e-9)
    np.testing.assert_allclose(together.predict(x)[:, 1], alone.predict(x), atol=1e-8)


def test_the_run_and_its_promise_stay_at_hand():
    x, y = load_diabetes(return_X_y=True)
    model = EmulatedRegressor("ridge", steps=50).fit(x, y)
    exact = model.run_.program
    assert model.n_features_in_ == 10
    assert model.certificate_.bound < 1e-6
    first, second = model.certificate_
    assert (first.scope, second.scope) == ("run", "domain") and first.bound <= second.bound
    assert "for this run only" in str(model.certificate_).splitlines()[0]
    assert exact.steps == 50 and exact.descent.l2 == 0.1
    assert model.run_.sha256[0] == model.run_.sha256[1]


def test_weights_of_samples_are_scikit_learns():
    x, y = values()
    weight = np.random.default_rng(1).uniform(0.1, 3.0, 40)
    ours = EmulatedRegressor("linear_regression", steps=400).fit(x, y, weight)
    theirs = LinearRegression().fit(x, y, weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-6)
    assert ours.intercept_ == pytest.approx(theirs.intercept_, rel=1e-6) and ours.n_iter_ == 400
    with pytest.raises(EmulonError, match="sample_weight is for the squared loss"):
        EmulatedRegressor("log_cosh_regression").fit(x, y, weight)


def test_robust_losses_fit_their_own_intercept():
    x, y = values()
    y[:4] += 500.0
    loss = GradientDescent(Loss.of("sqrt(1 + t**2)", curvature=1.0), steps=60)
    model = EmulatedRegressor(loss, tolerance=1e-4).fit(x, y)
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    batch = torch.tensor(np.column_stack([scaled, np.ones(len(x))]))
    weights = loss.run(batch, torch.tensor((y - y.mean()) / y.std())).numpy()
    np.testing.assert_allclose(model.coef_, weights[:3] * y.std() / x.std(axis=0), rtol=1e-4)
    np.testing.assert_allclose(model.predict(x), (scaled @ weights[:3] + weights[3]) * y.std() + y.mean(), rtol=1e-4)


def test_poisson_predicts_rates():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = rng.poisson(np.exp(0.5 * x[:, 0] + 0.3))
    model = EmulatedRegressor("poisson_regression", steps=300, penalty=1e-3, tolerance=1e-4).fit(x, y)
    assert (model.predict(x) > 0).all()
    assert model.coef_[0] == pytest.approx(0.5, abs=0.2)
    assert model.predict(x).mean() == pytest.approx(y.mean(), rel=0.05)


def test_two_classes_of_any_type():
    x, y = values()
    y = np.array(["no", "yes"])[(y > np.median(y)).astype(int)]
    model = EmulatedClassifier(steps=60).fit(x, y)
    assert model.classes_.tolist() == sorted(set(y.tolist()))
    assert set(model.predict(x).tolist()) <= set(model.classes_.tolist())
    assert model.score(x, y) > 0.9
    decisions = model.decision_function(x)
    assert ((decisions > 0) == (model.predict(x) == model.classes_[1])).all()
    np.testing.assert_allclose(model.predict_proba(x)[:, 1], 1 / (1 + np.exp(-decisions)))


def test_more_classes_are_one_versus_rest_in_one_batch():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = EmulatedClassifier(steps=200, penalty=1e-3).fit(x, names)
    assert model.run_.weights.shape == (3, 5)
    assert model.score(x, names) > 0.9
    alone = EmulatedClassifier(steps=200, penalty=1e-3).fit(x, names == "versicolor")
    np.testing.assert_allclose(model.decision_function(x)[:, 1], alone.decision_function(x), atol=1e-8)
    probabilities = model.predict_proba(x)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    # Each is the class's own probability over the sum of all three.
    own = 1 / (1 + np.exp(-model.decision_function(x)))
    np.testing.assert_allclose(probabilities, own / own.sum(axis=1, keepdims=True), rtol=1e-9)


def test_only_logistic_regression_has_probabilities():
    assert hasattr(EmulatedClassifier(), "predict_proba")
    assert not hasattr(EmulatedClassifier("perceptron"), "predict_proba")
    assert not hasattr(EmulatedClassifier("squared_hinge"), "predict_proba")


def test_an_algorithm_object_keeps_its_parameters_unless_told_otherwise():
    x, y = values()
    y = y > y.mean()
    algorithm = LogisticRegression(penalty=0.3, steps=7)
    assert EmulatedClassifier(algorithm).fit(x, y).run_.program.steps == 7
    told = EmulatedClassifier(algorithm, steps=9, penalty=0.2).fit(x, y).run_.program
    assert (told.steps, told.descent.l2) == (9, 0.2)


def test_one_interpreter_serves_many_fits_and_survives_cloning():
    x, y = values()
    y = y > y.mean()
    shared = EmulatedClassifier(steps=5).fit(x, y).run_.interpreter
    first = EmulatedClassifier(steps=5, interpreter=shared).fit(x, y)
    second = clone(first).set_params(penalty=0.5).fit(x, y)
    assert first.run_.interpreter is shared
    assert first.run_.sha256 == second.run_.sha256 == (shared.sha256, shared.sha256)
    small = Interpreter(Capacity(features=4, tokens=4, width=4, reach=1.0))
    with pytest.raises(BadShape, match=r"Interpreter\.fitting"):
        EmulatedClassifier(interpreter=small).fit(x, y)


def test_a_fitted_model_travels_with_its_trace_left_behind():
    x, y = values()
    model = EmulatedClassifier(steps=3).fit(x, y > y.mean())
    assert model.run_.trace.records
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.run_.iterates, model.run_.iterates)
    assert (again.predict(x) == model.predict(x)).all()


def test_constant_columns_and_targets_are_no_trouble():
    x, y = values()
    x[:, 1] = 0.1
    model = EmulatedRegressor("linear_regression", steps=300).fit(x, y)
    np.testing.assert_allclose(model.predict(x), LinearRegression().fit(x, y).predict(x), rtol=1e-6)
    constant = EmulatedRegressor(steps=5).fit(x, np.full(len(x), 3.0))
    np.testing.assert_allclose(constant.predict(x), 3.0, atol=1e-8)
    nothing = EmulatedRegressor(steps=5).fit(np.ones((5, 2)), np.arange(5.0))
    np.testing.assert_allclose(nothing.predict(np.ones((1, 2))), 2.0, atol=1e-8)


@pytest.mark.parametrize(
    ("estimator", "words"),
    [
        (EmulatedRegressor("rigde"), "did you mean ridge"),
        (EmulatedClassifier("logistic"), "did you mean logistic_regression"),
        (EmulatedRegressor("perceptron"), "EmulatedClassifier"),
        (EmulatedClassifier("ridge"), "EmulatedRegressor"),
        (EmulatedRegressor("linear_regression", penalty=0.1), "no penalty"),
        (EmulatedRegressor("newton_least_squares"), "not gradient descent"),
        (EmulatedRegressor(HuberRegression), "a name or an Algorithm"),
        (EmulatedRegressor(steps=-1), "steps"),
        (EmulatedRegressor(penalty=-1.0), "penalty"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_in_one_line(estimator: Any, words: str):
    x, y = values()
    with pytest.raises(EmulonError, match=words) as caught:
        estimator.fit(x, (y > 0).astype(float))
    assert "\n" not in str(caught.value)


def test_targets_that_would_take_different_steps_share_the_smallest():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    y = np.stack([x @ [1.0, -1.0], 3 * (x @ [0.3, 0.2]) ** 3 + 1], axis=1)
    model = EmulatedRegressor("quantile_regression", steps=20, tolerance=1e-3, scale=False).fit(x, y)
    assert model.run_.weights.shape[0] == 2 and not model.run_.program.plan.step_from_data
    alone = [EmulatedRegressor("quantile_regression", steps=20, tolerance=1e-3, scale=False).fit(x, one) for one in y.T]
    sizes = [one.run_.program.step_size for one in alone]
    assert model.run_.program.step_size == pytest.approx(min(sizes)) and max(sizes) > 1.5 * min(sizes)
