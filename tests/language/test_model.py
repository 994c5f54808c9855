"""The frozen model in Hugging Face's own class: one set of weights runs every method by prompt, as float64 would."""

import hashlib

import numpy as np
import pytest
from float_reading import iterates

from emulon.certify.transcript_checker import read
from emulon.language.methods import as_method, known_methods
from emulon.language.model import TextModel, load, write
from emulon.language.prompt import prompt, text_of

pytest.importorskip("transformers", reason="running the model needs transformers (pip install 'emulon[hf]')")

SHA256 = "17adb6ebdb4100a230880dae4f430d4658de97c2ba1c719b3c65a31d4349e993"
WORST = 2e-7  # from the exact iterates, for weights of up to 2
DRAW = np.random.default_rng(7)
X = DRAW.normal(size=(5, 2)).clip(-2, 2).round(4)
Y = (X @ [1.0, -0.6] + 0.1 * DRAW.normal(size=5)).round(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    assert write(folder) == SHA256
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return load(folder)


def text_for(name, steps, x=X, y=Y):
    method = known_methods()[name](steps=steps)
    y = np.sign(y) if as_method(method).descent.loss.link.name == "margin" else y
    return text_of(prompt(method, x, y))


def worst_error(text, written):
    """After checking that every word has its place."""
    found = read(text + written)
    assert not found.overflow
    return np.abs(np.array(found.written) / 1e8 - iterates(text, len(found.written))).max()


def test_the_file_has_the_hash_of_every_machine(folder, model):
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == SHA256 == model.sha256
    assert isinstance(model, TextModel) and type(model.network).__name__ == "LlamaForCausalLM"
    assert type(model.network).__module__ == "transformers.models.llama.modeling_llama"


def test_every_method_runs_by_prompt(model):
    texts = [text_for(name, steps=4) for name in known_methods()]
    errors = [worst_error(text, written) for text, written in zip(texts, model.complete(texts), strict=True)]
    assert max(errors) <= WORST, dict(zip(known_methods(), errors, strict=True))
