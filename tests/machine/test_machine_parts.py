"""The pieces that instructions are made of: squares from GELU, LayerNorm's bypass, codes, expressions, printing."""

from __future__ import annotations

import math
import subprocess
import sys

import mpmath
import pytest
import torch
from flint import arb
from torch.nn.functional import gelu, layer_norm

from emulon.certify.rounding import EXP_ASSUMED, unit
from emulon.expressions.evaluation import ball_arithmetic
from emulon.machine import Average, Register, RegisterProgram
from emulon.machine.error import GELU_ASSUMED, GELU_ROUNDINGS
from emulon.machine.normalisation import _square, plan, square
from emulon.machine.programs import sgd
from emulon.machine.tokens import codes, gap, here, sharpness

TYPES = [torch.float64, torch.float32]


def even(z: torch.Tensor) -> torch.Tensor:
    return gelu(z) + gelu(-z)


def test_gelu_splits_into_an_exact_odd_part_and_the_even_part_of_the_design() -> None:
    z = torch.linspace(-8, 8, 1001, dtype=torch.float64)
    assert (gelu(z) - gelu(-z) - z).abs().max() < 1e-14
    assert (even(z) - z * torch.erf(z / math.sqrt(2))).abs().max() < 1e-14


@pytest.mark.parametrize("dtype", TYPES)
def test_torchs_gelu_is_measured_within_what_is_assumed(dtype: torch.dtype) -> None:
    """Assumed, not proved: a machine's certificate says so. Products ask for no larger arguments."""
    assert 2 * max(square(dtype).scales) <= 0.25
    z = torch.linspace(-0.25, 0.25, 2001, dtype=torch.float64).to(dtype)
    found, u = gelu(z).double().tolist(), unit(dtype)
    with ball_arithmetic(120):
        for at, near in zip(z.double().tolist(), found, strict=True):
            true = arb(at) * (1 + (arb(at) / arb(2).sqrt()).erf()) / 2
            assert abs(arb(near) - true) <= GELU_ROUNDINGS * u * abs(true) + u * abs(at)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_scale_cancels_one_more_power(count: int) -> None:
    """Halving the scale divides the error by 4 to the number of scales."""
    z = torch.linspace(-2, 2, 401, dtype=torch.float64)

    def error(exponent: int) -> float:
        way = _square(exponent, count)
        found = sum(w * even(s * z) for w, s in zip(way.weights, way.scales, strict=True))
        worst = (found - z * z).abs().max().item()
        assert worst <= way.truncation * (1 + 1e-6) + 1e-10
        return worst

    assert error(-4) / error(-5) == pytest.approx(4**count, rel=0.05)


