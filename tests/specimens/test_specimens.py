"""Specimens answer as their algorithm does, within what is promised, and their truth is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emulon import specimens
from emulon.errors import EmulonError, OutOfDomain
from emulon.interrogate import identify
from emulon.loading import load_subject
from emulon.specimens import MECHANISMS, Specimen

transformers = pytest.importorskip("transformers", reason="specimens are GPT2Models (pip install 'emulon[hf]')")
f32, f64 = torch.float32, torch.float64


@pytest.fixture(scope="module", params=list(MECHANISMS))
def specimen(request: pytest.FixtureRequest) -> Specimen:
    return specimens.specimen_named(request.param, samples=4)


@pytest.fixture(scope="module")
def disguised(specimen: Specimen) -> Specimen:
    return specimens.disguise(specimen, seed=1)


def streams(specimen: Specimen, xs: torch.Tensor, ys: torch.Tensor) -> list[torch.Tensor]:
    """The stream before the first block, and after every block but the last, whose LayerNorm comes with it."""
    with torch.no_grad():
        out = specimen.model(inputs_embeds=specimen.embed(xs, ys), output_hidden_states=True)
    return list(out.hidden_states[:-1])


def fit(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """R² over all entries together."""
    return float(1 - (found - wanted).square().sum() / (wanted - wanted.mean()).square().sum())


def best_coordinate(stream: torch.Tensor, wanted: torch.Tensor) -> float:
    """R² of the best single coordinate of the stream, slope and offset fitted: what a register's own slot gives."""
    x, y = stream.flatten(0, -2), wanted.flatten()
    x, y = x - x.mean(dim=0), y - y.mean()
    return float(((x.mT @ y) ** 2 / (x.square().sum(dim=0) * y.square().sum()).clamp(min=1e-300)).max())


def test_every_mechanism_is_its_algorithm_within_its_certificate(specimen: Specimen, disguised: Specimen) -> None:
    single = specimens.specimen_of(specimen.mechanism, f32)
    for one in (specimen, disguised, single, specimens.disguise(single, seed=1)):
        xs, ys = one.draw(64, seed=7)
        error = one.certificate.verify(one(xs, ys), one.algorithm(xs, ys))
        print(one, f"error {error:.1e}")
        assert error < (1e-9 if one.dtype == f64 else 1e-2)
        assert one.certificate.proved or one.build.disguises or one.dtype == f32 or one.name.startswith("least squares")
        assert one.audit(xs, ys).bound < 1.1 * error + 1e-13


def test_its_directions_read_every_register_and_its_slots_do_not(specimen: Specimen, disguised: Specimen) -> None:
    """In the plain stream a slot is a register's entry; in disguise no coordinate is, and the truth still reads."""
    best = {}
    for one in (specimen, disguised):
        xs, ys = one.draw(64, seed=2)
        after, values, asked = streams(one, xs, ys), one.values(xs, ys), 0
        best[one] = []
        for version in one.truth.versions:
            for layer in version.layers[:2]:
                wanted = values[version.name]
                if layer + 1 < len(after) and wanted[..., 0].std() > 1e-3:
                    assert fit(one.truth.read(version.register, after[layer + 1])[:, 1:], wanted) > 0.9999
                    best[one].append(best_coordinate(after[layer + 1][:, 1:], wanted[..., 0]))
                    asked += 1
        assert asked > 1
    assert min(best[specimen]) > 0.9999
    assert sum(best[disguised]) / len(best[disguised]) < 0.6


def test_a_register_that_is_moved_moves_the_answer_as_the_program_says_and_unused_ones_do_not(
    specimen: Specimen, disguised: Specimen
) -> None:
    for one in (specimen, disguised):
        xs, ys = one.draw(16, seed=3)
        before = one(xs, ys)
        for name in one.truth.unused_registers:
            assert (_patched(one, xs, ys, name, 0.3) - before).abs().max() <= one.certificate.bound
        moved = _patched(one, xs, ys, one.output, 0.3, layer=one.truth.blocks - 1)
        assert (moved - before - 0.3).abs().max() < 1e-8


