"""One frozen interpreter runs the whole library, to machine precision and within its certificates."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from library import FEATURES, JUMPS, KINKS, NAMES, SAMPLES, STEPS, case, dataset
from sklearn.datasets import load_diabetes

from emulon.algorithms import (
    GradientDescent,
    Lasso,
    Loss,
    PoissonRegression,
    QuantileRegression,
    Ridge,
)
from emulon.certify import Domain
from emulon.certify.certificate import IN_A_BAND_MEANS
from emulon.core.errors import BadShape, EmulonError, NotCertified, OutOfDomain
from emulon.interpreter import Interpreter, Program, compile
from emulon.interpreter.phase import ValueCoefficients

Programs = dict[str, Program]


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_runs_to_the_exact_weights(name: str, programs: Programs, interpreter: Interpreter):
    c = case(name)
    run = interpreter.run(programs[name], c.x, c.y)
    error = (run.weights - c.algorithm.run(c.x, c.y)).abs().max().item()
    assert not run.entered_band
    assert error <= (1e-6 if name in KINKS else 1e-10)
    assert error <= run.certificate.bound
    assert run.certificate.proved


def test_one_hash_before_and_after_all_programs(programs: Programs, interpreter: Interpreter):
    hashes = {interpreter.sha256}
    for name, program in programs.items():
        c = case(name)
        hashes |= set(interpreter.run(program.changed(steps=2, step_from_data=False), c.x, c.y).sha256)
    assert len(programs) >= 12
    assert hashes == {interpreter.sha256}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fista"])
def test_certificates_say_something(name: str, programs: Programs, interpreter: Interpreter):
    limits = {"nesterov": 1e-5} | dict.fromkeys(KINKS, 1.0)  # acceleration lets errors grow with the square of steps
    assert interpreter.certificate(programs[name]).bound < limits.get(name, 1e-6)


def test_where_a_certificate_says_nothing_the_audit_does(programs: Programs, interpreter: Interpreter):
    """Nothing bounds what accelerated steps with a kink make of errors, for all data; of a run it can be seen."""
    c = case("fista")
    run = interpreter.run(programs["fista"], c.x, c.y)
    error = (run.weights - c.algorithm.run(c.x, c.y)).abs().max().item()
    # The algorithm in float64 is itself off the exact one, in its last places.
    assert error - 1e-15 <= run.audit.bound <= 1.01 * error + 1e-15 and run.certificate.bound > run.weights.abs().max()
    promises = run.bounds
    assert list(promises) == [run.audit, run.certificate] and promises.size == run.weights.abs().max().item()


def test_a_changed_number_of_the_frozen_grid_withdraws_its_certificates(programs: Programs):
    c, program = case("ridge"), programs["ridge"].changed(steps=2)
    interpreter = Interpreter.fitting(program)
    sha256 = interpreter.sha256
    interpreter.values[len(interpreter.values) // 2] += 1e-6
    assert interpreter.sha256 != sha256
    with pytest.raises(NotCertified, match="its certificate is withdrawn"):
        interpreter.run(program, c.x, c.y)


def test_float32_ends_within_twenty_times_of_plain_float32():
    """Rows that carry the state are read large, where the line's error is a small part of them."""
    x, y = (torch.tensor(part) for part in load_diabetes(return_X_y=True))
    x, y = (((part - part.mean(0)) / part.std(0)).float() for part in (x, y))
    program = compile(Ridge(steps=200), data=(x, y), dtype=torch.float32)
    plain, exact = torch.zeros(10), program.descent.run(x, y)
    for _ in range(200):
        plain = program.plan.shrink * plain - program.step_size * ((x @ plain - y) @ x) / len(x)
    run = Interpreter.fitting(program).run(program, x, y)
    error, allowed = ((each.double() - exact).abs().max().item() for each in (run.weights, plain))
    assert error <= run.audit.bound <= 20 * allowed


@pytest.fixture(scope="module")
def lasso_in_float32() -> Program:
    return compile(Lasso(0.1, 5, 0.4), Domain(8, 2, x=1.0, y=1.0, w=2.0), dtype=torch.float32)


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 0.3, 1.0]))
def test_a_penalty_in_float32_is_within_certificate_and_audit_on_both_paths(
    lasso_in_float32: Program, seed: int, scale: float
):
    program, draw = lasso_in_float32, torch.Generator().manual_seed(seed)
    x, y = 2 * torch.rand(8, 2, generator=draw) - 1, scale * (2 * torch.rand(8, generator=draw) - 1)
    interpreter, exact = Interpreter.fitting(program), program.descent.run(x, y)
    for mode in ("fast", "reference"):
        run = interpreter.run(program, x, y, mode=mode)
        error = (run.weights.double() - exact).abs().max().item()
        assert error <= run.audit.bound <= run.certificate.bound and run.audit.bound < 2e-4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", sorted(JUMPS))
