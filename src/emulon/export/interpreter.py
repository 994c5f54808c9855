"""The frozen interpreter as one ONNX file: a prompt and the weights that it carries go in, the head's answers come out.

Nothing in the file knows an algorithm. Its weights have the names they have in PyTorch, and its metadata hold what
`sha256` is made of beside them, so that anybody can compute it again.
"""

from __future__ import annotations

from emulon.export.graph import Graph
from emulon.interpreter import Interpreter


def interpreter_to_onnx(interpreter: Interpreter) -> bytes:
    """`Interpreter.forward` on prompts as wide as its capacity; a narrower one is padded with zeros beforehand.

    Domains are not checked in there: what is out of reach comes out wrong, as it does from any other ONNX file.
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