@pytest.mark.parametrize("exponent, count", [(-4, 2), (-5, 3), (-9, 2)])
def test_what_scales_do_not_cancel_is_summed_without_its_signs(exponent: int, count: int) -> None:
    """At z = 2, from mpmath's own derivatives of z·erf(z/√2), weights being what solves for the powers below."""
    with mpmath.workdps(60):
        even_part = mpmath.taylor(lambda z: z * mpmath.erf(z / mpmath.sqrt(2)), 0, 2 * (count + 14))
        scales = [mpmath.mpf(2) ** (exponent + q) for q in range(count)]
        powers = mpmath.matrix(count, count)
        for n in range(count):
            for q, scale in enumerate(scales):
                powers[n, q] = scale ** (2 * n + 2)
        weights = mpmath.lu_solve(powers, mpmath.matrix([1 / even_part[2], *[0] * (count - 1)]))
        left = sum(
            abs(even_part[2 * n + 2] * sum(w * s ** (2 * n + 2) for w, s in zip(weights, scales, strict=True)))
            * 2 ** (2 * n + 2)
            for n in range(count, count + 13)
        )
    way = _square(exponent, count)
    assert way.weights == pytest.approx([float(w) for w in weights], rel=1e-14)
    assert way.truncation == pytest.approx(float(left) * (1 + 1e-12), rel=2e-14, abs=0.0)
    assert way.cost == pytest.approx(sum(abs(float(w)) * float(s) for w, s in zip(weights, scales, strict=True)))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_scale_is_chosen_where_truncation_and_rounding_balance(dtype: torch.dtype) -> None:
    way = square(dtype)
    assert len(way.scales) in (2, 3)
    z = torch.linspace(-2, 2, 4001, dtype=dtype)
    found = sum(w * even(s * z).double() for w, s in zip(way.weights, way.scales, strict=True))
    assert (found - z.double() ** 2).abs().max() < 1e4 * unit(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("spans", [[], [(1.0, 30.0)]], ids=["bypass", "with division"])
def test_layer_norm_is_bypassed_to_rounding(dtype: torch.dtype, spans: list[tuple[float, float]]) -> None:
    torch.manual_seed(0)
    width = 40
    stream = torch.zeros(200, width, dtype=dtype)
    stream[:, 3:] = 2 * torch.rand(200, width - 3, dtype=dtype) - 1
    norm, _ = plan(width, math.sqrt(width), float(width), spans, dtype)
    stream[:, 0], stream[:, 1] = norm.pad, -norm.pad
    seen = layer_norm(stream, (width,), torch.full((width,), norm.gain, dtype=dtype), None, 1e-5)
    error = (seen[:, 3:] - seen[:, 2:3] - stream[:, 3:]).abs().max().item()
    assert error <= norm.scaling + norm.read_error(1, 1.0, 1.0)
    assert norm.scaling < 2e3 * unit(dtype) * (30 if spans else 1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_layer_norm_divides(dtype: torch.dtype) -> None:
    """Lemma 7, with the mean taken out by the zero slot."""
    torch.manual_seed(0)
    width, low, high = 40, 0.5, 15.0
    norm, (factor,) = plan(width, math.sqrt(width), float(width), [(low, high)], dtype)
    divisor = low + (high - low) * torch.rand(200, 1, dtype=dtype)
    stream = torch.zeros(200, width, dtype=dtype)
    stream[:, 3:] = 2 * torch.rand(200, width - 3, dtype=dtype) - 1
    stream[:, :1], stream[:, 1:2] = factor * divisor, -factor * divisor
    seen = layer_norm(stream, (width,), torch.full((width,), norm.divide_gain(factor), dtype=dtype), None, 1e-5)
    exact = stream[:, 3:].double() / divisor.double()
    error = (seen[:, 3:] - seen[:, 2:3]).double() - exact
    mean = norm.divide_mean(factor * high)
    assert (
        error.abs() <= norm.divide_scaling(factor, low) * exact.abs() + norm.read_error(1, 1.0, 1.0, divided=mean) / low
    ).all()


@pytest.mark.parametrize("tokens", [2, 16, 200])
def test_codes_are_told_apart(tokens: int) -> None:
    code = codes(tokens)
    inner = code @ code.mT
    others = inner - 2 * torch.eye(tokens)
    assert others.max() == pytest.approx(1 - gap(here(tokens - 1), tokens), abs=1e-12)
    for dtype in TYPES:
        beta = sharpness(here(tokens - 1), tokens, dtype)
        weights = torch.softmax(beta * inner.to(dtype), dim=-1)
        assert (weights.diagonal() - 1).abs().max() <= unit(dtype)


def test_marks_prefer_members_to_the_start_to_the_rest() -> None:
    assert Average("even", (2, 4)).marks(6).tolist() == [0.5, 0, 1, 0, 1, 0]


def test_expressions_are_linear_and_readable() -> None:
    a, b = Register("a", (2, 1)), Register("b", (2, 1))
    expression = 1.0 - (0.5 * a - b) * 2.0
    assert str(expression) == "1 − 2·(0.5·a − b)"
    assert torch.equal(expression.parts["a"], -torch.eye(2, dtype=torch.float64))
    assert torch.equal(expression.parts["b"], 2 * torch.eye(2, dtype=torch.float64))
    assert expression.bias.tolist() == [1.0, 1.0]
    assert str(a.T) == "aᵀ" and a.T.shape == (1, 2)


def test_symmetric_registers_store_a_triangle() -> None:
    p = Register("P", (3, 3), symmetric=True)
    assert p.size == 6 and p.labels == ("P[0,0]", "P[0,1]", "P[0,2]", "P[1,1]", "P[1,2]", "P[2,2]")
    full = p.expand(torch.arange(6.0)).reshape(3, 3)
    assert torch.equal(full, full.T)
    assert full[0].tolist() == [0.0, 1.0, 2.0]


def test_a_program_prints_as_one_reads_it() -> None:
    text = str(sgd(2, 3, 0.05))
    assert "gradient ← x × (guess − y)" in text
    assert "w ← w − 0.05·gradient @ previous example" in text
    assert "x       input[2], |·| ≤ 5.414, ‖·‖ ≤ 5.414" in text


def test_the_example_of_the_docstring() -> None:
    program = RegisterProgram("double", tokens=3)
    a, b = program.input("a", bound=1.0), program.register("b")
    program.aff(b, 2.0 * a + 1.0)
    assert str(program).splitlines()[-1] == "  1  aff  b ← 2·a + 1"
    assert (program.compile().run(a=torch.full((3, 1), 0.5))["b"] - 2.0).abs().max() < 1e-12


def test_weights_are_frozen() -> None:
    model = sgd(2, 3, 0.05).compile()
    assert list(model.parameters()) == []


def test_the_machine_imports_without_transformers() -> None:
    code = (
        "import sys, emulon.machine, emulon.machine.programs;"
        "print([name for name in ('transformers', 'sympy', 'scipy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_machines_certificate_names_what_its_author_proved() -> None:
    model = sgd(features=2, samples=2, step_size=0.05).compile()
    for certificate in model.certificates.values():
        exp, gelu_, *proofs = certificate.assumes or ()
        assert (exp, gelu_) == (EXP_ASSUMED, GELU_ASSUMED)
        assert proofs and all("proved by the program's author" in proof for proof in proofs)


def test_expressions_add_up_their_parts_and_their_constants() -> None:
    a, b = Register("a", (2, 1)), Register("b", (2, 1))
    doubled = 2.0 * (a + 2.0 * a + 1.0)
    assert torch.equal(doubled.parts["a"], 6 * torch.eye(2, dtype=torch.float64))
    assert doubled.bias.tolist() == [2.0, 2.0] and a.labels == ("a[0]", "a[1]")
    assert (2.0 * (a + b) + b).T.text == "(2·(a + b) + b)ᵀ"