def test_losses_with_jumps_agree_unless_a_band_was_entered(name: str, seed: int):
    c = case(name)
    x, y = dataset("value" if name == "quantile_regression" else "label", seed)
    program = compile(c.algorithm, data=(x, y), tolerance=1e-10)
    run = Interpreter.fitting(program).run(program, x, y)
    error = (run.weights - c.algorithm.run(x, y)).abs().max().item()
    assert run.entered_band or error <= min(1e-10, run.certificate.bound)


def test_a_residual_put_into_the_band_is_told():
    x, clear = torch.ones(3, 1, dtype=torch.float64), torch.tensor([1.0, -1.0, 0.35], dtype=torch.float64)
    program = compile(QuantileRegression(0.5, steps=3, step_size=0.1), data=(x, clear))
    interpreter = Interpreter.fitting(program)
    near = torch.tensor([1.0, -1.0, 1e-9], dtype=torch.float64)
    kept, broken = interpreter.run(program, x, clear), interpreter.run(program, x, near)
    assert not kept.entered_band and kept.certificate == interpreter.certificate(program)
    assert broken.entered_band is True and broken.certificate.bound == math.inf > broken.audit.bound
    assert IN_A_BAND_MEANS in broken.certificate.assumes and IN_A_BAND_MEANS not in kept.certificate.assumes
    (outside,) = (each for each in kept.certificate.assumes if each.startswith("no residual comes into (-"))
    assert outside in broken.certificate.assumes
    assert replace(broken, given=broken.given).certificate == broken.certificate
    assert broken.bounds.bound == broken.audit.bound


def test_what_a_run_promises_holds_whether_or_not_it_entered_a_band():
    """A residual is put at the jump or beside it, at every step: some runs err by more than the domain's bound."""
    x = torch.tensor([[1.0, 0.2], [0.3, -1.0], [-0.7, 0.5]], dtype=torch.float64)
    algorithm = QuantileRegression(0.5, steps=8, step_size=0.1)
    program = compile(algorithm, data=(x, torch.tensor([1.0, -1.0, 0.35], dtype=torch.float64)))
    interpreter = Interpreter.fitting(program)
    entered = 0
    for step in range(1, 8):
        for offset in (-1e-7, 0.0, 1e-9, 1e-6):
            y = torch.tensor([1.0, -1.0, 0.35], dtype=torch.float64)
            y[0] = (algorithm.iterates(x, y)[step] @ x[0]) + offset
            run = interpreter.run(program, x, y)
            error = (run.weights - algorithm.run(x, y)).abs().max().item()
            assert error <= run.certificate.bound and error <= run.audit.bound
            entered += error > interpreter.certificate(program).bound
    assert entered


def test_a_loss_that_is_not_convex_is_certified_as_such():
    x, y = dataset("value")
    loss = Loss.of("log(1 + t**2)", curvature=2.0)
    algorithm = GradientDescent(loss, STEPS)
    program = compile(algorithm, data=(x, y), tolerance=1e-2)
    convex = program.changed(negative_curvature=0.0)
    run = Interpreter.fitting(program).run(program, x, y)
    assert program.plan.negative_curvature > 0.25
    assert program.plan.growth > 10 * convex.plan.growth
    run.certificate.verify(run.weights, algorithm.run(x, y))


@pytest.mark.parametrize("mode", ["fast", "reference"])
@pytest.mark.parametrize("name", ["ridge", "lasso"])
def test_batches_run_as_their_elements_do(interpreter: Interpreter, programs: Programs, name: str, mode: str):
    x, y = dataset("value")
    x, y = torch.stack([x, x]), torch.stack([y, 0.5 * y])
    program = programs[name].changed(strong_convexity=0.0, steps=8 if mode == "fast" else 2)
    together = interpreter.run(program, x, y, mode).weights
    for i in range(2):
        alone = interpreter.run(program, x[i], y[i], mode).weights
        torch.testing.assert_close(together[i], alone, atol=1e-8 if name == "lasso" else 1e-12, rtol=0.0)


