"""NumPy arrays, DataFrames, lists and tensors are all data: the same numbers from all, in the kind that was given."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.datasets import load_diabetes

from emulon import Domain, Interpreter, compile
from emulon.algorithms import NearestNeighbours, OnlineSGD, Ridge, Zero
from emulon.core.arrays import ArrayFormat, as_tensor, bits, own_copy
from emulon.core.errors import BadShape, EmulonError
from emulon.core.predictor import as_predictor
from emulon.looped import LoopedGradientDescent
from emulon.machine.programs import sgd
from emulon.networks import compile_network
from emulon.softmax import approximate

KINDS = {
    "numpy": (np.asarray, np.ndarray),
    "frame": (lambda a: pd.DataFrame(a) if np.ndim(a) == 2 else pd.Series(a), pd.Series),
    "list": (lambda a: np.asarray(a).tolist(), list),
    "tensor": (torch.as_tensor, torch.Tensor),
}
RIDGE = Ridge(0.1, 20)


@pytest.fixture(scope="module")
def diabetes():
    x, y = load_diabetes(return_X_y=True)
    return x[:60], y[:60] - y[:60].mean()


@pytest.fixture(scope="module")
def expected(diabetes):
    return compile(RIDGE, data=tuple(map(torch.from_numpy, diabetes)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_runs_on_data_as_they_come_and_answers_in_kind(kind, diabetes, expected):
    make, answered = KINDS[kind]
    x, y = map(make, diabetes)
    program = compile(RIDGE, data=(x, y))
    run = program(x, y)
    assert program.gradient.proved == expected.gradient.proved
    assert isinstance(run.weights, answered) and isinstance(run.predict(x[:3]), answered)
    assert np.array_equal(np.asarray(run.weights), expected(*map(torch.from_numpy, diabetes)).weights)
    assert np.allclose(run.predict(x[:3]), diabetes[0][:3] @ np.asarray(run.weights), rtol=1e-12)
    assert isinstance(program.predict(x, y, x[:3]), answered)
    assert Domain.of(x, y) == Domain.of(*map(torch.from_numpy, diabetes))


@pytest.mark.parametrize("kind", KINDS)
def test_everything_else_that_predicts_does_so_too(kind):
    make, answered = KINDS[kind]
    xs, ys = np.array([[0.5, -0.2], [0.1, 0.4], [-0.3, 0.3], [0.2, 0.2]]), np.array([0.4, -0.3, 0.2, 0.1])
    x, y, query = make(xs), make(ys), make(xs[:2])
    predictors = [RIDGE, NearestNeighbours(2), OnlineSGD(0.1), as_predictor(Zero())]
    exact = [each.predict(*map(torch.from_numpy, (xs, ys, xs[:1]))) for each in predictors]
    for each, wanted in zip(predictors, exact, strict=True):
        said = each.predict(x, y, query)
        assert isinstance(said, answered) and np.asarray(said)[0] == pytest.approx(wanted.item(), rel=1e-14)
    assert isinstance(RIDGE.run(x, y), answered)
    solver = LoopedGradientDescent(Domain.covering(x, y, make(xs[0])))
    said = solver.predict(x, y, make(xs[0]), loops=2)
    assert float(said) == solver.predict(*map(torch.from_numpy, (xs, ys, xs[0])), loops=2).item()
    assert isinstance(sgd(features=2, samples=4, step_size=0.05).compile().predict(x, y), answered)
    assert isinstance(approximate("t", (-1, 1), tolerance=1e-6)(y), np.ndarray if kind == "frame" else answered)


def test_answers_are_named_as_the_frame_was(diabetes, expected):
    names, rows = list("abcdefghij"), range(100, 100 + len(diabetes[1]))
    x = pd.DataFrame(diabetes[0], columns=names, index=rows)
    run = Interpreter.fitting(expected).run(expected, x, diabetes[1])
    assert list(run.weights.index) == names
    assert list(run.predict(x[5:8]).index) == [105, 106, 107]


def test_dtypes_are_kept_and_lists_are_float64():
    assert as_tensor(np.float32([1, 2])).dtype == torch.float32 and as_tensor([1, 2]).dtype == torch.float64
    assert as_tensor(np.array([1, 2])).dtype == torch.int64 and as_tensor(np.uint32([1])).dtype == torch.int64
    mixed = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": pd.array([1, None], dtype="Int64")})
    assert as_tensor(mixed[["b"]].astype(np.float32)).dtype == torch.float64
    assert as_tensor(mixed).nan_to_num(-1.0).tolist() == [[1, 0.5, 1], [2, 1.5, -1]]
    assert as_tensor(np.arange(4.0)[::-2]).tolist() == [3, 1]
    assert as_tensor(np.array([1.0, 2.0], dtype=">f8")).tolist() == [1, 2]
    frozen = np.ones(2)
    frozen.flags.writeable = False
    assert as_tensor(frozen).tolist() == [1, 1]
    assert isinstance(ArrayFormat.of(pd.Series([1.0])).back(torch.tensor(2.0).double()), np.float64)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (csr_matrix(np.eye(2)), r"x is a sparse matrix; .*x\.toarray\(\)"),
        ([[1.0, 2.0], [3.0]], "x is no array of numbers; give rows of equal length"),
        (np.array(["a", "b"]), "x holds str.*, not numbers"),
        (pd.DataFrame({"age": [1.0], "city": ["Bonn"]}), "column 'city' of x holds .*, not numbers"),
        (np.array([object()]), "x is no array of numbers"),
        (np.array(["2026-01-01"], dtype="datetime64[D]"), "x holds datetime64.*, not numbers"),
    ],
)
def test_what_holds_no_numbers_is_refused_in_one_line(bad, words):
    with pytest.raises((BadShape, EmulonError), match=words) as caught:
        Domain.of(bad, [1.0, 2.0])
    assert "\n" not in str(caught.value)


def test_bits_are_those_of_the_numbers_whatever_the_strides():
    """One number may have any stride: a constant function with one key has 0."""
    one = torch.tensor([3.0])
    assert bits(one.as_strided((1,), (0,))) == bits(one) == np.float32(3).tobytes()
    assert bits(torch.arange(6.0).view(2, 3).mT) == bits(torch.tensor([0.0, 3, 1, 4, 2, 5]))
    assert bits(torch.zeros(0)) == b"" and len(bits(torch.ones((), dtype=torch.bfloat16))) == 2
    assert approximate("0.9", (-1, 1), points=1, grid="paper", dtype=torch.float32).certificate.proved


def test_a_late_audit_is_about_the_data_that_ran():
    """Whoever reads the next batch into the same memory does not change what an earlier run is."""
    xs, ys = torch.tensor([[[0.5], [0.25]]], dtype=torch.float64), torch.tensor([[0.5, 0.1]], dtype=torch.float64)
    query = torch.tensor([[0.3]], dtype=torch.float64)
    looped = LoopedGradientDescent(Domain.covering(xs, ys, query, 1.1), horizon=2)
    machine = sgd(features=1, samples=2, step_size=0.1).compile()
    prompt = machine.program.prompt.fill(xs, ys)
    network = compile_network(torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.Tanh()).double().eval(), 1.0)
    rows = xs[0].clone()
    program = compile(RIDGE, Domain.of(xs, ys))
    makes = (
        lambda: program(xs, ys),
        lambda: looped.run(xs, ys, query, loops=2),
        lambda: machine.run(**prompt),
        lambda: network(rows),
    )
    pairs = [(make(), make()) for make in makes]
    seen = [first.audit for first, _ in pairs]
    for part in (xs, ys, query, rows, *prompt.values()):
        part.mul_(-1)
    assert [late.audit for _, late in pairs] == seen


def test_a_copy_stays_expanded_and_a_conversion_is_copied_once():
    x = torch.ones(4, 2, dtype=torch.float64)
    wide = own_copy(x.expand(1000, 4, 2))
    assert wide.shape == (1000, 4, 2) and wide.untyped_storage().nbytes() == x.untyped_storage().nbytes()
    assert wide.data_ptr() != x.data_ptr() and own_copy(x, dtype=torch.float32).dtype == torch.float32
