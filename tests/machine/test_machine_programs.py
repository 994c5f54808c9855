"""Whole programs against the exact algorithms, at every position."""

from __future__ import annotations

import pytest
import torch
from exact_learners import exact_batch, exact_moving_average, exact_ridge, exact_sgd, gaussian_data, unit_data

from emulon.attention import Trace
from emulon.certify import Domain, Spectrum
from emulon.core.errors import BadShape, OutOfDomain, ToleranceTooTight
from emulon.machine import BadProgram
from emulon.machine.programs import batch_gradient_descent, moving_average, sgd, sherman_morrison

STEP = 0.05


@pytest.mark.parametrize(("features", "samples"), [(4, 8), (8, 16)])
def test_sgd_is_exact_sgd_at_every_position(features: int, samples: int) -> None:
    xs, ys = gaussian_data(16, samples, features)
    model = sgd(features, samples, STEP).compile()
    error = model.certificate.verify(model.predict(xs, ys), exact_sgd(xs, ys, STEP))
    print(f"sgd d={features} n={samples}: error {error:.1e}, certificate {model.certificate.bound:.1e}")
    print(f"    depth {model.depth} (the paper: O(N), N = {samples}), width {model.width} (O(d), d = {features})")
    assert error < 1e-6
    assert model.depth == 2 * (samples - 1) + 1  # the paper: O(N) layers
    assert model.width <= 4 * features + 20  # the paper: O(d) (and O(N + d) with its one-hot codes)


def test_sgd_with_ridge_and_a_start() -> None:
    xs, ys = gaussian_data(12, 6, 3)
    start = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    model = sgd(3, 6, STEP, ridge=0.3, initial=start).compile()
    assert (model.predict(xs, ys) - exact_sgd(xs, ys, STEP, 0.3, start)).abs().max() < 1e-10


def test_one_step_of_sgd_is_theorem_1() -> None:
    xs, ys = gaussian_data(12, 5, 3)
    start = torch.ones(3, dtype=torch.float64)
    model = sgd(3, 5, STEP, initial=start, steps=1).compile()
    assert model.depth == 3  # O(1), whatever the number of examples
    assert (model.predict(xs, ys) - exact_sgd(xs, ys, STEP, initial=start, window=1)).abs().max() < 1e-10


@pytest.mark.parametrize("ridge", [1.0, 0.1, 0.01])
def test_sherman_morrison_is_ridge_at_every_position(ridge: float) -> None:
    xs, ys = gaussian_data(16, 8, 4)
    model = sherman_morrison(4, 8, ridge).compile()
    error = (model.predict(xs, ys) - exact_ridge(xs, ys, ridge)).abs().max().item()
    print(f"sherman_morrison d=4 n=8 ridge={ridge}: error {error:.1e}, certificate {model.certificate.bound:.1e}")
    print(f"    depth {model.depth} (the paper: O(N), N = 8), width {model.width} (O(d²), d² = 16)")
    assert error < 1e-5
    assert model.depth == 4 * 7 + 1


def test_sherman_morrison_depth_and_width_grow_as_the_paper_says() -> None:
    """Depth O(N), free of d; width O(d²), free of N."""
    shapes = {(d, n): sherman_morrison(d, n).compile() for d, n in [(2, 4), (2, 8), (4, 4), (8, 4)]}
    assert shapes[2, 8].depth - shapes[2, 4].depth == 4 * 4
    assert shapes[2, 4].depth == shapes[8, 4].depth
    assert shapes[2, 8].width == shapes[2, 4].width
    assert shapes[8, 4].width <= 8**2 + 6 * 8 + 24


@pytest.mark.parametrize(
    ("program", "exact"),
    [
        (lambda domain: sgd(4, 8, STEP, domain=domain), lambda xs, ys: exact_sgd(xs, ys, STEP)),
        (lambda domain: sherman_morrison(4, 8, 1.0, domain=domain), lambda xs, ys: exact_ridge(xs, ys, 1.0)),
        (
            lambda domain: batch_gradient_descent(4, 8, STEP, 4, domain=domain),
            lambda xs, ys: exact_batch(xs, ys, STEP, 4),
        ),
    ],
    ids=["sgd", "sherman_morrison", "batch_gradient_descent"],
)
def test_whole_programs_stay_below_a_finite_certificate(program, exact) -> None:
    xs, ys = unit_data(24, 8, 4)
    model = program(Domain(8, 4, x=1.0, y=1.0, w=4.0, spectrum=Spectrum(norm=1.0))).compile()
    error = model.certificate.verify(model.predict(xs, ys), exact(xs, ys))
    print(f"{model.program.name}: error {error:.1e}, certificate {model.certificate}")
    assert model.certificate.bound < 1e-5


