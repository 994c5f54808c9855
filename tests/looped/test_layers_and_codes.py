"""Eq. 1, the frame of Eq. 2, Lemma A.1's codes, exact copies and exact gates."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emulon.core.errors import BadShape, OutOfDomain
from emulon.looped import RepresentationNetwork
from emulon.looped.heads import GAP, copy_head, position_codes
from emulon.looped.layer import Circuit, Layer, TokenSlots, no_heads, read


def test_a_layer_is_equation_1():
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    heads, mlp = (normal(3, 2, 5), normal(3, 2, 5), normal(3, 5, 5)), (normal(7, 5), normal(7), normal(5, 7), normal(5))
    layer, columns = Layer(heads, mlp, dtype=torch.float64), normal(5, 6)
    attended = columns.clone()
    for w_k, w_q, w_v in zip(*heads, strict=True):
        attended += w_v @ columns @ torch.softmax((w_k @ columns).mT @ (w_q @ columns), dim=0)
    w_1, b_1, w_2, b_2 = mlp
    expected = attended + w_2 @ torch.relu(w_1 @ attended + b_1[:, None]) + b_2[:, None]
    torch.testing.assert_close(layer(columns.mT), expected.mT)
    assert not list(layer.parameters()) and len(list(layer.buffers())) == 7


@pytest.mark.parametrize("count", [1, 2, 3, 41, 1000])
def test_codes_are_quasi_orthogonal_in_log_n_dimensions(count):
    codes = position_codes(count)
    products = codes @ codes.mT
    own = products.diagonal().clone()
    assert codes.shape[1] == max(1, math.ceil(math.log2(count)))
    assert (own.unsqueeze(-1) - products + GAP * torch.eye(count) >= GAP).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_copies_are_exact(dtype):
    slots = TokenSlots((), code=6, value=2, got=2)
    code = read(slots, code=1.0)
    layer = Layer(copy_head(slots, code, code, read(slots, value=2.0), "got"), Circuit(slots).matrices, dtype=dtype)
    values = torch.randn(82, 2, generator=torch.Generator().manual_seed(0)).to(dtype)
    values[1::2] = 0
    tokens = slots.pack(code=position_codes(41).repeat_interleave(2, dim=0).to(dtype), value=values)
    got = layer(tokens)[:, slots["got"]]
    assert torch.equal(got[0::2], values[0::2]) and torch.equal(got[1::2], values[0::2])


@settings(max_examples=50, deadline=None)
@given(
    values=st.lists(st.floats(-3.0, 3.0, width=32), min_size=1, max_size=8),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_gates_multiply_by_an_indicator_exactly(values, dtype):
    slots = TokenSlots(("on", "off"), z=1, out=1)
    circuit = Circuit(slots).move(read(slots, z=1.0), "out", on=("on",), bound=3.0).clear("z")
    layer = Layer(no_heads(slots), circuit.matrices, dtype=dtype)
    z = torch.tensor(values, dtype=dtype).unsqueeze(-1)
    for on in (0.0, 1.0):
        out = layer(slots.pack(z=z, on=on, off=1 - on))
        assert torch.equal(out[..., slots["out"]], on * z) and not out[..., slots["z"]].any()


def test_a_representation_inside_is_the_representation_outside_up_to_its_error():
    generator = torch.Generator().manual_seed(1)
    shapes = [(4, 6), (7, 4), (3, 7)]
    weights = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    biases = [torch.randn(shape[0], generator=generator, dtype=torch.float64) for shape in shapes]
    phi = RepresentationNetwork(weights, biases, slope=0.2, bound=2.0)
    slots = TokenSlots(("on", "off"), x=3, **phi.slots)
    inputs = (4 * torch.rand(50, 6, generator=generator) - 2).float()
    tokens = slots.pack(ping=torch.nn.functional.pad(inputs, (0, slots.size("ping") - 6)))
    tokens[:-1, slots["on"]] = tokens[-1, slots["off"]] = 1.0
    for layer in phi.layers(slots, "x", ("on",), torch.float32):
        tokens = layer(tokens)
    error = (tokens[:-1, slots["x"]].double() - phi(inputs[:-1].double())).norm(dim=-1).max().item()
    assert 0 < error <= phi.error(torch.float32)
    assert not tokens[-1, slots["x"]].any() and not tokens[:-1, slots["ping"]].any()
    with pytest.raises(BadShape):
        RepresentationNetwork([weights[0], weights[2]], bound=1.0)
    with pytest.raises(BadShape):
        phi.require(3, x=inputs[:, :5])
    with pytest.raises(OutOfDomain):
        phi.require(3, x=10 * inputs)
