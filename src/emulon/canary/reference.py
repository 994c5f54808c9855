"""The exact answers of a Llama checkpoint, and how far a correct engine may be from them.

Claim: `logits` encloses the logits that the weights define in real arithmetic, rotary frequencies θ^(−2j/d) included
(what every engine loses is left out: see `norm`, `_unturned` and `_average` in `forward`); with an `Arithmetic`, every
engine that computes as it says is within the given error of them.
Proof. By induction over the operations of `forward`. QED

Almost all weights of a canary are zero, so vectors and matrices are sparse. What is exactly zero is zero in every
engine, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from emulon.canary.engine import Arithmetic
from emulon.canary.forward import MOVED, SPREAD, Forward, Parts, Rows, Vector, grid_of, parts_of, value
from emulon.machine.targets.stock import Config, with_llama_names

PRECISION, POSITIONS = 160, "model.positions.weight"


class Reference:
    """The exact forward pass of a Llama checkpoint.

    Args:
        config: `config.json`, as a dictionary.
        weights: The checkpoint's arrays by name.

    Example:
        >>> Reference(config, weights).logits([0, 5, 3])[7].exact
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        self.config = Config.of(config)
        self.weights = with_llama_names(config["model_type"], weights, self.config.num_attention_heads)
        self._sparse_weights: dict[tuple[str, str], Rows] = {}

    def logits(self, tokens: Sequence[int], arithmetic: Arithmetic | None = None, *, first: int = 0) -> Vector:
        """The logits after the last token: those that are not exactly zero, by number.

        Args:
            tokens: The prompt.
            arithmetic: How an engine computes; without it errors are 0.
            first: The position of the first token.
        """
        before, ctx.prec = ctx.prec, PRECISION
        try:
            run, count = Forward(self.config, arithmetic), len(tokens)
            places = range(first, first + count)
            stream = [self._embedded(run, token, place) for token, place in zip(tokens, places, strict=True)]
            for layer in range(self.config.num_hidden_layers):
                last = layer == self.config.num_hidden_layers - 1
                # Without positions in the stream, equal tokens have equal norms, keys and values in the first layer.
                labels = tokens if layer == 0 and POSITIONS not in self.weights else range(count)
                stream = self._layer(run, layer, stream, labels, places, [count - 1] if last else list(range(count)))
            return run.linear(self._norm(run, "model.norm", stream[-1]), self._rows("lm_head", "model.norm"))
        finally:
            ctx.prec = before

    def _embedded(self, run: Forward, token: int, place: int) -> Vector:
        found = _sparse(self.config.scale * self.weights["model.embed_tokens.weight"][token].astype(np.float64))
        return run.plus(found, _sparse(self.weights[POSITIONS][place])) if POSITIONS in self.weights else found

    def _norm(self, run: Forward, name: str, x: Vector) -> Vector:
        gain = self.weights[f"{name}.weight"].astype(np.float64) + self.config.offset
        return run.centred_norm(x, gain, self._bias(name)) if self.config.centred else run.norm(x, gain)

    def _bias(self, name: str) -> Vector:
        return _sparse(self.weights[f"{name}.bias"]) if f"{name}.bias" in self.weights else {}

    def _layer(
        self,
        run: Forward,
        layer: int,
        stream: list[Vector],
        labels: Sequence[int],
        places: range,
        needed: list[int],
    ) -> list[Vector]:
        """One block for the tokens `needed`; tokens with one label are alike."""
        at, size = f"model.layers.{layer}.", self.config.head_dim
        first, second = f"{at}input_layernorm", f"{at}post_attention_layernorm"
        memo: dict[int, tuple[Vector, Parts, Parts]] = {}
        out, keys, values, queries = list(stream), [], [], {}
        answer = self._rows(f"{at}self_attn.o_proj")
        heads = sorted({into // size for into in answer})
        for t, state in enumerate(stream):
            if labels[t] not in memo:
                normed = self._norm(run, first, state)
                read = self._linear(run, f"{at}self_attn.v_proj", normed, first)
                memo[labels[t]] = (normed, self._heads(run, f"{at}self_attn.k", normed, first), parts_of(read, size))
            normed, key, read_parts = memo[labels[t]]
            keys.append(key)
            values.append(read_parts)
            if t in needed:
                queries[t] = self._heads(run, f"{at}self_attn.q", normed, first)
        for t in needed:
            seen = slice(max(t + 1 - self.config.window, 0) if self.config.window else 0, t + 1)
            read = run.attention(heads, queries[t], keys[seen], values[seen], places[seen])
            out[t] = run.plus(stream[t], self._linear(run, f"{at}self_attn.o_proj", read))
            normed = self._norm(run, second, out[t])
            up = self._linear(run, f"{at}mlp.up_proj", normed, second)
            gated = f"{at}mlp.gate_proj.weight" in self.weights
            gate = self._linear(run, f"{at}mlp.gate_proj", normed, second) if gated else up
            inner = run.activated(gate, up if gated else None)
            out[t] = run.plus(out[t], self._linear(run, f"{at}mlp.down_proj", inner))
        return out

    def _linear(self, run: Forward, name: str, x: Vector, norm: str = "") -> Vector:
        return run.linear(x, self._rows(name, norm), self._bias(name))

    def _heads(self, run: Forward, name: str, normed: Vector, norm: str) -> Parts:
        """Queries or keys by head."""
        parts = parts_of(self._linear(run, f"{name}_proj", normed, norm), self.config.head_dim)
        if not self.config.head_norms:
            return parts
        return {head: run.norm(part, self.weights[f"{name}_norm.weight"]) for head, part in parts.items()}

    def _rows(self, name: str, norm: str = "") -> Rows:
        """A matrix by its inputs; behind a LayerNorm also by what moves all of these."""
        if (name, norm) not in self._sparse_weights:
            matrix = self.weights[f"{name}.weight"].astype(np.float64)
            rows = _columns(matrix)
            if norm and self.config.centred:
                gained = matrix * self.weights[f"{norm}.weight"].astype(np.float64)
                for entry, column in ((MOVED, gained.sum(1)), (SPREAD, np.abs(gained).sum(1))):
                    rows |= {entry: _columns(column[:, None]).get(0, [])}
            self._sparse_weights[name, norm] = rows
        return self._sparse_weights[name, norm]


def _sparse(row: NDArray[Any]) -> Vector:
    return {int(i): value(arb(float(row[i]))) for i in np.flatnonzero(row)}


def _columns(matrix: NDArray[Any]) -> Rows:
    rows: Rows = defaultdict(list)
    for out, into in zip(*np.nonzero(matrix), strict=True):
        weight = arb(float(matrix[out, into]))
        rows[int(into)].append((int(out), weight, abs(float(matrix[out, into])), grid_of(weight) or 0))
    return dict(rows)