@pytest.mark.parametrize(("steps", "ridge"), [(1, 0.0), (5, 0.2)])
def test_batch_gradient_descent(steps: int, ridge: float) -> None:
    xs, ys = gaussian_data(16, 8, 4)
    model = batch_gradient_descent(4, 8, STEP, steps, ridge=ridge).compile()
    error = model.certificate.verify(model.predict(xs, ys), exact_batch(xs, ys, STEP, steps, ridge))
    assert error < 1e-9
    assert model.depth == steps + 2


def test_moving_average_of_past_targets() -> None:
    ys = torch.randn(16, 9, dtype=torch.float64)
    model = moving_average(9, decay=0.8).compile()
    error = model.certificate.verify(
        model.predict(torch.zeros(16, 9, 1, dtype=torch.float64), ys), exact_moving_average(ys, 0.8)
    )
    assert error < 1e-12
    assert model.depth == 8


def test_predictions_use_only_the_past() -> None:
    """Changing example j moves predictions after j, never at or before it (but for x_j's own prediction)."""
    xs, ys = gaussian_data(4, 6, 3)
    model = sgd(3, 6, STEP).compile()
    before = model.predict(xs, ys)
    changed = ys.clone()
    changed[:, 2] += 1.0
    after = model.predict(xs, changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] - after[:, 3:]).abs().min(dim=0).values.max() > 1e-4


def test_any_batch_shape_and_a_missing_last_target() -> None:
    xs, ys = gaussian_data(6, 5, 2)
    model = sgd(2, 5, STEP).compile()
    whole = model.predict(xs, ys)
    assert (model.predict(xs.unflatten(0, (2, 3)), ys.unflatten(0, (2, 3))).flatten(0, 1) - whole).abs().max() < 1e-12
    assert torch.equal(model.predict(xs, ys[:, :-1]), whole)
    assert (model.predict(xs[0], ys[0]) - whole[0]).abs().max() < 1e-12


def test_everything_goes_through_causal_softmax_attention() -> None:
    xs, ys = gaussian_data(2, 4, 2)
    model = sgd(2, 4, STEP).compile()
    with Trace() as trace:
        model.predict(xs, ys)
    assert len(trace.records) == model.depth
    for record in trace.records:
        assert record.weights.triu(1).abs().max() == 0
        assert (record.weights.sum(-1) - 1).abs().max() < 1e-12


def test_data_outside_the_domain_are_refused() -> None:
    xs, ys = gaussian_data(2, 4, 2)
    model = sgd(2, 4, STEP).compile()
    with pytest.raises(OutOfDomain, match="x reaches"):
        model.predict(100 * xs, ys)
    with pytest.raises(OutOfDomain, match="NaN"):
        model.predict(xs * float("nan"), ys)
    with pytest.raises(BadShape, match="xs has shape"):
        model.predict(xs[:, :3], ys)


def test_an_iterate_that_leaves_its_domain_is_refused_while_it_runs() -> None:
    """A step size that makes SGD diverge: no bound holds, so the stream is watched and the instruction named."""
    xs, ys = gaussian_data(2, 8, 2)
    model = sgd(2, 8, 3.0).compile()
    with pytest.raises(OutOfDomain, match=r"instruction \d+ \(aff w"):
        model.predict(xs, ys)


def test_a_tolerance_that_cannot_be_promised_is_refused() -> None:
    assert sgd(2, 4, STEP).compile(tolerance=1e-6).certificate.bound <= 1e-6
    with pytest.raises(ToleranceTooTight, match="can promise"):
        sgd(2, 4, STEP).compile(tolerance=1e-15)


def test_sherman_morrison_needs_a_ridge() -> None:
    with pytest.raises(BadProgram, match="ridge > 0"):
        sherman_morrison(2, 4, 0.0)


def test_the_repr_tells_what_was_built() -> None:
    text = repr(sgd(4, 8, STEP).compile())
    for part in ("sgd", "depth 15", "width", "heads", "parameters", "error ≤", "float64"):
        assert part in text


def test_a_run_has_its_registers_its_result_and_the_certificate_for_every_input() -> None:
    xs, ys = gaussian_data(3, 4, 2)
    model = sgd(2, 4, STEP).compile()
    run = model.run(**model.program.prompt.fill(xs, ys))
    assert set(run.registers) == set(model.program.registers) and run["guess"] is run.result
    assert torch.equal(model.program.prompt.predictions(run.result), model.predict(xs, ys))
    assert run.certificate == model.certificate and run.certificate.scope == "domain"
