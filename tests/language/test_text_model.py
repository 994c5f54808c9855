"""The frozen model in Hugging Face's own class: one set of weights runs every method by prompt, as float64 would."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from float_reading import iterates

from emulon.algorithms import LinearRegression, Ridge
from emulon.certify.transcript_checker import check, read
from emulon.core.errors import BadPrompt, BadShape, CannotWrite, EmulonError, OutOfDomain
from emulon.language.certificate import bounds
from emulon.language.methods import as_method, known_methods
from emulon.language.model import TextModel, load, write
from emulon.language.prompt import prompt, text_of
from emulon.language.vocabulary import SMALL

pytest.importorskip("transformers", reason="running the model needs transformers (pip install 'emulon[hf]')")

SHA256 = "49ab2d97dc85519416f0a2df815cb89bdc6d97b9a8b1852cf60cb7fe143f0c02"
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
    """After checking that every word has its place, and every step what was known of it before."""
    found = read(text + written)
    assert not found.overflow
    off = np.abs(np.array(found.written) / 1e8 - iterates(text, len(found.written))).max(axis=1)
    assert (off <= bounds(found.prompt)).all()
    return off.max()


def test_the_file_has_the_hash_of_every_machine(folder, model):
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == SHA256 == model.sha256
    assert isinstance(model, TextModel) and type(model.network).__name__ == "LlamaForCausalLM"
    assert type(model.network).__module__ == "transformers.models.llama.modeling_llama"


def test_every_method_runs_by_prompt(model):
    texts = [text_for(name, steps=4) for name in known_methods()]
    errors = [worst_error(text, written) for text, written in zip(texts, model.complete(texts), strict=True)]
    assert max(errors) <= WORST, dict(zip(known_methods(), errors, strict=True))


@pytest.fixture(scope="module")
def eager(folder):
    return load(folder, attention="eager")


def test_random_configurations_in_eager_attention(eager):
    draw, names, texts = np.random.default_rng(0), sorted(known_methods()), []
    for _ in range(4):
        n, d = int(draw.integers(1, 5)), int(draw.integers(1, 9))
        x = draw.normal(size=(n, d)).clip(-2, 2)
        y = x @ draw.uniform(-0.5, 0.5, size=d) + 0.1 * draw.normal(size=n)
        texts.append(text_for(str(draw.choice(names)), int(draw.integers(1, 3)), x, y))
    errors = [worst_error(text, written) for text, written in zip(texts, eager.complete(texts), strict=True)]
    assert max(errors) <= WORST, errors


def test_the_largest_data_fit(model):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(SMALL.samples, SMALL.features)).clip(-2, 2)
    text = text_for("ridge", 1, x, x @ draw.uniform(-0.5, 0.5, size=SMALL.features))
    assert worst_error(text, model.complete([text])[0]) <= WORST


def test_alone_drafted_and_in_a_static_cache_the_same_is_written(model):
    text = text_for("huber_regression", steps=3)
    (alone,) = model.complete([text])
    assert model.complete([text, text_for("lasso", 5)])[0] == alone
    assert worst_error(text, model.complete([text], mode="drafted")[0]) <= WORST
    tokens = torch.tensor([model.vocabulary.encode(text)])
    asked = {"attention_mask": torch.ones_like(tokens), "max_length": tokens.shape[1] + 256}
    written = model.network.generate(tokens, cache_implementation="static", **asked)[0, tokens.shape[1] :]
    assert worst_error(text, model.vocabulary.decode(written.tolist())) <= WORST


def test_a_weight_that_cannot_be_written_is_said_and_ends_the_run(model):
    run = model.run(LinearRegression(steps=20, step_size=0.9), [[2.0, 1.0], [1.0, 2.0]], [19.0, -10.0])
    assert run.overflow and run.transcript.endswith(" overflow") and len(run.iterates) < 20
    exact = torch.tensor(iterates(text_of(run.prompt), len(run.iterates) - 1))
    assert run.audit.verify(run.iterates[1:], exact) < 1e-4
    text = text_of(prompt(LinearRegression(steps=1, step_size=1.0), [[1.0]], [19.99]))
    assert read(text + model.complete([text])[0]).written == ((1_999_000_000,),)


def test_a_run_has_weights_iterates_and_an_audit_from_its_text_alone(model):
    run = model.run(Ridge(0.3, steps=5), X, Y, start=[0.5, -1.25])
    assert run.name == "ridge" and not run.overflow and run.sha256 == (SHA256, SHA256)
    assert run.iterates.shape == (6, 2) and run.iterates[0].tolist() == [0.5, -1.25]
    assert isinstance(run.weights, np.ndarray) and run.weights.tolist() == run.last.tolist()
    run.audit.verify(run.iterates[1:], torch.tensor(iterates(text_of(run.prompt), 5)))
    assert run.audit.bound < run.certificate.bound < 2e-6 and "for this run only" in repr(run)
    assert check(run.transcript).startswith("every weight of 5 steps")


@pytest.mark.parametrize("name", ["ridge", "logistic_regression"])
def test_new_rows_are_predicted_by_the_model_itself(model, name):
    y = np.sign(Y) if name == "logistic_regression" else Y
    run = model.run(known_methods()[name](steps=1, step_size=0.01), X, y, start=[1.5, -1.0])
    new = DRAW.normal(size=(3, 2)).clip(-2, 2)
    predicted = model.predict(run, new)
    assert isinstance(predicted, np.ndarray) and np.abs(predicted - new @ run.last.numpy()).max() <= WORST
    with pytest.raises(OutOfDomain, match="row 2 of x_new"):
        model.predict(run, [[0.0, 0.0], [19.0, -19.0]])
    with pytest.raises(BadShape, match="x_new has shape"):
        model.predict(run, [[1.0]])


def test_hugging_face_alone_continues_a_prompt(folder):
    transformers = pytest.importorskip("transformers")
    text = text_for("ridge", steps=2)
    continued = transformers.pipeline("text-generation", model=str(folder), device="cpu")(text, return_full_text=False)
    assert worst_error(text, continued[0]["generated_text"]) <= WORST


def test_the_ten_lines_of_the_page_run_without_emulon(folder):
    page = (Path(__file__).parents[2] / "docs" / "llama.md").read_text(encoding="utf-8")
    block = next(code for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "pipeline" in code)
    without = "import sys; sys.modules['emulon'] = None\n"
    code = without + block.replace('model="llama"', f"model={str(folder)!r}")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:4] == ["step:1", "@1", "@2", "w1"] and "step:3" in done.stdout


def test_what_is_no_folder_of_the_language_is_refused(folder, tmp_path):
    with pytest.raises(EmulonError, match="no capacity; choose small or large"):
        write(tmp_path, "huge")
    with pytest.raises(BadPrompt, match="no folder of the text language"):
        load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(BadPrompt, match="another vocabulary"):
        load(tmp_path)
    with pytest.raises(CannotWrite):
        write(folder / "model.safetensors")
