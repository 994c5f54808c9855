"""Interventions: amounts added to what a register holds, in the network.

A version is changed where it is written, by what writes it: the attention's or the MLP's output, or the embedding. So
whatever reads it afterwards, in the same block too, sees the changed value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.planted.truth import Truth


def in_stream(truth: Truth, version: str, amounts: Float[Tensor, "*rows size"]) -> Float[Tensor, "*all_rows width"]:
    """What has to be added to the stream for these amounts in the register: (..., tokens, size) without the start
    token, or one row for all tokens."""
    change = amounts @ truth.registers[truth.version(version).register].write.to(amounts)
    rows = change.expand(truth.tokens - 1, -1) if change.ndim == 1 else change
    return torch.nn.functional.pad(rows, (0, 0, 1, 0))


@contextmanager
def nudged(model: Any, truth: Truth, added: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside, a specimen's `GPT2Model` runs with these amounts added to these versions, `{"w#2": amounts}`."""
    handles = []
    for name, amounts in added.items():
        version, change = truth.version(name), in_stream(truth, name, amounts.to(model.dtype))
        if version.part == "embedding":
            place = model.drop
        else:
            block = model.h[version.layer]
            place = block.attn if version.part == "attention" else block.mlp
        handles.append(place.register_forward_hook(_adding(change)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _adding(change: Tensor) -> Callable[..., Any]:
    def hook(module: Any, inputs: Any, output: Any) -> Any:
        return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

    return hook
