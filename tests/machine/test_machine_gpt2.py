"""The export, with the real Hugging Face class: a checkpoint that runs the algorithm by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from exact_learners import LEARNERS, exact_ridge, exact_sgd, gaussian_data

from emulon.core.errors import OutOfDomain
from emulon.machine import Transformer, predict_gpt2, save_gpt2, to_gpt2, to_transformer_lens
from emulon.machine.layer import MachineBlock
from emulon.machine.programs import sgd, sherman_morrison
from emulon.machine.targets.gpt2 import slots
from emulon.machine.targets.stock import NeedsTransformers

transformers = pytest.importorskip(
    "transformers", reason="the GPT-2 export needs transformers (pip install 'emulon[hf]')"
)


def load(folder: Path, **options: object):
    model = transformers.GPT2Model.from_pretrained(folder, dtype=torch.float64, **options)
    return model, json.loads((folder / "slots.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LEARNERS)
def test_the_checkpoint_predicts_as_ours_and_as_the_exact_algorithm(
    name: str, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, exact = LEARNERS[name]
    model = program().compile()
    xs, ys = gaussian_data(8, model.program.prompt.samples, model.program.prompt.features)
    mine = model.predict(xs, ys)
    save_gpt2(model, tmp_path)

    def not_ours(*_: object, **__: object) -> None:
        raise AssertionError("emulon's forward ran inside the GPT-2 prediction")

    monkeypatch.setattr(MachineBlock, "forward", not_ours)
    gpt2, labels = load(tmp_path, attn_implementation=attention)
    assert type(gpt2) is transformers.GPT2Model
    found = predict_gpt2(gpt2, labels, xs, ys)
    assert (found - mine).abs().max() < 1e-6 and (found - exact(xs, ys)).abs().max() < 1e-6
    with pytest.raises(OutOfDomain, match="x reaches"):
        predict_gpt2(gpt2, labels, 100 * xs, ys)


def slots_of(model: Transformer) -> dict:
    return json.loads(json.dumps(slots(model)))


def test_gpt2s_own_activation_serves_as_well() -> None:
    """The certificate is for the exact GELU, but Richardson cancels z⁴ and z⁶ of the tanh formula too."""
    model = sgd(4, 8, 0.05).compile()
    xs, ys = gaussian_data(8, 8, 4)
    gpt2 = to_gpt2(model)
    for block in gpt2.h:
        block.mlp.act = transformers.activations.ACT2FN["gelu_new"]
    assert (predict_gpt2(gpt2, slots_of(model), xs, ys) - exact_sgd(xs, ys, 0.05)).abs().max() < 1e-9


def test_slots_name_every_direction_and_tell_the_truth() -> None:
    """Reading w through slots.json, layer by layer, gives the iterates of SGD."""
    model = sgd(3, 5, 0.05).compile()
    labels = slots_of(model)
    xs, ys = gaussian_data(4, 5, 3)
    names = [label for slot in labels["slots"].values() for label in slot["labels"]]
    assert len(names) == len(set(names)) == model.width
    embedded = model.embed(**model.program.prompt.fill(xs, ys))
    hidden = to_gpt2(model)(inputs_embeds=embedded, output_hidden_states=True).hidden_states
    slot = labels["slots"]["w"]
    w = torch.zeros(4, 3, dtype=torch.float64)
    token = 9  # x_5, which has four examples before it
    for done in range(1, 5):
        # After round t, x_5 holds t steps on the last t examples.
        w = torch.zeros(4, 3, dtype=torch.float64)
        for j in range(4 - done, 4):
            w = w - 0.05 * xs[:, j] * ((w * xs[:, j]).sum(-1) - ys[:, j])[:, None]
        layer = next(
            i
            for i, text in enumerate(labels["layers"])
            if sum("aff" in t for row in labels["layers"][: i + 1] for t in row) == done
        )
        # The stream before the next block; the last of hidden_states has passed the final LayerNorm.
        stream = hidden[layer + 1][:, token]
        held = slot["scale"] * (stream[:, slot["start"] : slot["stop"]] - stream[:, labels["zero"], None])
        assert (held - w).abs().max() < 1e-10


def test_without_transformers_the_export_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(NeedsTransformers, match=r"emulon\[hf\]"):
        to_gpt2(sgd(2, 3, 0.05).compile())


def test_transformer_lens_takes_it(tmp_path: Path) -> None:
    pytest.importorskip("transformer_lens.model_bridge", reason="TransformerLens 4 is not installed")
    model = sherman_morrison(3, 4, 1.0).compile()
    xs, ys = gaussian_data(4, 4, 3)
    bridge = to_transformer_lens(model, tmp_path)
    _, cache = bridge.run_with_cache(model.embed(**model.program.prompt.fill(xs, ys)))
    stream = cache[f"blocks.{model.depth - 1}.hook_resid_post"][:, 1:]
    slot = slots_of(model)["slots"]["guess"]
    found = model.program.prompt.predictions(slot["scale"] * stream[..., slot["start"], None])
    assert (found - exact_ridge(xs, ys, 1.0)).abs().max() < 1e-9
