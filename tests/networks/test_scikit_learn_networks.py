"""scikit-learn's perceptrons by prompt: the same classes, and regressions to the last places."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris
from sklearn.neural_network import MLPClassifier, MLPRegressor

from emulon import Interpreter, compile_network
from emulon.cli import main
from emulon.core.errors import BadNetwork
from emulon.identification.loading import BadSkops, load_object
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


def test_a_regressor_of_counts_answers_with_an_exponential():
    x, y = load_diabetes(return_X_y=True)
    network = MLPRegressor(loss="poisson", hidden_layer_sizes=(3,), activation="tanh", max_iter=5, random_state=0)
    fitted(network, x[:60], y[:60] / 100)
    assert abs(compile_network(network, data=x)(x).outputs[:, 0] - network.predict(x)).max() <= 1e-8


class OfMyOwn:
    """Nothing that skops trusts."""


def test_a_classifier_comes_out_of_a_skops_file(tmp_path, capsys):
    from skops import io

    x, y = load_iris(return_X_y=True)
    network = fitted(MLPClassifier((6,), activation="tanh", max_iter=20, random_state=0), x, y)
    io.dump(network, tmp_path / "iris.skops")
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", header="a,b,c,d")
    compiling = ["compile", f"{tmp_path}/iris.skops", "--data", f"{tmp_path}/x.csv"]
    assert main([*compiling, "--out", f"{tmp_path}/files"]) == 0
    assert main(["exec", f"{tmp_path}/files", "--data", f"{tmp_path}/x.csv", "--out", f"{tmp_path}/y.csv"]) == 0
    logits = np.loadtxt(tmp_path / "y.csv", delimiter=",", skiprows=1)[:, 1:]
    assert (network.classes_[classes_of(logits)] == network.predict(x)).all()
    network.extra = OfMyOwn()
    io.dump(network, tmp_path / "iris.skops")
    capsys.readouterr()
    assert main([*compiling, "--out", f"{tmp_path}/other"]) == 2
    said = capsys.readouterr().err
    assert "OfMyOwn, which is not trusted" in said and said.count("\n") == 1
    assert not (tmp_path / "other").exists()


def test_a_file_that_is_no_skops_file_is_refused(tmp_path):
    (tmp_path / "a.skops").write_bytes(pickle.dumps({}))
    with pytest.raises(BadSkops, match="cannot be read as a skops file"):
        load_object(tmp_path / "a.skops")


def test_one_that_is_not_fitted_is_refused():
    with pytest.raises(BadNetwork, match="call fit first"):
        compile_network(MLPClassifier(), 1.0)
