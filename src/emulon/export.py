"""The frozen interpreter as an ONNX file, and programs as the prompts that run on it: for runtimes without emulon.

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
from emulon.interpreter.module import Capacity
from emulon.interpreter.phase import HALF, Phase
from emulon.interpreter.program import Program

__all__ = ["NeedsOnnx", "interpreter_to_onnx", "prompt_of", "save_prompt"]

OPSET = 20
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
