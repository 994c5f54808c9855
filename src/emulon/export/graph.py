"""An ONNX graph, written node by node in the order of the formula that it computes.

Tracing PyTorch was tried first: seven seconds for a small machine, and a float64 GELU that onnxruntime does not have.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emulon.core.errors import EmulonError

OPSET = 20
# Terms of erf's series below: at |x| = 6, where erf rounds to 1, the last is 1e-18 of the sum.
TERMS = 150
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
        powers = self("Pow", self("Unsqueeze", v, self.whole(-1)), self.weight("powers", self._range(TERMS)))
        terms = np.cumprod([1.0, *(2 / (2 * k + 1) for k in range(1, TERMS))])[:, None]
        series = self("MatMul", powers, self.weight("erf's series", terms.astype(self.dtype)))
        bell = self("Mul", self("Exp", self("Neg", v)), self.number(2 / math.sqrt(math.pi)))
        erf = self("Mul", self("Mul", x, bell), self("Squeeze", series, self.whole(-1)))
        return self("Mul", self("Mul", z, self.number(0.5)), self("Add", erf, self.number(1.0)))

    def _range(self, count: int) -> np.ndarray:
        return np.arange(count, dtype=self.dtype)
