"""What is in the package is what the sources make: otherwise `make playground` has not been run."""

import gzip
import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from emulon.export import interpreter_to_onnx, prompt_of
from emulon.interpreter import compile
from emulon.language.interpreter import interpreter as text_interpreter
from emulon.language.vocabulary import SMALL
from emulon.machine.targets.llama import compile_llama
from emulon.playground import STATIC
from emulon.training import load_learner
from playground.data import facts, llama, machine
from playground.models import learner_to_onnx, machine_to_onnx
from playground.offers import OFFERS, for_points

SOURCES = Path(__file__).parents[2] / "playground"
STALE = "run make playground, and commit what it writes"
LLAMA_STALE = "run python -m playground.data src/emulon/playground/static, and commit what it writes"


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_page_was_built_from_these_sources():
    record = json.loads((STATIC / "build.json").read_text())
    present = {str(path.relative_to(SOURCES)) for path in (SOURCES / "src").iterdir()}
    assert present <= set(record["sources"]), STALE
    assert {name: sha256(SOURCES / name) for name in record["sources"]} == record["sources"], STALE
    assert {name: sha256(STATIC / name) for name in record["built"]} == record["built"], STALE


def test_the_interpreter_and_its_prompts_are_those_of_the_programs(programs, interpreter):
    assert (STATIC / "data" / "interpreter.onnx").read_bytes() == interpreter_to_onnx(interpreter), STALE
    known = {each["name"]: each for each in json.loads((STATIC / "data" / "programs.json").read_text())}
    for offer in OFFERS:
        prompt = prompt_of(programs[offer.name], interpreter.capacity)
        assert same_tensors(STATIC / "data" / f"{offer.name}.safetensors", prompt.tensors), STALE
        now = facts(offer, programs[offer.name], interpreter)
        # Bounds are compared below: their last digit may be another machine's.
        assert {**known[offer.name], "bounds": []} == {**json.loads(json.dumps(now)), "bounds": []}, STALE


def same_tensors(path, tensors):
    from safetensors.torch import load_file

    kept = load_file(path)
    return kept.keys() == tensors.keys() and all(torch.equal(kept[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", ["log_cosh", "perceptron"])
def test_the_programs_are_what_the_compiler_makes_now(programs, name):
    [offer] = [each for each in OFFERS if each.name == name]
    now = compile(offer.algorithm, offer.domain, offer.tolerance)
    for part in ("slopes", "intercepts", "values"):
        kept = getattr(programs[name].gradient.grid, part)
        assert torch.allclose(getattr(now.gradient.grid, part), kept, rtol=1e-9), STALE
    kept = programs[name]
    assert (now.step_size, now.descent.l2, now.domain) == (kept.step_size, kept.descent.l2, kept.domain)


def test_learner_and_machine_are_those_that_python_has():
    made = {
        "learner": learner_to_onnx(load_learner(SOURCES / "learner")[0]),
        "machine": machine_to_onnx(machine().compile()),
    }
    for name, written in made.items():
        now, kept = (onnx.load_from_string(each) for each in (written, (STATIC / "data" / f"{name}.onnx").read_bytes()))
        pairs = list(zip(now.graph.initializer, kept.graph.initializer, strict=True))
        assert pairs and all(a.name == b.name for a, b in pairs), STALE
        assert all(np.allclose(*map(onnx.numpy_helper.to_array, pair), rtol=1e-12) for pair in pairs), STALE


def test_the_stock_llama_is_that_of_the_program():
    made = gzip.decompress(llama(compile_llama(text_interpreter(SMALL))))
    assert gzip.decompress((STATIC / "data" / "llama.safetensors.gz").read_bytes()) == made, LLAMA_STALE


def test_the_bounds_of_the_page_are_those_of_the_promise(programs, interpreter):
    known = {each["name"]: each["bounds"] for each in json.loads((STATIC / "data" / "programs.json").read_text())}
    for name, steps in (("ridge", 1), ("lasso", 50), ("heavy_ball", 20), ("logistic", 200)):
        bound = programs[name].changed(steps=steps).certificate_on(interpreter.identity).bound
        assert bound <= known[name][steps] <= 1.002 * bound


def test_a_prompt_for_fewer_points_promises_no_less(programs, interpreter):
    for name in ("ridge", "lasso", "logistic"):
        whole = interpreter.certificate(programs[name])
        fewer = interpreter.certificate(for_points(programs[name], 5))
        assert fewer.bound <= whole.bound and fewer.proved == whole.proved
