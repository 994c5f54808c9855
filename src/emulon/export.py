"""Models as ONNX files, and programs as the prompts that run on them: for runtimes without emulon.

Graphs are written node by node in the order of the formulas. (Tracing PyTorch was tried first: seven seconds for a
small machine, and a float64 GELU that onnxruntime does not have.)

The frozen interpreter is one file: a prompt and the head in it go in, the head's answers come out. Nothing in it
depends on an algorithm. Its weights have the names they have in PyTorch, and its metadata hold what `sha256` is made of
beside them, so that it can be computed again. Of a program the fixed coefficients of its prompt are kept:

With u_i = (x_i, y_i, fixed_i, code_i, state, before, 1) for sample i, token (i, j) is Σ_c grid[j, c]·(maps[c] · u_i),
grid[j] being (1, slope_j, value_j, intercept_j); the first n tokens ask, and have asks · u_i added. The head's W_K, W_Q
and W_V stand beside them. Factors are powers of two or enter once, so that the prompt is the program's own to the bit.
The new state is the mean of the n answers times `readout`. A phase whose samples are not the data brings its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.nn.functional import pad

from emulon.attention import Slots
from emulon.core.errors import EmulonError
from emulon.core.files import write_atomically
from emulon.interpreter import Interpreter
from emulon.interpreter.layout import HALF
from emulon.interpreter.module import Capacity
from emulon.interpreter.phase import Phase
from emulon.interpreter.program import Program
from emulon.machine.normalisation import EPSILON
from emulon.machine.targets.gpt2 import slots
from emulon.machine.transformer import MachineBlock, Transformer
from emulon.models import AlgoFormer, Learner, Looped, Standard
from emulon.models.block import Affine, Block, Decoder

__all__ = ["NeedsOnnx", "interpreter_to_onnx", "learner_to_onnx", "machine_to_onnx", "prompt_of", "save_prompt"]

OPSET = 20
# Terms of erf's series below: at |x| = 6, where erf rounds to 1, the last is 1e-18 of the sum.
TERMS = 150
# Of the file of a prompt, and the places of a grid's columns in it.
FORMAT = "1"
PLAIN, SLOPE, VALUE, INTERCEPT = range(4)
Sizes = list[int | str]


class NeedsOnnx(EmulonError):
    """The export needs onnx, which is an extra.

    Cure: pip install 'emulon[onnx]'.
    """


def onnx_package() -> Any:
    try:
        import onnx
    except ImportError as missing:
        raise NeedsOnnx("ONNX files need onnx; install it with: pip install 'emulon[onnx]'") from missing
    return onnx


class Graph:
    """Values are their names; `graph("MatMul", a, b)` adds a node and returns the name of what it gives."""

    def __init__(self, name: str, dtype: torch.dtype | np.dtype, outer: Graph | None = None) -> None:
        self.onnx, self.name, self.outer = onnx_package(), name, outer
        self.dtype = np.dtype(str(dtype).removeprefix("torch."))
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        result = f"{self.name}.{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, inputs, [result], **attributes))
        return result

    def body(self, name: str) -> Graph:
        """Of a loop: it sees this graph's values, and keeps its frozen numbers there."""
        return Graph(name, self.dtype, self)

    def weight(self, name: str, values: Tensor | np.ndarray) -> str:
        """Frozen numbers, under their own name; the same name is the same numbers."""
        found = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        (self.outer or self).weights.setdefault(name, np.ascontiguousarray(found))
        return name

    def number(self, value: float) -> str:
        return self.weight(f"number {value!r}", np.array(value, dtype=self.dtype))

    def whole(self, *values: int) -> str:
        return self.weight(f"whole {values}", np.array(values, dtype=np.int64))

    def input(self, name: str, sizes: Sizes, dtype: Any = None) -> str:
        self.inputs.append(self._described(name, sizes, dtype))
        return name

    def output(self, name: str, value: str, sizes: Sizes) -> None:
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._described(name, sizes, None))

    def _described(self, name: str, sizes: Sizes, dtype: Any) -> Any:
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype if dtype is None else dtype))
        return self.onnx.helper.make_tensor_value_info(name, kind, sizes)

    def proto(self) -> Any:
        """The graph as ONNX writes it: a model's, or the body of a loop in one."""
        weights = [self.onnx.numpy_helper.from_array(values, name) for name, values in self.weights.items()]
        return self.onnx.helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, weights)

    def to_bytes(self, **facts: str) -> bytes:
        """The model, checked; `facts` stand in its metadata."""
        helper = self.onnx.helper
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(self.proto(), producer_name="emulon", opset_imports=[opset], ir_version=10)
        helper.set_model_props(model, facts)
        self.onnx.checker.check_model(model)
        written: bytes = model.SerializeToString()
        return written

    def transposed(self, value: str, *order: int) -> str:
        return self("Transpose", value, perm=list(order))

    def linear(self, value: str, weight: str, bias: str | None = None) -> str:
        """value · weightᵀ + bias, for a weight (out, in)."""
        product = self("MatMul", value, self.transposed(weight, 1, 0))
        return product if bias is None else self("Add", product, bias)

    def attend(self, queries: str, keys_transposed: str, values: str, mask: str | None = None) -> str:
        """softmax(queries · keysᵀ + mask) · values, as `attention.attend`."""
        scores = self("MatMul", queries, keys_transposed)
        weights = self("Softmax", scores if mask is None else self("Add", scores, mask), axis=-1)
        return self("MatMul", weights, values)

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


