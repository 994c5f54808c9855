"""Planted models that are stock Llamas and GPT-NeoX: certificates, truth, files, other tools and the benchmark."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_planted_models import without

from emulon import cli, planted
from emulon.core.errors import EmulonError
from emulon.machine.targets.gpt2 import ROTATED
from emulon.planted import PlantedModel
from emulon.planted.architecture import ARCHITECTURES
from emulon.planted.benchmark import METHODS, ask, score
from emulon.planted.model import Build
from emulon.planted.noise import ROTATION
from emulon.planted.obfuscation import drafted, model_from, rotated_llama, unread
from reproduce.ours.planted_models import interventions, registers

transformers = pytest.importorskip(
    "transformers", reason="planted models are of its classes (pip install 'emulon[hf]')"
)
f32, f64 = torch.float32, torch.float64
LLAMA = ARCHITECTURES["llama"]
CASES = [("llama", name) for name in ("sgd", "batch descent", "ridge", "nearest average", "switch")]
CASES += [("gpt_neox", name) for name in ("clipped sgd", "ridge", "nearest average")]


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def pair(request: pytest.FixtureRequest) -> tuple[PlantedModel, PlantedModel]:
    architecture, name = request.param
    plain = planted.plant(name, samples=3, architecture=architecture)
    return plain, planted.obfuscate(plain, seed=1)


def test_answers_are_within_proved_bounds_and_the_truth_is_true(pair: tuple[PlantedModel, PlantedModel]) -> None:
    for one in pair:
        xs, ys = one.draw(64, seed=7)
        error = one.certificate.verify(one(xs, ys), one.algorithm(xs, ys))
        print(one, f"error {error:.1e}")
        assert one.certificate.proved
        if one.build.architecture == "llama":
            assert error < (1e-4 if one.build.obfuscations else 1e-6) and one.dtype == f32
            assert one.audit(xs, ys).bound < 1.1 * error + 1e-6
        else:
            assert error < 1e-9 and one.dtype == f64
        fits, slots = registers(one, xs, ys)
        assert min(fits) > 0.9999
        assert not slots or (min(slots) > 0.9999 if one is pair[0] else sum(slots) / len(slots) < 0.9)


def test_interventions_change_answers_as_the_program_says(pair: tuple[PlantedModel, PlantedModel]) -> None:
    _, one = pair
    found, single = interventions(one, *one.draw(8, seed=3)), one.dtype == f32
    assert found["intervention"] < (1e-4 if single else 1e-6) and found["unused"] < (1e-5 if single else 1e-9)


def test_answers_need_the_used_heads_and_neurons_and_no_unused_ones(pair: tuple[PlantedModel, PlantedModel]) -> None:
    _, one = pair
    xs, ys = one.draw(16, seed=4)
    before, truth = one(xs, ys), one.truth
    assert (without(one, truth.unused_heads, truth.unused_neurons)(xs, ys) - before).abs().max() < 3e-5
    assert (without(one, truth.used_heads, truth.used_neurons)(xs, ys) - before).abs().max() > 1e-2


def test_gpt_neox_is_the_gpt2_model_in_other_parameters() -> None:
    model = planted.plant("sgd", samples=3, architecture="gpt_neox")
    xs, ys = model.draw(8, seed=5)
    assert (model(xs, ys) - planted.plant("sgd", samples=3)(xs, ys)).abs().max() < 1e-10
    attention = model.network.layers[0].attention
    assert attention.rotary_ndims == ROTATED
    rows = attention.query_key_value.weight.unflatten(0, (model.truth.heads, 3, -1))
    used = [head for block, head in model.truth.used_heads if block == 0]
    assert used and not rows[used, :2, :ROTATED].any() and rows[used, :2, ROTATED:].any()


def test_no_dead_block_comes_between_a_division_and_the_pads_return() -> None:
    ridge = planted.mechanism_named("ridge", features=1, samples=4)
    for seed in range(12):
        draft = drafted(ridge, f32, Build(0, seed, ("dead blocks",), 1.0, "llama"))
        assert draft.truth.blocks == draft.machine.depth + 3 == len(draft.weights.blocks)
        assert all(draft.arranged.places[i + 1] == draft.arranged.places[i] + 1 for i in LLAMA.glued(draft.machine))


def test_the_noise_of_a_rotated_llama_is_counted_as_its_docstring_says() -> None:
    """No run meets the bound, so it is computed a second time, row by row, from last value's two value rows."""
    draft = drafted(
        planted.mechanism_named("last value", features=1, samples=2),
        f32,
        Build(0, 3, ("rotated", "noisy"), 1.0, "llama"),
    )
    u, changed, rotation, ranges = 2.0**-24, 1e-9 + ROTATION, draft.arranged.rotation, draft.plan.analysis.largest
    layout, width = draft.machine.layout, draft.truth.width
    [output] = [name for name in ranges if name not in ("x", "y")]
    free = [i for i in range(width) if i not in draft.fixed]
    live = [i for i in free if i not in unread(draft)]
    slot = {name: layout.slots[name].start for name in ranges}
    stored = {name: reach.peak / layout.scale[name] for name, reach in ranges.items()}
    before = math.hypot(stored["x"], stored["y"])
    after = math.hypot(before, stored[output])

    def gamma(count: int) -> float:
        return count * u / (1 - count * u)

    def back(part: torch.Tensor) -> torch.Tensor:
        return part.float().double() @ rotation

    [meant], [real] = draft.intended.blocks, draft.weights.blocks
    assert not meant.outward.any() and not meant.query[..., live].any() and not meant.key[..., live].any()
    rows = meant.output.any(dim=-1).nonzero().tolist()
    assert len(rows) == 2  # what is copied, and what is erased
    misread = dict.fromkeys(ranges, gamma(len(free) + 1) * after)
    drift = (back(draft.weights.positions) - draft.intended.positions).abs().amax(dim=0)
    drift += changed * draft.intended.positions[:, free].norm(dim=1).max()
    drift += sum(gamma(3) * stored[name] + u * before for name in ("x", "y"))
    wrong = torch.zeros(width, dtype=f64)
    for head, row in rows:
        read, seen = meant.value[head, row], back(real.value)[head, row]
        [name] = [name for name in ranges if read[slot[name]] != 0]
        error = sum(float((seen - read)[slot[one]].abs()) * stored[one] for one in ("x", "y"))
        error += changed * before * float(read[live].norm())
        own = float(read[draft.fixed].abs().sum())
        error += gamma(int((read @ rotation.mT).count_nonzero())) * (float(read[live].abs().sum()) * before + own)
        misread[name] = max(misread[name], error / float(read[live].abs().sum()))
        value = own + (0.0 if name == output else float(read[slot[name]].abs()) * stored[name])
        out, seen = meant.output[head, row], back(real.output)[head, row]
        wrong += value * ((seen - out).abs() + changed * out[free].norm())
        wrong += gamma(len(rows) + 2) * value * (out @ rotation.mT).abs() @ rotation.abs()
    noise = rotated_llama(draft, 1e-9).noise(draft.plan.analysis)
    for name, error in misread.items():
        assert noise.misread[frozenset([name])] == pytest.approx(1.01 * error, rel=1e-9, abs=0.0)
    assert set(noise.drift) == {"y"}
    assert noise.drift["y"] == pytest.approx(1.01 * float(drift[slot["y"]]), rel=1e-9, abs=0.0)
    # What is written is rid of what drifted before.
    at_end = float(wrong[slot[output]]) + 2 * u * after
    assert noise.final[output] == pytest.approx(1.01 * at_end, rel=1e-9, abs=0.0)
    at_end = float((drift + wrong)[slot["x"]]) + 2 * u * after
    assert noise.final["x"] == pytest.approx(1.01 * at_end, rel=1e-9, abs=0.0)


