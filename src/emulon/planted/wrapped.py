"""Specimens that somebody opened in TransformerLens or nnsight, as predictors: with whatever hooks or edits are on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emulon.core.predictor import NotAPredictor, padded_prefixes
from emulon.planted.files import is_specimen, load
from emulon.planted.specimen import Specimen


class WrappedSpecimen:
    """A specimen whose answers come out of somebody else's model of it: a `TransformerBridge` or an `NNsight`.

    `wrapper` is run as it is, so that what was hooked into it, or edited in it for good, shows in the answers.
    """

    def __init__(self, specimen: Specimen, wrapper: Any) -> None:
        self.specimen, self.wrapper, self.run = specimen, wrapper, _way_to_run(wrapper)
        self.examples, self.task = specimen.examples, specimen.task

    def __call__(self, xs: Tensor, ys: Tensor) -> Tensor:
        prompt = self.specimen.embed(xs, ys)
        with torch.no_grad():
            out = self.run(prompt.reshape(-1, *prompt.shape[-2:]))
        if hasattr(out, "last_hidden_state"):  # a GPT2Model; everything else has ŷ as its logit
            return self.specimen.answers(out.last_hidden_state.reshape(prompt.shape))
        logits: Tensor = getattr(out, "logits", out)
        return logits.reshape(*prompt.shape[:-1], -1)[..., 1::2, 0]

    def predict(self, xs: Tensor, ys: Tensor, x_query: Tensor) -> Tensor:
        points = torch.cat([xs, x_query.unsqueeze(-2)], dim=-2)
        return self.predict_prefixes(points, ys)[..., -1]

    def predict_prefixes(self, xs: Tensor, ys: Tensor) -> Tensor:
        return padded_prefixes(self, self.specimen.mechanism.samples, xs, ys)


def opened(wrapper: Any) -> WrappedSpecimen:
    """Whose specimen it is, the model's config says: the folder that it was read from."""
    model = getattr(wrapper, "original_model", None) or getattr(wrapper, "_module", None)
    folder = str(getattr(getattr(model, "config", None), "_name_or_path", ""))
    if not folder or not is_specimen(Path(folder)):
        raise NotAPredictor(
            f"{type(wrapper).__name__} holds no model that was read from a specimen's folder; where it is one, give "
            "emulon.planted.wrapped.WrappedSpecimen(specimen, model)"
        )
    return WrappedSpecimen(load(folder), wrapper)


def _way_to_run(wrapper: Any) -> Callable[[Tensor], Any]:
    return _traced(wrapper) if hasattr(wrapper, "trace") else wrapper


def _traced(wrapper: Any) -> Callable[[Tensor], Any]:
    """nnsight's edits are on only inside a trace."""

    def run(prompt: Tensor) -> Any:
        with wrapper.trace(inputs_embeds=prompt):
            out = wrapper.output.save()
        return out

    return run
