"""scikit-learn's perceptrons by prompt: the same classes, and regressions to the last places."""

import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.neural_network import MLPClassifier, MLPRegressor

from emulon import Interpreter, compile_network
from emulon.errors import BadNetwork
from emulon.networks import classes_of


def fitted(network, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged, and need not
        return network.fit(x, y)


def tables(load):
    x, y = load(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x[::2], y[::2], x[1::2]


@pytest.mark.parametrize("activation", ["relu", "logistic"])
def test_a_classifier_gives_the_same_classes(activation):
    x, y, new = tables(load_breast_cancer)
    network = fitted(MLPClassifier((12,), activation=activation, max_iter=30, random_state=0), x, y)
    program = compile_network(network, data=np.concatenate([x, new]))
    run = Interpreter.fitting(program).run(program, new)
    assert (classes_of(run.outputs) == network.predict(new)).all()


def test_a_regressor_gives_the_same_numbers():
    x, y, new = tables(load_diabetes)
    network = fitted(MLPRegressor(hidden_layer_sizes=(12, 6), activation="tanh", max_iter=30, random_state=0), x, y)
    program = compile_network(network, data=np.concatenate([x, new]))
    run = program(new)
    assert abs(run.outputs[:, 0] - network.predict(new)).max() <= 1e-8


def test_one_that_is_not_fitted_is_refused():
    with pytest.raises(BadNetwork, match="call fit first"):
        compile_network(MLPClassifier(), 1.0)
