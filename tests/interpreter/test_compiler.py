"""From an algorithm to a program: what is chosen, what is refused."""

import time
import warnings

import numpy as np
import pytest
import torch
from library import dataset

from emulon import Domain, Interpreter, compile
from emulon.algorithms import (
    Fista,
    GradientDescent,
    LinearRegression,
    LogCoshRegression,
    Loss,
    NewtonLeastSquares,
    PoissonRegression,
    Ridge,
    log_cosh,
    squared,
)
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.expressions import parse
from emulon.interpreter.compiler import _found


def test_the_public_interface():
    x, y = dataset("value")
    program = compile(Ridge(penalty=0.1, steps=200), Domain.of(x, y), tolerance=1e-8)
    another_program = compile(LogCoshRegression(steps=20), data=(x, y))
    interpreter = Interpreter.fitting(program, another_program)
    run = interpreter.run(program, x, y)
    x_new = torch.randn(3, x.shape[1], dtype=torch.float64)
    exact = Ridge(penalty=0.1, steps=200).run(x, y)
    assert (run.weights - exact).abs().max() <= min(run.certificate.bound, 1e-10)
    assert run.certificate.bound < 1e-6
    torch.testing.assert_close(run.predict(x_new), x_new @ exact)
    assert len(run.trace.records) == 2
    assert run.sha256 == (interpreter.sha256, interpreter.sha256)
    other = interpreter.run(another_program, x, y)
    other.certificate.verify(other.weights, LogCoshRegression(steps=20).run(x, y))


def test_a_kink_that_keeps_a_tolerance_from_being_met_takes_few_keys_that_err_little_more():
    def noise(grid, deviation, size):
        return 50 * grid.rounding_error(deviation, size)

    huber = parse("Max(-1.35, Min(1.35, t))")
    many, few = (_found(huber, 7.0, 1e-12, torch.float64, noise, fewer) for fewer in (1.0, 3.0))
    assert len(few["slopes"]) < len(many["slopes"])
    assert few["bounds"]["interpolation"] < 4 * many["bounds"]["interpolation"]
    # Where the tolerance is met, it is met with both.
    loose = [_found(huber, 7.0, 1e-3, torch.float64, noise, fewer) for fewer in (1.0, 3.0)]
    assert loose[0]["slopes"] == loose[1]["slopes"] and loose[0]["bounds"]["interpolation"] <= 1e-3


@pytest.mark.parametrize(
    ("words", "algorithm"),
    [
        ("not gradient descent", NewtonLeastSquares(5)),
        ("momentum", GradientDescent(log_cosh(), 5, momentum=0.5)),
        ("momentum", GradientDescent(squared(), 5, l1=0.1, momentum=0.5)),
    ],
)
def test_what_the_interpreter_does_not_run_is_refused(words: str, algorithm: NewtonLeastSquares | GradientDescent):
    x, y = dataset("value")
    with pytest.raises(EmulonError, match=words) as caught:
        compile(algorithm, data=(x, y))
    assert "\n" not in str(caught.value)


def test_a_domain_or_data_is_asked_for():
    with pytest.raises(EmulonError, match="domain, or data"):
        compile(Ridge())


def test_a_step_size_is_asked_for_where_it_depends_on_the_data():
    x, y = dataset("count")
    with pytest.raises(EmulonError, match="step size from the data"):
        compile(PoissonRegression(steps=5), Domain.of(x, y))
    assert compile(PoissonRegression(steps=5, step_size=0.05), Domain.of(x, y), tolerance=1e-2).step_size == 0.05


def test_a_certificate_says_what_is_left_to_the_run():
    x, y = dataset("value")
    steep = compile(Ridge(0.1, 5, step_size=0.3), Domain(40, 4, 3.0, 5.0, 2.0), tolerance=1e-3)
    assert any("step_size·L ≤ 2" in each for each in steep.certificate.assumes)
    known = compile(Ridge(0.1, 5, step_size=0.3), Domain.of(x, y), tolerance=1e-3)
    assert not any("step_size" in each for each in known.certificate.assumes)
    chosen = compile(Ridge(0.1, 5), data=(x, y), tolerance=1e-3)
    assert any(repr(chosen.step_size) in each for each in chosen.certificate.assumes)
    assert Interpreter.fitting(chosen).run(chosen, x, y).audit.assumes == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex128])
