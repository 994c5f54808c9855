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
from emulon.machine import Register, RegisterProgram
from emulon.machine.error import GELU_ASSUMED, GELU_ROUNDINGS
from emulon.machine.normalisation import _square, plan, square, up_to_power_of_two
from emulon.machine.programs import sgd
from emulon.machine.ranges import Range, analyse, slack
from emulon.machine.tokens import codes, gap, here, sharpness

TYPES = [torch.float64, torch.float32]


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


def test_expressions_are_linear_and_readable() -> None:
    a, b = Register("a", (2, 1)), Register("b", (2, 1))
    doubled = 2.0 * (a + 2.0 * a + 1.0)
    assert torch.equal(doubled.parts["a"], 6 * torch.eye(2, dtype=torch.float64)) and doubled.bias.tolist() == [
        2.0,
        2.0,
    ]
    assert (2.0 * (a + b) + b).T.text == "(2·(a + b) + b)ᵀ" and a.labels == ("a[0]", "a[1]")
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


def test_pads_are_where_rounding_and_truncation_meet() -> None:
    u, roundings = 2.0**-53, 32 + 4 * math.log2(16)
    plain, factors = plan(16, 4.0, 32.0, [], torch.float64)
    assert factors == [] and plain.pad == up_to_power_of_two(4 * (roundings * u * u) ** (-1 / 3))
    assert plain.mean == pytest.approx(2.0 + roundings * u * plain.pad, rel=1e-15, abs=0.0)
    divided, factors = plan(16, 4.0, 32.0, [(0.5, 6.0), (1.0, 8.0)], torch.float64)
    step = math.sqrt(1 / (roundings * u * 12))
    assert factors == [up_to_power_of_two(4 * step / 0.5), up_to_power_of_two(4 * step)]
    assert divided.divide_content == max(factors[0] * 6.0, factors[1] * 8.0)
    assert divided.pad == up_to_power_of_two(divided.divide_content * step)
    more = divided.holding(3.0)
    assert (more.content, more.mean) == (5.0, divided.mean + 3.0 / 4)


def test_ranges_are_interval_and_norm_arithmetic_with_room_for_errors() -> None:
    """Entries of a in [−2, 1], of c in [½, 4]; what rounding may add widens them by a part of the largest, 2⁻¹⁰."""
    made = RegisterProgram("ranges", 5)
    a, c, q, d, s = *(made.register(name, (2, 2)) for name in "acqd"), made.register("s")
    made.known |= {"a": Range(-2.0, 1.0, 2.5), "c": Range(0.5, 4.0, 6.0), "s": Range(0.5, 4.0, 4.0)}
    made.aff(q, 3.0 * a, plus=2.0 * c)
    made.mul(q, a, c)
    made.div(d, a, s)
    made.clip(d, a, 1.5)
    added, multiplied, divided, clipped = analyse(made, torch.float64).after

    def near(found: Range, low: float, high: float, norm: float) -> None:
        room = max(-low, high) * 2.0**-10
        wanted = (low - room, high + room, norm + room)
        assert (found.low, found.high, found.norm) == pytest.approx(wanted, rel=1e-11)

    near(added, -6 + 1, 3 + 8, 3 * 2.5 + 2 * 6.0)
    near(multiplied, -15.0, 8.0, 2.5 * 6.0)  # two products to an entry, and ‖AC‖ ≤ ‖A‖·‖C‖
    near(divided, -4.0, 2.0, 5.0)
    near(clipped, -1.5, 1.0, 2.5)
    assert slack(Range(0.25, 8.0, 8.0), torch.float64) == 2.0**-10
    assert slack(Range(-3.0, 2.0, 3.0), torch.float32) == 3 * 2.0**-6
