"""Planted models in other people's tools: TransformerLens hooks by register, nnsight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emulon import planted
from emulon.core.predictor import NotAPredictor, as_predictor
from emulon.identification import identify
from emulon.identification.loading import load_subject
from emulon.planted.lens import WrappedModel, adding, read_at, to_transformer_lens
from emulon.planted.mechanism import BoundedLinear

pytest.importorskip("transformer_lens", reason="the extra [lens] is not installed")


@pytest.mark.parametrize(("architecture", "read", "foretold"), [("gpt2", 1e-8, 1e-6), ("llama", 1e-4, 1e-4)])
def test_transformer_lens_reads_and_moves_every_register_by_name(
    architecture: str, read: float, foretold: float, tmp_path: Path
) -> None:
    model = planted.obfuscate(planted.plant("clipped sgd", samples=3, architecture=architecture), seed=1)
    bridge = to_transformer_lens(model, tmp_path)
    xs, ys = model.draw(8, seed=1)
    prompt, values = model.embed(xs, ys), model.values(xs, ys)
    logits, cache = bridge.run_with_cache(prompt)
    model.certificate.verify(logits[:, 1::2, 0].detach(), model.algorithm(xs, ys))
    for version in model.truth.versions:
        held = model.truth.read(version.register, cache[read_at(version)][:, 1:])
        assert (held - values[version.name]).abs().max() < read
        added = {version.name: 1e-2 * torch.ones(held.shape[-1], dtype=torch.float64)}
        moved = bridge.run_with_hooks(prompt, fwd_hooks=adding(model, added))[:, 1::2, 0]
        assert (moved - model.expected(xs, ys, added=added)).abs().max() < foretold


def test_nnsight_traces_it() -> None:
    nnsight = pytest.importorskip("nnsight")
    model = planted.plant("sgd", samples=3)
    xs, ys = model.draw(4, seed=1)
    version = model.truth.version("w#1")
    traced = nnsight.NNsight(model.network)
    with traced.trace(inputs_embeds=model.embed(xs, ys)):
        stream = traced.h[version.layer].output.save()
    held = model.truth.read("w", stream[:, 1:])
    assert (held - model.values(xs, ys)["w#1"]).abs().max() < 1e-10
    with pytest.raises(NotAPredictor, match="WrappedModel"):
        as_predictor(traced)
    assert torch.equal(WrappedModel(model, traced)(xs, ys), model(xs, ys))


def test_what_other_tools_opened_is_a_predictor_with_its_hooks_and_edits(tmp_path: Path) -> None:
    nnsight, transformers = pytest.importorskip("nnsight"), pytest.importorskip("transformers")
    model = planted.obfuscate(planted.plant("last value", samples=3), seed=1, only=("rotated",))
    bridge = to_transformer_lens(model, tmp_path)
    traced = nnsight.NNsight(transformers.GPT2Model.from_pretrained(tmp_path))
    xs, ys = model.draw(4, seed=1)
    changed = {f"{model.output}#1": torch.tensor([0.25], dtype=torch.float64)}
    wanted, moved = model(xs, ys), model.expected(xs, ys, added=changed)
    for opened in (as_predictor(bridge), as_predictor(traced)):
        assert (opened.predict(xs[:, :2], ys[:, :2], xs[:, 2]) - wanted[:, 2]).abs().max() < 1e-12
        named = [str(identify(one, model.task, datasets=8).nearest) for one in (model, opened)]
        assert named[0] == named[1]
    [(place, hook)] = adding(model, changed)
    bridge.add_hook(place, hook)
    with traced.edit(inplace=True):
        traced.h[0].attn.output[0][:] += model.truth.in_stream(*next(iter(changed.items())))
    for opened in (as_predictor(bridge), as_predictor(traced)):
        assert (opened(xs, ys) - moved).abs().max() < 1e-10 and (moved - wanted).abs().min() > 0.2


def test_the_command_line_asks_a_bridge_about_its_own_data(tmp_path: Path) -> None:
    to_transformer_lens(planted.plant("last value", samples=3), tmp_path / "folder")
    source = tmp_path / "mine.py"
    source.write_text(
        "from transformer_lens.model_bridge import TransformerBridge\n"
        f"def bridge():\n    return TransformerBridge.boot_transformers({str(tmp_path / 'folder')!r}, device='cpu')\n"
    )
    subject = load_subject(f"{source}:bridge")
    assert isinstance(subject.thing, WrappedModel) and subject.task == BoundedLinear(2, 3)
