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

from emulon.canary.arithmetic import Arithmetic
from emulon.canary.forward import Config, Forward, Parts, Rows, Vector, grid_of, parts_of, value

PRECISION = 160


class Reference:
    """The exact forward pass of a Llama checkpoint.

    Args:
        config: `config.json`, as a dictionary.
        weights: The checkpoint's arrays by name.

    Example:
        >>> Reference(config, weights).logits([0, 5, 3])[7].exact
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> None:
        self.config, self.weights = Config.of(config), weights
        self._sparse_weights: dict[str, Rows] = {}

    def logits(self, tokens: Sequence[int], arithmetic: Arithmetic | None = None, *, first: int = 0) -> Vector:
        """The logits after the last token: those that are not exactly zero, by number.

        Args:
            tokens: The prompt.
            arithmetic: How an engine computes; without it errors are 0.
            first: The position of the first token.
        """
        return self.logits_since(len(tokens) - 1, tokens, arithmetic, first=first)[0]

    def logits_since(
        self, since: int, tokens: Sequence[int], arithmetic: Arithmetic | None = None, *, first: int = 0
    ) -> list[Vector]:
        """The logits after every token from number `since` on; else like `logits`."""
        before, ctx.prec = ctx.prec, PRECISION
        try:
            run, count = Forward(self.config, arithmetic), len(tokens)
            scale, table = self.config.scale, self.weights["model.embed_tokens.weight"]
            embedding = {token: _sparse(scale * table[token].astype(np.float64)) for token in set(tokens)}
            stream = [embedding[token] for token in tokens]
            places = range(first, first + count)
            for layer, needed in enumerate(self._needed(since, count)):
                stream = self._layer(run, layer, stream, tokens if layer == 0 else None, places, needed)
            normed = [run.norm(stream[t], self._gain("model.norm.weight")) for t in range(since, count)]
            return [run.linear(one, self._rows("lm_head.weight")) for one in normed]
        finally:
            ctx.prec = before

    def _gain(self, name: str) -> NDArray[Any]:
        found: NDArray[Any] = self.weights[name].astype(np.float64) + self.config.offset
        return found

    def _needed(self, since: int, length: int) -> list[list[int]]:
        """The tokens whose state after each layer is read later: all, where a later layer attends to anything."""
        needed, out = list(range(since, length)), []
        for layer in reversed(range(self.config.num_hidden_layers)):
            out.append(needed)
            if self._rows(f"model.layers.{layer}.self_attn.o_proj.weight"):
                needed = list(range(length))
        return out[::-1]

    def _layer(
        self,
        run: Forward,
        layer: int,
        stream: list[Vector],
        same: Sequence[int] | None,
        places: range,
        needed: list[int],
    ) -> list[Vector]:
        """One block for the tokens `needed`. Before the first layer, equal tokens have equal norms, keys and values."""
        at = f"model.layers.{layer}."
        memo: dict[Any, tuple[Vector, Parts, Parts]] = {}
        out = list(stream)
        if answer := self._rows(f"{at}self_attn.o_proj.weight"):
            keys, values, queries = [], [], {}
            size = self.config.head_dim
            heads = sorted({into // size for into in answer})
            for t, state in enumerate(stream):
                label = t if same is None else same[t]
                if label not in memo:
                    normed = run.norm(state, self._gain(f"{at}input_layernorm.weight"))
                    key = self._heads(run, f"{at}self_attn.k", normed)
                    read = run.linear(normed, self._rows(f"{at}self_attn.v_proj.weight"))
                    memo[label] = (normed, key, parts_of(read, size))
                normed, key_parts, value_parts = memo[label]
                keys.append(key_parts)
                values.append(value_parts)
                if t in needed:
                    queries[t] = self._heads(run, f"{at}self_attn.q", normed)
            for t in needed:
                seen = slice(max(t + 1 - self.config.window, 0) if self.config.window else 0, t + 1)
                read = run.attention(heads, queries[t], keys[seen], values[seen], places[seen])
                out[t] = run.plus(stream[t], run.linear(read, answer))
        for t in needed:
            normed = run.norm(out[t], self._gain(f"{at}post_attention_layernorm.weight"))
            gate = run.linear(normed, self._rows(f"{at}mlp.gate_proj.weight"))
            up = run.linear(normed, self._rows(f"{at}mlp.up_proj.weight"))
            out[t] = run.plus(out[t], run.linear(run.gated(gate, up), self._rows(f"{at}mlp.down_proj.weight")))
        return out

    def _heads(self, run: Forward, name: str, normed: Vector) -> Parts:
        """Queries or keys by head."""
        parts = parts_of(run.linear(normed, self._rows(f"{name}_proj.weight")), self.config.head_dim)
        if not self.config.head_norms:
            return parts
        return {head: run.norm(part, self.weights[f"{name}_norm.weight"]) for head, part in parts.items()}

    def _rows(self, name: str) -> Rows:
        if name not in self._sparse_weights:
            self._sparse_weights[name] = _columns(self.weights[name])
        return self._sparse_weights[name]


def _sparse(row: NDArray[Any]) -> Vector:
    return {int(i): value(arb(float(row[i]))) for i in np.flatnonzero(row)}


def _columns(matrix: NDArray[Any]) -> Rows:
    rows: Rows = defaultdict(list)
    for out, into in zip(*np.nonzero(matrix), strict=True):
        weight = arb(float(matrix[out, into]))
        rows[int(into)].append((int(out), weight, abs(float(matrix[out, into])), grid_of(weight) or 0))
    return dict(rows)