def test_other_dtypes_are_refused_by_name(dtype: torch.dtype):
    x, y = dataset("value")
    with pytest.raises(EmulonError, match=rf"float32 or float64, not {str(dtype).removeprefix('torch.')}$"):
        compile(Ridge(0.1, 5), data=(x, y), dtype=dtype)


@pytest.mark.parametrize("scale", [1e200, 1e300])
def test_data_whose_squares_overflow_are_refused_in_one_line(scale: float):
    x, y = dataset("value")
    for ask in (
        lambda: compile(Ridge(0.1, 5), data=(x * scale, y)),
        lambda: Ridge(0.1, 5).run(x * scale, y),
        lambda: Domain.of(x * scale, y),
        lambda: Domain(4, 2, scale, 1.0, 1.0),
    ):
        with pytest.raises(OutOfDomain, match=r"(overflows float64 when squared|not between 1e-60 and .*); rescale"):
            ask()


def test_numbers_that_no_line_reaches_are_refused_at_once():
    x, y = dataset("value")
    start = time.process_time()
    with pytest.raises(OutOfDomain, match=r"needs numbers up to .* identity grids end at 1.1e\+12; rescale"):
        compile(LinearRegression(steps=2), data=(x * 1e-30, y)).certificate  # noqa: B018 (asking is what is refused)
    assert time.process_time() - start < 1


def test_a_tolerance_that_cannot_be_kept_is_told_in_the_words_of_the_commands():
    x, y = dataset("value")
    with pytest.warns(UserWarning, match=r"the interpolation of Ridge can promise \S+, not 1\.0e-30; loosen it"):
        compile(Ridge(steps=3), data=(x, y), tolerance=1e-30)
    with pytest.warns(UserWarning, match="of Fista says nothing after 60 steps; the audit of a run does"):
        compile(Fista(steps=60), data=(x, y), tolerance=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(Fista(steps=60), data=(x, y))  # nothing was asked for


def test_several_targets_are_learned_on_one_x_as_each_alone():
    x, y = dataset("value")
    targets = torch.stack([y, 2 * x[:, 0] - y], dim=-1)
    program = compile(Ridge(steps=40), data=(x, targets))
    together = program(x.numpy(), targets.numpy())
    assert together.weights.shape == (2, x.shape[1]) and together.predict(x[:3].numpy()).shape == (2, 3)
    for row, target in zip(together.weights, targets.unbind(-1), strict=True):
        exact = Ridge(steps=40).run(x, target)
        assert np.abs(row - exact.numpy()).max() <= together.audit.bound < 1e-10


def test_an_error_that_reaches_the_state_as_next_to_nothing_is_compiled_in_float32():
    """Found by random cases: rows of a size below 1e-38 cannot be scaled up to where the line reads best."""
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([-1e-20], dtype=torch.float64)
    program = compile(GradientDescent(Loss.of("5*t**2", curvature=10.0), 0, 0.1), data=(x, y), dtype=torch.float32)
    assert Interpreter.fitting(program).run(program, x.float(), y.float()).last.tolist() == [0.0]


def test_a_derivative_that_float32_does_not_hold_is_refused():
    """Found by random cases: (1e20)³ is infinite there."""
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([1e20], dtype=torch.float64)
    with pytest.raises(OutOfDomain, match="more than float32 holds"):
        compile(GradientDescent(Loss.of("t**4/4"), 0, 1.0), data=(x, y), dtype=torch.float32)


@pytest.mark.parametrize("feature", [1e-40, 1e-36])
def test_residuals_that_need_infinite_slopes_in_float32_are_refused(feature):
    """Found by random cases: the slopes of the keys are about one over the residuals."""
    x, y = torch.tensor([[0.0, feature]], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(OutOfDomain, match="more than float32 holds; scale the data up"):
        compile(LinearRegression(steps=0), data=(x, y), dtype=torch.float32)


def test_targets_off_centre_are_told_of_with_advice():
    x = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = 150 + x[:, 0]
    with pytest.warns(UserWarning, match=r"mean 150 and deviation 0\.883, .*EmulatedRegressor"):
        compile(Ridge(steps=2), data=(x, y))
    # In these the intercept is there, or nothing is to be shifted, or what is meant has been said.
    compile(Ridge(steps=2), data=(torch.cat([x, torch.ones(30, 1)], dim=1), y))
    compile(Ridge(steps=2), data=(x, y - y.mean()))
    compile(Ridge(steps=2), Domain.of(x, y), data=(x, y))
    compile(PoissonRegression(steps=2, step_size=1e-3), data=(x, torch.full((30,), 3.0)))
