"""Slips in Akyürek et al. 2022: the printed formula fails, the corrected one holds."""

from __future__ import annotations

import math

import torch
from exact_learners import exact_sgd, gaussian_data
from torch import Tensor
from torch.nn.functional import gelu

from emulon.machine import Average, RegisterProgram
from emulon.machine.programs import sgd


def layer_norm(values: Tensor) -> Tensor:
    """λ of Eq. 7, without the ε of practice."""
    centred = values - values.mean()
    return centred / centred.square().mean().sqrt()


def test_a_the_quadratic_coefficient_of_gelu() -> None:
    """Eq. 38 prints √(2/π); it is 1/√(2π). Eq. 39, for the product, is right all the same."""
    z = torch.tensor(1e-3, dtype=torch.float64)
    measured = ((gelu(z) - z / 2) / z**2).item()
    assert abs(measured - math.sqrt(2 / math.pi)) > 0.3
    assert abs(measured - 1 / math.sqrt(2 * math.pi)) < 1e-6


def test_b_the_product_needs_n_squared() -> None:
    """Inputs divided by N give xy/N²: Eq. 118–120 multiply by N only."""
    x, y, n = torch.tensor(1.3, dtype=torch.float64), torch.tensor(-0.7, dtype=torch.float64), 1e3
    even = math.sqrt(math.pi / 2) * (gelu((x + y) / n) - gelu(x / n) - gelu(y / n))
    assert (n * even - x * y).abs() > 0.9
    assert (n**2 * even - x * y).abs() < 1e-5


def test_c_lemma_6_keeps_n() -> None:
    """√(2/L)·N·λ([x, N, −N − Σx, 0]) is [x, N, −N − Σx, 0]; the print says 2N."""
    x, n = torch.tensor([0.3, -1.1, 2.0], dtype=torch.float64), 1e6
    padded = torch.cat([x, torch.tensor([n, -n - x.sum().item(), 0.0], dtype=torch.float64)])
    passed = math.sqrt(2 / len(padded)) * n * layer_norm(padded)
    assert (passed[:3] - x).abs().max() < 1e-5
    assert abs(passed[3].item() - n) < 1e-5 * n
    assert abs(passed[3].item() - 2 * n) > 0.5 * n


def test_d_the_ridge_term_is_added() -> None:
    """The chain of appendix A subtracts 2λw inside the gradient; Eq. 11 adds it, and so does the program."""
    xs, ys = gaussian_data(8, 3, 2)
    start = torch.tensor([1.0, -2.0], dtype=torch.float64)
    w = start.clone().requires_grad_()
    loss = 0.5 * ((xs[0, 0] * w).sum() - ys[0, 0]) ** 2 + 0.4 * (w * w).sum()
    (gradient,) = torch.autograd.grad(loss, w)
    after = ((start - 0.05 * gradient) * xs[0, 1]).sum()
    predicted = sgd(2, 3, 0.05, ridge=0.4, initial=start).compile().predict(xs, ys)
    assert (predicted[0, 1] - after).abs() < 1e-11
    printed = exact_sgd(xs, ys, 0.05, -0.4, start)
    assert (printed - predicted)[:, 1].abs().max() > 1e-2


def test_e_reading_divides_by_the_number_of_tokens() -> None:
    """Eq. 23 prints (1/W_a)·Σ; the mean is (W_a/|K|)·Σ, as in Eq. 24–27 and here."""
    program = RegisterProgram("mean", 4)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.aff(b, 3.0 * a, at=Average("all", (1, 2, 3, 4)))  # W_a = 3
    inputs = torch.tensor([[[1.0], [0.5], [-0.2], [0.7]]], dtype=torch.float64)
    found = program.compile().run(a=inputs)["b"][0, :, 0]
    sums, counts = inputs[0, :, 0].cumsum(0), torch.arange(1, 5)
    assert (found - 3.0 / counts * sums).abs().max() < 1e-12
    assert (found - sums / 3.0).abs().max() > 0.5