def test_a_program_predicts_like_anything_else(programs: Programs):
    x, y = dataset("value")
    program = programs["lasso"].changed(strong_convexity=0.0)
    x, y = torch.stack([x, x]), torch.stack([y, 0.5 * y])
    queries = torch.randn(2, 3, FEATURES, dtype=torch.float64)
    said = program.predict(x, y, queries)
    torch.testing.assert_close(said, case("lasso").algorithm.predict(x, y, queries), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(program.predict(x, y, queries[:, 1]), said[:, 1])
    assert program.examples == (len(x[0]),)


def test_the_trace_shows_both_layers_of_the_last_step(programs: Programs):
    c, program = case("logistic_regression"), programs["logistic_regression"].changed(steps=2)
    interpreter = Interpreter.fitting(program)
    run = interpreter.run(program, c.x, c.y)
    assert {record.name for record in run.trace.records} == {"layer 1", "layer 2"}
    weights = run.trace["layer 2"].weights
    keys = len(program.gradient.grid)
    assert weights.shape == (SAMPLES, SAMPLES * keys)
    own = weights.reshape(SAMPLES, SAMPLES, keys).sum(dim=-1).diagonal()
    torch.testing.assert_close(own, torch.ones_like(own), atol=1e-12, rtol=0.0)
    state = run.trace["layer 2"].output[..., : 2 * FEATURES]
    torch.testing.assert_close(program.gradient.read_out(state), run.weights, atol=1e-12, rtol=0.0)


@pytest.mark.parametrize("name", ["ridge", "huber_regression"])
def test_the_codes_of_a_sample_are_emulated_to_the_same_bits(name: str, programs: Programs):
    """The certificate takes the error of a sample's code rows as common to its keys."""
    c, phase = case(name), programs[name].gradient
    rows = phase.data_rows(c.x, c.y)
    w = torch.zeros(FEATURES, dtype=torch.float64)
    w_k, _, _ = replace(phase, values=ValueCoefficients(0.1, 1.0)).weights()
    k = Interpreter.fitting(programs[name]).project(phase.prompt(rows, w, state=w, before=w), w_k)
    codes = k[:, -phase.codes.width :].reshape(SAMPLES, len(phase.grid), -1)
    assert torch.equal(codes, codes[:, :1].expand_as(codes))


REFUSED = {
    "x": ("ridge", lambda x, y: (2 * x, y), OutOfDomain, "x"),
    "y": ("ridge", lambda x, y: (x, 2 * y), OutOfDomain, "y"),
    "flat": ("ridge", lambda x, y: (0.5 * x, y), OutOfDomain, "λmin"),
    "x that is no number": ("ridge", lambda x, y: (x * torch.nan, y), OutOfDomain, "NaN"),
    "y that is infinite": ("ridge", lambda x, y: (x, y * torch.inf), OutOfDomain, "NaN"),
    "features": ("ridge", lambda x, y: (x[:, :3], y), BadShape, "wanted"),
    "samples": ("ridge", lambda x, y: (x[:7], y[:7]), BadShape, "wanted"),
    "targets": ("ridge", lambda x, y: (x, y[:7]), BadShape, "wanted"),
    "labels": ("logistic_regression", lambda x, y: (x, 0.5 * y), OutOfDomain, "labels"),
    "counts": ("poisson_regression", lambda x, y: (x, -y), OutOfDomain, "counts"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_data_that_a_program_is_not_for_are_refused_in_a_line(what: str, programs: Programs, interpreter: Interpreter):
    name, change, error, words = REFUSED[what]
    c = case(name)
    with pytest.raises(error, match=words) as caught:
        interpreter.run(programs[name], *change(c.x, c.y))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "target"),
    [(Ridge(steps=5, step_size=0.3), "value"), (PoissonRegression(steps=5, step_size=0.2), "count")],
)
def test_steps_too_long_for_the_data_are_refused(algorithm: Ridge | PoissonRegression, target: str):
    """Poisson's curvature grows with its path, and is watched."""
    x, y = dataset(target)
    program = compile(algorithm, data=(x, y))
    program = program.changed(step_size=10 * program.step_size)
    with pytest.raises(OutOfDomain, match="too long"):
        Interpreter.fitting(program).run(program, x, y)


def test_other_data_on_which_the_algorithm_would_take_another_step_are_refused():
    x, y = dataset("value")
    program = compile(Ridge(0.1, 5), Domain.of(x, y))
    interpreter = Interpreter.fitting(program)
    interpreter.run(program, x, y)
    with pytest.raises(OutOfDomain, match=r"would take steps of .* make it for this data, or give it a step_size"):
        interpreter.run(program, 0.9 * x, y)


def test_the_earlier_names_of_modes_warn_and_run(programs: Programs):
    c, program = case("ridge"), programs["ridge"]
    interpreter = Interpreter.fitting(program)
    with pytest.warns(DeprecationWarning, match="path='faithful' is mode='reference' since 0.3"):
        earlier = interpreter.run(program, c.x, c.y, path="faithful").weights
    assert torch.equal(earlier, interpreter.run(program, c.x, c.y, mode="reference").weights)
    with pytest.raises(EmulonError, match="there is no mode 'slow'"):
        interpreter.run(program, c.x, c.y, "slow")