def _patched(one: Specimen, xs: torch.Tensor, ys: torch.Tensor, name: str, by: float, layer: int = 0) -> torch.Tensor:
    """Answers where `by` was added to a register's first entry after a block."""
    direction = one.truth.registers[name].write[0].to(one.dtype)
    hook = one.model.h[layer].register_forward_hook(
        lambda module, inputs, output: (
            (output[0] + by * direction, *output[1:]) if isinstance(output, tuple) else output + by * direction
        )
    )
    try:
        return one(xs, ys)
    finally:
        hook.remove()


def test_unused_heads_and_neurons_may_be_anything(disguised: Specimen) -> None:
    xs, ys = disguised.draw(16, seed=4)
    before, size = disguised(xs, ys), disguised.truth.width // disguised.truth.heads
    assert disguised.truth.unused_heads and disguised.truth.used_heads

    def without(heads: frozenset[tuple[int, int]], neurons: frozenset[tuple[int, int]]) -> torch.Tensor:
        state = {name: part.clone() for name, part in disguised.state.items()}
        for block, head in heads:
            state[f"h.{block}.attn.c_proj.weight"][head * size : (head + 1) * size] = 0.0
        for block, neuron in neurons:
            state[f"h.{block}.mlp.c_proj.weight"][neuron] = 0.0
        return replace(disguised, state=state)(xs, ys)

    truth = disguised.truth
    away = without(truth.unused_heads, truth.unused_neurons) - before
    assert away.abs().max() <= disguised.certificate.bound
    assert (without(truth.used_heads, frozenset()) - before).abs().max() > 1e-2


def test_a_folder_is_the_specimen_again_and_a_checkpoint_for_everybody(tmp_path: Path) -> None:
    specimen = specimens.disguise(specimens.specimen_named("sgd", samples=3), seed=2)
    folder = specimens.save(specimen, tmp_path / "one")
    again = specimens.load(folder)
    xs, ys = specimen.draw(8, seed=5)
    assert torch.equal(again(xs, ys), specimen(xs, ys))
    assert again.certificate == specimen.certificate and again.mechanism == specimen.mechanism
    assert again.truth.to_json() == specimen.truth.to_json()
    assert all(torch.equal(again.values(xs, ys)[name], value) for name, value in specimen.values(xs, ys).items())
    model = transformers.GPT2Model.from_pretrained(folder)
    assert torch.equal(specimen.answers(model(inputs_embeds=specimen.embed(xs, ys)).last_hidden_state), again(xs, ys))
    assert "sgd" in (folder / "README.md").read_text(encoding="utf-8")
    subject = load_subject(str(folder))
    assert isinstance(subject.thing, Specimen) and subject.task == specimen.task


def test_identify_names_a_specimen() -> None:
    specimen = specimens.disguise(specimens.specimen_named("sgd", step_size=0.4), seed=1)
    found = identify(specimen, specimen.task, datasets=32)
    assert found.algorithm == "sgd" and found.parameters["step_size"] == pytest.approx(0.4, abs=1e-3)


def test_samples_are_functions_of_their_seed_and_of_every_kind() -> None:
    drawn = [specimens.drawn_mechanism(seed) for seed in range(60)]
    assert {one.name for one in drawn} == set(MECHANISMS)
    assert drawn[:5] == [specimens.drawn_mechanism(seed) for seed in range(5)] and len(set(drawn)) > 50


def test_bad_requests_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EmulonError, match="did you mean sgd"):
        specimens.specimen_named("sgdd")
    with pytest.raises(EmulonError, match="step_size"):
        specimens.specimen_named("sgd", stepsize=0.1)
    with pytest.raises(EmulonError, match="learns nothing"):
        specimens.specimen_named("sgd", samples=1)
    specimen = specimens.specimen_named("sgd", samples=3)
    with pytest.raises(EmulonError, match="strength between"):
        specimens.disguise(specimen, strength=2.0)
    with pytest.raises(EmulonError, match="disguise"):
        specimens.disguise(specimen, only=("turnd",))
    with pytest.raises(OutOfDomain, match="x reaches"):
        specimen(*(10 * part for part in specimen.draw(2)))
    with pytest.raises(EmulonError, match="holds no specimen"):
        specimens.load(tmp_path)
    (tmp_path / "truth.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(EmulonError):
        specimens.load(tmp_path)
