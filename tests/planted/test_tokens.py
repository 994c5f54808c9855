"""Planted models of words: tokens in, logits out."""

import json

import pytest
import torch

from emulon import planted
from emulon.core.errors import EmulonError, OutOfDomain
from emulon.interpreter.files import BadFile
from emulon.planted.tokens import STEP

FIVE = {
    "sgd": {},
    "batch descent": {},
    "momentum": {},
    "clipped sgd": {},
    "ridge": {"features": 1, "samples": 3, "ridge": 2.0},
}


@pytest.fixture(scope="module")
def model():
    return planted.tokenized("sgd", features=3, samples=4)


@pytest.mark.parametrize("name", FIVE)
def test_the_most_likely_word_is_the_number_of_the_algorithm(name):
    model = planted.tokenized(name, **FIVE[name])
    xs, ys = model.draw(200, seed=5)
    written, exact = model(xs, ys), model.exact(xs, ys)
    certain = model.certain(exact)
    assert model.certificate.proved and certain.double().mean() > 0.9
    assert bool(((written - exact).abs() <= STEP / 2 + 1e-12)[certain].all())
    assert bool(((written - exact).abs() <= STEP / 2 + model.margin(exact)).all())  # the neighbour, at the boundary


def test_exact_answers_do_not_come_from_the_model(model):
    xs, ys = model.draw(8, seed=1)
    w, wanted = torch.zeros(8, 3, dtype=torch.float64), []
    for i in range(4):
        wanted.append((w * xs[:, i]).sum(-1))
        w = w - 0.5 * xs[:, i] * (wanted[-1] - ys[:, i])[:, None]
    assert torch.allclose(model.exact(xs, ys), torch.stack(wanted, -1), atol=1e-6)


def test_streams_at_markers_are_those_of_the_model_with_embeddings_to_the_last_bit(model):
    xs, ys = model.draw(4, seed=2)
    base, places = model.planted, model.words.places()
    tokens = torch.tensor([model.encode(model.words.text(*one)) for one in zip(xs, ys, strict=True)])
    streams = model.network(tokens, output_hidden_states=True).hidden_states
    wanted = base.network(inputs_embeds=base.embed(xs.float(), ys.float()), output_hidden_states=True).hidden_states
    word = model.truth.registers["word"]
    others = [place for place in range(tokens.shape[1]) if place not in places]
    for block, stream in enumerate(wanted[:-1]):
        here = streams[block + 1]
        at = here[:, places]
        assert torch.equal(at - (at @ word.read.float().mT) @ word.write.float(), stream)
        assert torch.equal(here[:, others], streams[0][:, others])  # number words never change


def test_interventions_are_as_the_program_says(model):
    xs, ys = model.draw(4, seed=3)
    amounts = torch.tensor([0.25, -0.125, 0.5])
    version, texts = model.truth.version("w#1"), [model.words.text(*one) for one in zip(xs, ys, strict=True)]
    change = model.in_stream("w#1", amounts)
    block = model.network.model.layers[version.layer]
    place = block.self_attn if version.part == "attention" else block.mlp

    def add(module, inputs, output):
        return (output[0] + change, *output[1:]) if isinstance(output, tuple) else output + change

    handle = place.register_forward_hook(add)
    written = model(xs, ys)
    handle.remove()
    wanted = model.planted.expected(xs, ys, added={"w#1": amounts})
    assert not torch.equal(written, model(xs, ys))
    assert bool(((written - wanted).abs() <= STEP / 2 + 1e-4).all()) and len(texts) == 4


def test_an_obfuscated_model_answers_likewise():
    base = planted.obfuscate(planted.plant("sgd", features=1, samples=3, architecture="llama"), seed=2)
    model = planted.tokenized(base)
    xs, ys = model.draw(50, seed=4)
    written, exact = model(xs, ys), model.exact(xs, ys)
    assert bool(((written - exact).abs() <= STEP / 2 + model.margin(exact)).all())
    assert float((written - exact).abs().max()) <= STEP / 2 + 1e-4


def test_a_folder_is_a_text_generation_pipeline(model, tmp_path):
    from transformers import AutoModelForCausalLM, pipeline

    model.save_pretrained(tmp_path)
    answer = pipeline("text-generation", model=str(tmp_path), dtype="float32")
    xs, ys = model.draw(3, seed=6)
    texts = [model.words.text(*one) for one in zip(xs, ys, strict=True)] + [model.words.text(xs[0, :2], ys[0, :1])]
    found = [float(one[0]["generated_text"]) for one in answer(texts, batch_size=4, return_full_text=False)]
    short = model(xs[:1, :2], ys[:1, :1])[0, -1:]
    assert found == torch.cat([model(xs, ys)[:, -1], short]).tolist()
    assert type(AutoModelForCausalLM.from_pretrained(tmp_path)).__name__ == "LlamaForCausalLM"
    again = planted.TokenModel.from_pretrained(tmp_path)
    assert again.certificate.proved and torch.equal(again(xs, ys), model(xs, ys))
    with pytest.raises(BadFile, match="TokenModel"):
        planted.load(tmp_path)


def test_a_folder_that_says_otherwise_is_refused(model, tmp_path):
    from safetensors.torch import load_file, save_file

    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"][9, 3] += 1.0
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    changed = planted.TokenModel.from_pretrained(tmp_path)
    assert not changed.certificate.proved and not bool(changed.certain(torch.tensor(0.1)))
    truth = json.loads((tmp_path / "truth.json").read_text())
    truth["truth"]["instructions"][0]["layer"] += 1
    (tmp_path / "truth.json").write_text(json.dumps(truth))
    with pytest.raises(BadFile, match="says otherwise"):
        planted.TokenModel.from_pretrained(tmp_path)


def test_a_word_chooses_the_algorithm_that_answers(tmp_path):
    model = planted.tokenized("choice", features=3, samples=4, second=planted.mechanism_named("moving average"))
    xs, ys = model.draw(100, seed=7)
    written, exact = model(xs, ys), model.exact(xs, ys)
    assert model.certificate.proved and bool(((written - exact).abs() <= STEP / 2 + model.margin(exact)).all())
    parts = model.planted.mechanism.answers(xs[..., 1:].float().double(), ys.float().double())
    by_name = dict(zip(("sgd", "moving-average"), parts, strict=True))
    assert list(model.words.switch) == list(by_name)
    for name, answers in by_name.items():  # the last word of the switch decides, whatever was asked before
        asked = xs.clone()
        asked[:, -1, 0] = model.words.switch[name]
        assert model.words.text(asked[0], ys[0]).split()[-4] == name
        found = model(asked, ys)[:, -1]
        assert bool(((found - answers[:, -1]).abs() <= STEP / 2 + 1e-4).all())
    assert float((parts[0] - parts[1]).abs()[:, -1].mean()) > 0.1
    model.save_pretrained(tmp_path)
    words = json.loads((tmp_path / "truth.json").read_text())["words"]
    assert words["switch"] == {"sgd": 0.5, "moving-average": -0.5}
    assert torch.equal(planted.TokenModel.from_pretrained(tmp_path)(xs, ys), written)
    with pytest.raises(OutOfDomain, match="first entry of x is one of"):
        model.words.text(xs[0] * 0.0, ys[0])
    with pytest.raises(OutOfDomain, match=r"go to 2\.00"):
        model.words.number(2.01)


def test_what_cannot_be_made_is_refused():
    with pytest.raises(EmulonError, match="planted Llamas"):
        planted.tokenized(planted.plant("sgd"))
    with pytest.raises(EmulonError, match="limit"):
        planted.tokenized("sgd", limit=20.0)
