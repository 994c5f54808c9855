"""Planted models in TransformerLens: a bridge over the checkpoint, and hooks by the names of registers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from emulon.machine.targets.gpt2 import NeedsTransformers
from emulon.planted.files import is_planted, save
from emulon.planted.interventions import in_stream
from emulon.planted.model import PlantedModel
from emulon.planted.truth import EMBEDDING, VersionTruth

Hook = Callable[..., Tensor]


def to_transformer_lens(planted: PlantedModel, folder: str | Path) -> Any:
    """A `TransformerBridge` (TransformerLens 4) of the checkpoint in `folder`, saved there if need be.

    Call it with `planted.embed(xs, ys)`; its logits, one a token, are ŷ.
    """
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError as missing:
        raise NeedsTransformers("to_transformer_lens needs transformer-lens; pip install 'emulon[lens]'") from missing
    if not is_planted(Path(folder)):
        save(planted, folder)
    return TransformerBridge.boot_transformers(str(folder), dtype=planted.dtype, device="cpu")


def written_at(version: VersionTruth) -> str:
    """The hook whose value puts this version into the stream."""
    if version.part == "embedding":
        return "blocks.0.hook_resid_pre"
    return f"blocks.{version.layer}.hook_{'attn' if version.part == 'attention' else 'mlp'}_out"


def read_at(version: VersionTruth) -> str:
    """A hook whose value is the stream that holds this version."""
    return "blocks.0.hook_resid_pre" if version.layer == EMBEDDING else f"blocks.{version.layer}.hook_resid_post"


def adding(planted: PlantedModel, added: Mapping[str, Tensor]) -> list[tuple[str, Hook]]:
    """`bridge.run_with_hooks(prompt, fwd_hooks=adding(planted, {"w#2": amounts}))` adds these amounts to w#2."""

    def hook(change: Tensor) -> Hook:
        return lambda value, hook: value + change.to(value)

    truth = planted.truth
    changes = {name: in_stream(truth, name, amounts.to(planted.dtype)) for name, amounts in added.items()}
    return [(written_at(truth.version(name)), hook(change)) for name, change in changes.items()]
