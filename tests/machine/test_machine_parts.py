"""The pieces that instructions are made of: squares from GELU, LayerNorm's bypass, codes, expressions, printing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from flint import arb
from torch.nn.functional import gelu

from emulon.certify.rounding import EXP_ASSUMED, unit
from emulon.expressions.evaluation import ball_arithmetic
from emulon.machine import Register
from emulon.machine.error import GELU_ASSUMED, GELU_ROUNDINGS
from emulon.machine.normalisation import square
from emulon.machine.programs import sgd

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
