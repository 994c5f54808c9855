"""Register machines and learners as ONNX files: stacks of GPT-2's blocks, node by node in the order of the formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import torch

from emulon.core.errors import EmulonError
from emulon.export import Graph
from emulon.machine.layer import MachineBlock
from emulon.machine.normalisation import EPSILON
from emulon.machine.targets.gpt2 import slots
from emulon.machine.transformer import Transformer
from emulon.models import AlgoFormer, Learner, Looped, Standard
from emulon.models.block import Affine, Block, Decoder

# Terms of erf's series below: at |x| = 6, where erf rounds to 1, the last is 1e-18 of the sum.
TERMS = 150


class ModelGraph(Graph):
    """A graph of layers."""

    def layer_norm(self, value: str, gain: str, bias: str | None, epsilon: float) -> str:
        """Written out: ONNX's own holds epsilon in float32, and may compute in it."""
        axes = self.whole(-1)
        off = self("Sub", value, self("ReduceMean", value, axes, keepdims=1))
        variance = self("ReduceMean", self("Mul", off, off), axes, keepdims=1)
        normed = self("Div", off, self("Sqrt", self("Add", variance, self.number(epsilon))))
        scaled = self("Mul", normed, gain)
        return scaled if bias is None else self("Add", scaled, bias)

    def gelu_by_tanh(self, z: str) -> str:
        cubed = self("Mul", self("Mul", z, z), z)
        inner = self("Add", z, self("Mul", cubed, self.number(0.044715)))
        bent = self("Tanh", self("Mul", inner, self.number(math.sqrt(2 / math.pi))))
        return self("Mul", self("Mul", z, self.number(0.5)), self("Add", bent, self.number(1.0)))

    def gelu(self, z: str) -> str:
        """z·(1 + erf(z/√2))/2 in any dtype.

        onnxruntime has erf in float32 alone. So: erf(x) = 2/√π · x·e^{−x²}·Σ_k 2^k x^{2k}/(2k + 1)!!, whose terms are
        all positive, so that nothing cancels; beyond 6 it is 1.
        """
        x = self("Mul", z, self.number(math.sqrt(0.5)))
        x = self("Min", self("Max", x, self.number(-6.0)), self.number(6.0))
        v = self("Mul", x, x)
        powers = self(
            "Pow", self("Unsqueeze", v, self.whole(-1)), self.weight("powers", np.arange(TERMS, dtype=self.dtype))
        )
        terms = np.cumprod([1.0, *(2 / (2 * k + 1) for k in range(1, TERMS))])[:, None]
        series = self("MatMul", powers, self.weight("erf's series", terms.astype(self.dtype)))
        bell = self("Mul", self("Exp", self("Neg", v)), self.number(2 / math.sqrt(math.pi)))
        erf = self("Mul", self("Mul", x, bell), self("Squeeze", series, self.whole(-1)))
        return self("Mul", self("Mul", z, self.number(0.5)), self("Add", erf, self.number(1.0)))


def machine_to_onnx(machine: Transformer) -> bytes:
    """`embedded`, as `Transformer.embed` gives it, to `hidden`; the metadata's `slots` label both, as slots.json does.

    Args:
        machine: A compiled register machine. The invariants that it checks on the way are not checked in the file.
    Returns:
        The ONNX file.

    Example:
        >>> Path("machine.onnx").write_bytes(machine_to_onnx(machine))
    """
    graph, tokens, width = ModelGraph("machine", machine.dtype), machine.layout.tokens, machine.width
    embedded = graph.input("embedded", ["batch", tokens, width])
    stream = graph("Add", embedded, graph.weight("positions", machine.positions))
    mask = graph.weight("mask", _mask(tokens, machine.dtype))
    for index, block in enumerate(machine.typed_blocks):
        stream = _machine_block(graph, block, stream, mask, f"{index}.")
    hidden = graph.layer_norm(stream, graph.weight("final_gain", machine.final_gain), None, EPSILON)
    graph.output("hidden", hidden, ["batch", tokens, width])
    return graph.to_bytes(slots=json.dumps(slots(machine), ensure_ascii=False))