def interpreter_to_onnx(interpreter: Interpreter) -> bytes:
    """`Interpreter.forward` on prompts as wide as its capacity; a narrower one is padded with zeros beforehand.

    Args:
        interpreter: Any. Domains are not checked in the file: what is out of reach comes out wrong.
    Returns:
        The ONNX file.

    Example:
        >>> Path("interpreter.onnx").write_bytes(interpreter_to_onnx(interpreter))
    """
    capacity, graph = interpreter.capacity, Graph("interpreter", interpreter.dtype)
    features, width = capacity.features, capacity.width
    tokens = graph.input("tokens", ["tokens", features])
    rows = [graph.input(name, [width, features]) for name in ("w_k", "w_q", "w_v")]
    queries = graph.input("queries", [1], "int64")
    for name, part in interpreter.named_buffers():
        graph.weight(name, part)
    projected = graph.transposed(_layer_1(graph, tokens, graph("Concat", *rows, axis=0), features), 1, 0)
    asking = graph("Slice", projected, graph.whole(0), queries, graph.whole(0))
    keys = graph.transposed(graph.linear(projected, "assemble.w_k"), 1, 0)
    values = graph.linear(projected, "assemble.w_v")
    answer = graph.attend(graph.linear(asking, "assemble.w_q"), keys, values)
    graph.output("output", answer, ["queries", width])
    return graph.to_bytes(sha256=interpreter.sha256, capacity=repr(capacity))


def _layer_1(graph: Graph, tokens: str, rows: str, features: int) -> str:
    """A head per row θ, one after the other: keys (slope_r·θ, intercept_r), queries (x, 1), values value_r.

    All at once would hold rows × tokens × keys numbers.
    """
    one = graph("Slice", tokens, graph.whole(0), graph.whole(1), graph.whole(1))
    ones = graph("Add", graph("Mul", one, graph.number(0.0)), graph.number(1.0))
    asking = graph("Concat", tokens, ones, axis=1)
    columns = {name: graph("Unsqueeze", name, graph.whole(1)) for name in ("slopes", "intercepts", "values")}
    head = graph.body("head")
    row = head.input("row", [features])
    scaled = head("Mul", columns["slopes"], row)
    keys = head.transposed(head("Concat", scaled, columns["intercepts"], axis=1), 1, 0)
    answer = head("Squeeze", head.attend(asking, keys, columns["values"]), head.whole(1))
    head.output("read", answer, ["tokens"])
    return graph("Scan", rows, body=head.proto(), num_scan_inputs=1)


