"""Planted models in TransformerLens and nnsight: hooks by the names of registers, and opened models as predictors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.core.predictor import NotAPredictor, PrefixPredictor
from emulon.machine.targets.stock import NeedsTransformers
from emulon.planted.files import is_planted, load, save
from emulon.planted.model import PlantedModel
from emulon.planted.truth import EMBEDDING, VersionTruth

Hook = Callable[..., Tensor]


def to_transformer_lens(planted: PlantedModel, folder: str | Path) -> Any:
    """Open a planted model in TransformerLens 4.

    Args:
        planted: The model.
        folder: Where its checkpoint is, or is saved if there is none.
    Returns:
        A `TransformerBridge`: call it with `planted.embed(xs, ys)`; its first logit at every token is ŷ.
    Raises:
        NeedsTransformers: TransformerLens is not installed.
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
    """Hooks that add amounts to what versions hold.

    Args:
        planted: The model.
        added: By version, as in `{"w#2": amounts}`; see `Truth.in_stream`.
    Returns:
        For `bridge.run_with_hooks(prompt, fwd_hooks=…)`.
    """

    def hook(change: Tensor) -> Hook:
        return lambda value, hook: value + change.to(value)

    truth = planted.truth
    changes = {name: truth.in_stream(name, amounts.to(planted.dtype)) for name, amounts in added.items()}
    return [(written_at(truth.version(name)), hook(change)) for name, change in changes.items()]


class WrappedModel(PrefixPredictor):
    """A planted model run by another library, a `TransformerBridge` or an `NNsight`; it is a predictor.

    Hooks and permanent edits of the wrapper are in effect.

    Args:
        planted: The planted model.
        wrapper: The other library's model of it.
    """

    def __init__(self, planted: PlantedModel, wrapper: Any) -> None:
        self.planted, self.wrapper = planted, wrapper
        self.run: Callable[[Tensor], Any] = _traced(wrapper) if hasattr(wrapper, "trace") else wrapper
        self.task = planted.task

    @property
    def samples(self) -> int:
        return self.planted.samples

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        """ŷ at every x."""
        prompt = self.planted.embed(xs, ys)
        with torch.no_grad():
            out = self.run(prompt.reshape(-1, *prompt.shape[-2:]))
        if hasattr(out, "last_hidden_state"):  # a model without a head; in all others ŷ is the first logit
            return self.planted.answers(out.last_hidden_state.reshape(prompt.shape))
        logits: Tensor = getattr(out, "logits", out)
        return logits.reshape(*prompt.shape[:-1], -1)[..., 1::2, 0]


def opened(wrapper: Any) -> WrappedModel:
    """The planted model that a `TransformerBridge` or `NNsight` was read from, found through its config's folder.

    Raises:
        NotAPredictor: Its model was not read from a planted model's folder.
    """
    model = getattr(wrapper, "original_model", None) or getattr(wrapper, "_module", None)
    folder = str(getattr(getattr(model, "config", None), "_name_or_path", ""))
    if not folder or not is_planted(Path(folder)):
        raise NotAPredictor(
            f"{type(wrapper).__name__} holds no model read from a planted model's folder; where it is one, give "
            "emulon.planted.lens.WrappedModel(planted, model)"
        )
    return WrappedModel(load(folder), wrapper)


def _traced(wrapper: Any) -> Callable[[Tensor], Any]:
    """A call inside a trace: nnsight applies edits only there."""

    def run(prompt: Tensor) -> Any:
        with wrapper.trace(inputs_embeds=prompt):
            out = wrapper.output.save()
        return out

    return run
