"""Specimens in other people's tools: TransformerLens hooks by register, nnsight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emulon import specimens
from emulon.specimens.lens import adding, read_at, to_transformer_lens

pytest.importorskip("transformer_lens", reason="the extra [lens] is not installed")


def test_transformer_lens_reads_and_moves_every_register_by_name(tmp_path: Path) -> None:
    specimen = specimens.disguise(specimens.specimen_named("clipped sgd", samples=3), seed=1)
    bridge = to_transformer_lens(specimen, tmp_path)
    xs, ys = specimen.draw(8, seed=1)
    prompt, values = specimen.embed(xs, ys), specimen.values(xs, ys)
    logits, cache = bridge.run_with_cache(prompt)
    specimen.certificate.verify(logits[:, 1::2, 0].detach(), specimen.algorithm(xs, ys))
    for version in specimen.truth.versions:
        held = specimen.truth.read(version.register, cache[read_at(version)][:, 1:])
        assert (held - values[version.name]).abs().max() < 1e-8
        added = {version.name: 1e-3 * torch.ones(held.shape[-1], dtype=torch.float64)}
        moved = bridge.run_with_hooks(prompt, fwd_hooks=adding(specimen, added))[:, 1::2, 0]
        assert (moved - specimen.expected(xs, ys, added=added)).abs().max() < 1e-6


def test_nnsight_traces_it() -> None:
    nnsight = pytest.importorskip("nnsight")
    specimen = specimens.specimen_named("sgd", samples=3)
    xs, ys = specimen.draw(4, seed=1)
    version = specimen.truth.version("w#1")
    model = nnsight.NNsight(specimen.model)
    with model.trace(inputs_embeds=specimen.embed(xs, ys)):
        stream = model.h[version.layer].output.save()
    held = specimen.truth.read("w", stream[:, 1:])
    assert (held - specimen.values(xs, ys)["w#1"]).abs().max() < 1e-10
