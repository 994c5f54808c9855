"""Register programs as stock Llamas: exact normalisation and look-ups, bounds from the docstrings, refusals."""

from __future__ import annotations

import math

import pytest
import torch
from machine_cases import in_llama

from emulon.core.errors import BadProgram
from emulon.machine.program import RegisterProgram
from emulon.machine.targets.llama_error import ABOVE, GATE, KINK, PAD_SIZE, ExactNorm
from emulon.machine.targets.llama_registers import (
    compile_registers,
)
from emulon.machine.tokens import Average, Lookup
from emulon.planted.architecture import ARCHITECTURES

transformers = pytest.importorskip("transformers", reason="the target is a stock Llama (pip install 'emulon[hf]')")
f32, f64, U = torch.float32, torch.float64, 2.0**-24
LLAMA = ARCHITECTURES["llama"]


def test_look_ups_are_exact_to_the_last_bit_and_means_have_equal_weights() -> None:
    program = RegisterProgram("reads", tokens=7)
    b, before, mean = program.input("b", bound=1.0), program.register("before"), program.register("mean")
    program.mov(before, b, at=Lookup("before", (None, 1, 2, 3, 4, 5, 6)))
    program.mov(mean, b, at=Average("even", (2, 4, 6)))
    values = torch.randn(64, 7, 1, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    held, _ = in_llama(program.returns(mean), {"b": values}, f32)
    assert torch.equal(held["before"][:, 1:], values[:, :-1].double()) and not held["before"][:, 0].any()
    fourth = (values[:, 1].double() + values[:, 3].double()) / 2
    assert (held["mean"][:, 3] - fourth).abs().max() <= 2 * U and not held["mean"][:, 0].any()


@pytest.mark.parametrize("width", [64, 256, 1024])
def test_a_pad_makes_the_norm_the_identity_to_the_last_bit(width: int) -> None:
    """As large as the claim allows; a hundred times larger contents are scaled."""
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm(width, eps=1e-6)
    norm.weight.data.fill_(PAD_SIZE / math.sqrt(width))
    stream = torch.randn(32, width, generator=torch.Generator().manual_seed(2))
    stream *= PAD_SIZE / ABOVE / stream.norm(dim=1, keepdim=True)
    stream[:, 3] = PAD_SIZE
    with torch.no_grad():
        assert torch.equal(norm(stream), stream)
        small = stream * 1e-20
        small[:, 3] = PAD_SIZE
        assert torch.equal(norm(small), small)
        large = stream * 100
        large[:, 3] = PAD_SIZE
        assert not torch.equal(norm(large), large)


def test_the_kink_is_what_it_is_said_to_be() -> None:
    t = torch.linspace(-40, 40, 400_001, dtype=f64)
    off = torch.nn.functional.silu(t) + torch.nn.functional.silu(-t) - t.abs()
    assert 0.99 * KINK < off.abs().max() < KINK


def test_silu_and_softmax_are_as_the_certificate_assumes() -> None:
    z = torch.cat([torch.linspace(-128, 128, 2_000_001), torch.logspace(-30, 20, 100_001, base=2.0)])
    silu = torch.nn.functional.silu
    assert (silu(z).double() - silu(z.double())).abs().le(4 * U * z.double().abs()).all()
    far = torch.cat([z[z >= 128], torch.tensor([GATE])])
    assert torch.equal(silu(far), far) and not silu(-far).any()


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    with pytest.raises(BadProgram, match="narrow the domain"):
        ExactNorm(64, PAD_SIZE, 2 * PAD_SIZE / ABOVE, 0.0, f32).require_fits()
    wide = RegisterProgram("wide", tokens=1)
    inputs = [wide.input(f"a{i}", 500, bound=1.0) for i in range(9)]
    wide.aff(wide.register("b", 500), inputs[0])
    with pytest.raises(BadProgram, match="more than 4096 slots"):
        compile_registers(wide)