def learner_to_onnx(learner: Learner) -> bytes:
    """`tokens` (x₁, y₁, …, as training lays them out) to `answers`, one at every token.

    Args:
        learner: A stack of blocks: standard, looped or algoformer.
    Returns:
        The ONNX file.
    Raises:
        EmulonError: The learner reads words, or is no stack of blocks.

    Example:
        >>> Path("learner.onnx").write_bytes(learner_to_onnx(learner))
    """
    if not isinstance(learner.read_in, Affine):
        raise EmulonError("learners of numbers can be exported, and this one reads words")
    dtype = learner.read_in.weight.dtype
    graph = ModelGraph("learner", dtype)
    tokens = graph.input("tokens", ["batch", "tokens", learner.width_in])
    count = graph("Slice", graph("Shape", tokens), graph.whole(1), graph.whole(2))

    def first(table: str, *axes: int) -> str:
        """As many rows, or rows and columns, of a table as there are tokens."""
        for axis in axes:
            table = graph("Slice", table, graph.whole(0), count, graph.whole(axis))
        return table

    position = first(graph.weight("position", learner.position), 0)
    mask = first(graph.weight("mask", _mask(learner.tokens, dtype)), 0, 1)
    embedded = graph("Add", _affine(graph, learner.read_in, tokens, "read_in"), position)

    def run(decoder: Decoder, stream: str, name: str) -> str:
        for index, block in enumerate(decoder.blocks):
            assert isinstance(block, Block)
            stream = _block(graph, block, stream, mask, f"{name}.blocks.{index}.")
        return _norm(graph, decoder.last_norm, stream, f"{name}.last_norm")

    state = _state(graph, learner, embedded, run)
    graph.output("answers", _affine(graph, learner.read_out, state, "read_out"), ["batch", "tokens", learner.width_out])
    return graph.to_bytes(width_in=str(learner.width_in), tokens=str(learner.tokens))


def _state(graph: ModelGraph, learner: Learner, embedded: str, run: Callable[[Decoder, str, str], str]) -> str:
    """The state after the last loop; loops are written out, over the same weights."""
    if isinstance(learner, Standard):
        return run(learner.decoder, embedded, "decoder")
    if isinstance(learner, Looped):
        state = run(learner.decoder, embedded, "decoder")  # from zero
        for _ in range(1, learner.loops):
            state = run(learner.decoder, graph("Add", state, embedded), "decoder")
        return state
    if isinstance(learner, AlgoFormer):
        state = prepared = run(learner.pre, embedded, "pre")
        for _ in range(learner.loops):
            state = run(learner.body, graph("Add", state, prepared) if learner.inject else state, "body")
        return run(learner.post, state, "post")
    raise EmulonError(
        f"{type(learner).__name__} is no stack of blocks; standard, looped and algoformer can be exported"
    )


def _mask(tokens: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((tokens, tokens), -math.inf, dtype=dtype, device="cpu").triu(1)


def _heads(graph: ModelGraph, qkv: str, count: int, mask: str, scale: float) -> str:
    """(batch, tokens, 3·heads·size) ↦ (batch, tokens, heads·size)."""
    split = graph("Reshape", qkv, graph.whole(0, 0, 3, count, -1))
    parts = []
    for which in range(3):
        part = graph("Slice", split, graph.whole(which), graph.whole(which + 1), graph.whole(2))
        parts.append(graph("Squeeze", part, graph.whole(2)))
    queries, values = (graph.transposed(parts[which], 0, 2, 1, 3) for which in (0, 2))
    if scale != 1:
        queries = graph("Mul", queries, graph.number(scale))
    read = graph.attend(queries, graph.transposed(parts[1], 0, 2, 3, 1), values, mask)
    return graph("Reshape", graph.transposed(read, 0, 2, 1, 3), graph.whole(0, 0, -1))


def _machine_block(graph: ModelGraph, block: MachineBlock, stream: str, mask: str, name: str) -> str:
    own = {part: graph.weight(name + part, values) for part, values in block.named_buffers()}
    seen = graph.layer_norm(stream, own["gain"], None, EPSILON)
    read = _heads(graph, graph.linear(seen, own["attention"]), block.heads, mask, 1.0)
    stream = graph("Add", stream, graph.linear(read, own["output"], own["output_bias"]))
    seen = graph.layer_norm(stream, own["mlp_gain"], None, EPSILON)
    units = graph.gelu(graph.linear(seen, own["inward"]))
    return graph("Add", stream, graph.linear(units, own["outward"], own["outward_bias"]))


def _block(graph: ModelGraph, block: Block, stream: str, mask: str, name: str) -> str:
    attention = block.attention
    qkv = _affine(
        graph,
        attention.to_qkv,
        _norm(graph, block.attention_norm, stream, f"{name}attention_norm"),
        f"{name}attention.to_qkv",
    )
    size = attention.to_qkv.in_features // attention.heads
    read = _heads(graph, qkv, attention.heads, mask, 1 / math.sqrt(size))
    stream = graph("Add", stream, _affine(graph, attention.merge, read, f"{name}attention.merge"))
    seen = _norm(graph, block.mlp_norm, stream, f"{name}mlp_norm")
    units = graph.gelu_by_tanh(_affine(graph, block.widen, seen, f"{name}widen"))
    return graph("Add", stream, _affine(graph, block.narrow, units, f"{name}narrow"))


def _affine(graph: ModelGraph, layer: Affine, value: str, name: str) -> str:
    bias = None if layer.bias is None else graph.weight(f"{name}.bias", layer.bias)
    return graph.linear(value, graph.weight(f"{name}.weight", layer.weight), bias)


def _norm(graph: ModelGraph, layer: torch.nn.LayerNorm, value: str, name: str) -> str:
    gain, bias = (graph.weight(f"{name}.{part}", getattr(layer, part)) for part in ("weight", "bias"))
    return graph.layer_norm(value, gain, bias, layer.eps)
