"""Register machines and learners as ONNX: both are GPT-2's blocks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import torch

from emulon.core.errors import EmulonError
from emulon.export.graph import Graph
from emulon.machine.normalisation import EPSILON
from emulon.machine.targets.gpt2 import slots
from emulon.machine.transformer import MachineBlock, Transformer
from emulon.models import AlgoFormer, Learner, Looped, Standard
from emulon.models.block import Affine, Block, Decoder


def machine_to_onnx(machine: Transformer) -> bytes:
    """`embedded`, as `Transformer.embed` gives it, to `hidden`; the metadata's `slots` label both, as slots.json does.

    Args:
        machine: A compiled register machine. The invariants that it checks on the way are not checked in the file.
    Returns:
        The ONNX file.

    Example:
        >>> Path("machine.onnx").write_bytes(machine_to_onnx(machine))
    """
    graph, tokens, width = Graph("machine", machine.dtype), machine.layout.tokens, machine.width
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
    graph = Graph("learner", dtype)
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


def _state(graph: Graph, learner: Learner, embedded: str, run: Callable[[Decoder, str, str], str]) -> str:
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


def _heads(graph: Graph, qkv: str, count: int, mask: str, scale: float) -> str:
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


def _machine_block(graph: Graph, block: MachineBlock, stream: str, mask: str, name: str) -> str:
    own = {part: graph.weight(name + part, values) for part, values in block.named_buffers()}
    seen = graph.layer_norm(stream, own["gain"], None, EPSILON)
    read = _heads(graph, graph.linear(seen, own["attention"]), block.heads, mask, 1.0)
    stream = graph("Add", stream, graph.linear(read, own["output"], own["output_bias"]))
    seen = graph.layer_norm(stream, own["mlp_gain"], None, EPSILON)
    units = graph.gelu(graph.linear(seen, own["inward"]))
    return graph("Add", stream, graph.linear(units, own["outward"], own["outward_bias"]))


def _block(graph: Graph, block: Block, stream: str, mask: str, name: str) -> str:
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


def _affine(graph: Graph, layer: Affine, value: str, name: str) -> str:
    bias = None if layer.bias is None else graph.weight(f"{name}.bias", layer.bias)
    return graph.linear(value, graph.weight(f"{name}.weight", layer.weight), bias)


def _norm(graph: Graph, layer: torch.nn.LayerNorm, value: str, name: str) -> str:
    gain, bias = (graph.weight(f"{name}.{part}", getattr(layer, part)) for part in ("weight", "bias"))
    return graph.layer_norm(value, gain, bias, layer.eps)