@dataclass(frozen=True)
class Prompt:
    """What a program's file holds: tensors by name, and facts that JSON can hold."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any]


def prompt_of(program: Program, capacity: Capacity) -> Prompt:
    """The program's prompt, padded with zeros to an interpreter's capacity.

    Args:
        program: A program whose prompt is the same at every step.
        capacity: The interpreter's.
    Returns:
        Tensors and facts, as they stand in a file of `save_prompt`.
    Raises:
        EmulonError: The program has another prompt at every step.

    Example:
        >>> prompt_of(program, interpreter.capacity).facts["steps"]
    """
    if program.descent.accelerated or program.descent.batch is not None:
        raise EmulonError(
            f"{program.name} has another prompt at every step, which a file does not hold; export another"
        )
    tensors: dict[str, Tensor] = {}
    phases = []
    for phase in program.phases:
        parts = _parts(phase, capacity)
        tensors |= {f"{phase.name}.{name}": part.contiguous() for name, part in parts.items()}
        places = {name: [phase.slots[name].start, phase.slots[name].stop] for name in phase.slots}
        phases.append({"name": phase.name, "slots": places})
    facts = {
        "name": program.name,
        "features": program.domain.features,
        "samples": program.domain.samples,
        "steps": program.steps,
        "link": program.loss.link.name,
        "phases": phases,
    }
    return Prompt(tensors, facts)


def save_prompt(program: Program, capacity: Capacity, path: str | Path) -> None:
    """Write the program's prompt, whole or not at all, as safetensors with the facts in its header.

    Args:
        program: A program whose prompt is the same at every step.
        capacity: The interpreter's.
        path: The file.

    Example:
        >>> save_prompt(program, interpreter.capacity, "prompt.safetensors")
    """
    prompt = prompt_of(program, capacity)
    header = {"kind": "prompt", "format": FORMAT, "facts": prompt.facts}
    write_atomically(path, safetensors.torch.save(prompt.tensors, {"emulon": json.dumps(header, sort_keys=True)}))


def _parts(phase: Phase, capacity: Capacity) -> dict[str, Tensor]:
    grid, wider = phase.grid, capacity.features - phase.slots.width
    weights = phase.weights()
    maps, asks = _maps(phase)
    # The proximal phase's samples are the unit vectors, with y = 0 and nothing fixed.
    units = torch.eye(phase.domain.features, 2 * phase.domain.features + 1, dtype=grid.dtype, device="cpu")
    return {
        **({} if phase.name == "gradient" else {"samples": units}),
        "grid": torch.stack([torch.ones_like(grid.slopes), grid.slopes, grid.values, grid.intercepts], dim=-1),
        "maps": pad(maps, (0, 0, 0, wider)),
        "asks": pad(asks, (0, 0, 0, wider)),
        "codes": phase.codes.vectors,
        "readout": _readout(phase, capacity.width),
        **{
            name: pad(part, (0, wider, 0, capacity.width - part.shape[0]))
            for name, part in zip(("w_k", "w_q", "w_v"), weights, strict=True)
        },
    }


def _readout(phase: Phase, width: int) -> Tensor:
    """(width, d): of a head's rows the gradient's, n times for a sum, and the state's where there is one, added."""
    d, (value_scale, state_scale) = phase.domain.features, phase.reading_scales
    eye = torch.eye(d, dtype=phase.grid.dtype, device="cpu")
    answers = (eye if phase.readout == "mean" else phase.domain.samples * eye) / value_scale
    rows = answers if phase.readout == "sum" else torch.cat([answers, eye / state_scale])
    return pad(rows, (0, 0, 0, width - len(rows)))


def _maps(phase: Phase) -> tuple[Tensor, Tensor]:
    """maps (4, slots, u) and asks (slots, u)."""
    d, scales, places = phase.domain.features, phase.scales, phase.slots
    sample = Slots(x=d, y=1, fixed=d, code=phase.codes.width, state=d, before=d, one=1)
    maps = torch.zeros(4, places.width, sample.width, dtype=phase.grid.dtype, device="cpu")
    asks = torch.zeros_like(maps[0])

    def put(into: Tensor, slot: str, source: str, factor: float) -> None:
        into[places[slot], sample[source]] = factor * torch.eye(sample.size(source), dtype=into.dtype, device="cpu")

    put(maps[SLOPE], "key_x", "x", scales.x)
    put(maps[SLOPE], "key_y", "y", scales.y)
    put(maps[INTERCEPT], "key_bias", "one", scales.bias)
    put(maps[PLAIN], "key_code", "code", phase.code_factors[0])
    put(maps[VALUE], "value", "x", 1.0)
    for name in phase.carried:
        put(maps[PLAIN], name, name, 1.0)
    for name, source in zip(HALF, ("state", "one", "one", "code"), strict=True):
        factor = {"x": 1 / scales.x, "y": -1 / scales.y, "bias": 1 / scales.bias, "code": phase.code_factors[1]}[name]
        put(asks, f"query_{name}", source, factor)
    return maps, asks


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