def test_dead_heads_and_neurons_write_no_more_than_is_counted_and_registers_of_groups_are_mixed_apart() -> None:
    model = planted.obfuscate(
        planted.plant("least squares", features=1, samples=4, ridge=0.01, architecture="llama"), 1
    )
    draft = drafted(model.mechanism, f32, replace(model.build, mixed=6))
    told = rotated_llama(draft, 0.0)
    lengths = [told._length(draft.plan.analysis, draft.plan.analysis.largest)] * (2 * draft.truth.blocks + 1)
    xs, ys = model.draw(64, seed=1)
    made = model_from(draft, model.mechanism)
    with torch.no_grad():
        streams = made.network(inputs_embeds=made.embed(xs, ys), output_hidden_states=True).hidden_states[:-1]
    written = (torch.stack(streams).double() @ draft.arranged.rotation)[..., told.dead].norm(dim=-1).max()
    assert 1e-4 < written < told._dead_norm(lengths)
    mixed = draft.arranged.rotation != 0
    live = [i for i in range(draft.truth.width) if i not in {*draft.fixed, *told.dead}]
    assert mixed[live].sum(dim=1).max() <= 6 and not mixed[live][:, told.dead].any()
    # Half of the dead rows' scale undone elsewhere, as `rescaled` does, changes nothing.
    values = told._dead_values(0, 1.0)
    told.intended.blocks[0].value *= 4.0
    assert torch.allclose(told._dead_values(0, 1.0), 4.0 * values, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("architecture", "title", "dtype", "other", "weight"),
    [
        ("llama", "Llama", f32, f64, "layers.0.mlp.up_proj.weight"),
        ("gpt_neox", "GPT-NeoX", f64, f32, "layers.0.mlp.dense_h_to_4h.weight"),
    ],
)
def test_a_folder_opens_in_transformers_and_is_verified(
    architecture: str,
    title: str,
    dtype: torch.dtype,
    other: torch.dtype,
    weight: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plant", "switch:samples=3", "--architecture", architecture, "--obfuscate", "all", "--seed", "2"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    assert f"a {title} of" in capsys.readouterr().out
    model = planted.load(tmp_path)
    xs, ys = model.draw(8, seed=5)
    network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(network).__name__.lower() == f"{title}ForCausalLM".replace("-", "").lower() and network.dtype == dtype
    prompt = model.embed(xs, ys)
    with torch.no_grad():
        logits = network(inputs_embeds=prompt).logits
    room = 1e-5 if dtype == f32 else 1e-12
    assert (logits[:, 1::2, 0] - model(xs, ys)).abs().max() < room and not logits[..., 1:].any()
    # The embeddings of the tokens are the prompt without its inputs.
    tokens = torch.arange(model.truth.tokens)
    assert torch.equal(network.get_input_embeddings()(tokens), model.embed(0 * xs, 0 * ys)[0])
    weights = {**model.state, weight: model.state[weight] * 1.01}
    planted.save(replace(model, state=weights), tmp_path)
    changed = planted.load(tmp_path)
    assert model.certificate.proved and not changed.certificate.proved
    with pytest.raises(EmulonError, match=f"{title} models are {str(dtype)[6:]}"):
        planted.plant("sgd", other, architecture=architecture)
    with pytest.raises(EmulonError, match="architecture"):
        planted.plant("sgd", architecture=architecture[:-1])


@pytest.mark.parametrize("architecture", ["llama", "gpt_neox"])
def test_the_benchmarks_methods_take_it(architecture: str) -> None:
    model = planted.obfuscate(planted.plant("sgd", samples=4, architecture=architecture), seed=1)
    questions = ask(model, seed=0)
    for name in ("linear-probe", "activation-patching", "attribution-patching", "readout-attribution", "identify"):
        found = score(METHODS[name](questions.subject), questions)
        assert found.get("what", 1.0) > 0.5 and found.get("which", 1.0) == 1.0
        assert found.get("circuit", 1.0) > (0.6 if architecture == "llama" else 0.55)


def test_eight_features_and_thirty_two_samples_are_proved() -> None:
    model = planted.plant("batch descent", features=8, samples=32, architecture="llama")
    xs, ys = model.draw(4, seed=1)
    error = model.certificate.verify(model(xs, ys), model.algorithm(xs, ys))
    assert error < 1e-6 and model.certificate.proved and (model.truth.blocks, model.truth.width) == (4, 256)
