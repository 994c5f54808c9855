"""Planted models that are stock GPT-NeoX in float64: certificates, truth, files, other tools and the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from emulon import cli, planted
from emulon.core.errors import EmulonError
from emulon.machine.targets.gpt_neox import ROTATED
from emulon.planted import PlantedModel
from emulon.planted.benchmark import METHODS, ask, score
from reproduce.ours.planted_models import interventions, registers

transformers = pytest.importorskip(
    "transformers", reason="planted models are of its classes (pip install 'emulon[hf]')"
)
f32, f64 = torch.float32, torch.float64


@pytest.fixture(scope="module", params=["clipped sgd", "ridge", "nearest average"])
def pair(request: pytest.FixtureRequest) -> tuple[PlantedModel, PlantedModel]:
    plain = planted.plant(request.param, samples=3, architecture="gpt_neox")
    return plain, planted.obfuscate(plain, seed=1)


def test_answers_are_within_proved_bounds_and_the_truth_is_true(pair: tuple[PlantedModel, PlantedModel]) -> None:
    for one in pair:
        xs, ys = one.draw(64, seed=7)
        error = one.certificate.verify(one(xs, ys), one.algorithm(xs, ys))
        print(one, f"error {error:.1e}")
        assert one.certificate.proved and error < 1e-9 and one.dtype == f64
        fits, slots = registers(one, xs, ys)
        assert min(fits) > 0.9999
        assert not slots or (min(slots) > 0.9999 if one is pair[0] else max(slots) < 0.99)
    found = interventions(pair[1], *pair[1].draw(8, seed=3))
    assert found["intervention"] < 1e-6 and found["unused"] < 1e-9


def test_it_is_the_gpt2_model_in_other_parameters() -> None:
    model = planted.plant("sgd", samples=3, architecture="gpt_neox")
    xs, ys = model.draw(8, seed=5)
    assert (model(xs, ys) - planted.plant("sgd", samples=3)(xs, ys)).abs().max() < 1e-10
    attention = model.network.layers[0].attention
    assert attention.rotary_ndims == ROTATED
    rows = attention.query_key_value.weight.unflatten(0, (model.truth.heads, 3, -1))
    used = [head for block, head in model.truth.used_heads if block == 0]
    assert used and not rows[used, :2, :ROTATED].any() and rows[used, :2, ROTATED:].any()


def test_a_folder_opens_in_transformers_and_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plant", "switch:samples=3", "--architecture", "gpt_neox", "--obfuscate", "all", "--seed", "2"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    assert "a GPT-NeoX of" in capsys.readouterr().out
    model = planted.load(tmp_path)
    xs, ys = model.draw(8, seed=5)
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(network).__name__ == "GPTNeoXForCausalLM" and network.dtype == f64
    with torch.no_grad():
        logits = network(inputs_embeds=model.embed(xs, ys)).logits
    assert (logits[:, 1::2, 0] - model(xs, ys)).abs().max() < 1e-12 and not logits[..., 1:].any()
    with pytest.raises(EmulonError, match="GPT-NeoX models are float64"):
        planted.plant("sgd", f32, architecture="gpt_neox")


def test_the_benchmarks_methods_take_it() -> None:
    model = planted.obfuscate(planted.plant("sgd", samples=4, architecture="gpt_neox"), seed=1)
    questions = ask(model, seed=0)
    for name in ("linear-probe", "activation-patching", "readout-attribution"):
        found = score(METHODS[name](questions.subject), questions)
        assert found.get("what", 1.0) > 0.5 and found.get("circuit", 1.0) > 0.55
