"""What is in the package is what the sources make: otherwise `make playground` has not been run."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from emulon.export import interpreter_to_onnx, learner_to_onnx, machine_to_onnx, prompt_of
from emulon.interpreter import compile
from emulon.playground.data import facts, machine
from emulon.playground.programs import OFFERS, for_points
from emulon.playground.server import STATIC
from emulon.training import load_learner

SOURCES = Path(__file__).parents[2] / "playground"
STALE = "run make playground, and commit what it writes"


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
        assert known[offer.name] == json.loads(json.dumps(facts(offer, programs[offer.name], interpreter))), STALE


def same_tensors(path, tensors):
    from safetensors.torch import load_file

    kept = load_file(path)
    return kept.keys() == tensors.keys() and all(torch.equal(kept[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", ["log_cosh", "perceptron"])
def test_the_programs_are_what_the_compiler_makes_now(programs, name):
    [offer] = [each for each in OFFERS if each.name == name]
    assert compile(offer.algorithm, offer.domain, offer.tolerance).certificate == programs[name].certificate, STALE


def test_learner_and_machine_are_those_that_python_has():
    assert (STATIC / "data" / "learner.onnx").read_bytes() == learner_to_onnx(load_learner(SOURCES / "learner")[0]), (
        STALE
    )
    assert (STATIC / "data" / "machine.onnx").read_bytes() == machine_to_onnx(machine().compile()), STALE


def test_the_bounds_of_the_page_are_those_of_the_promise(programs, interpreter):
    known = {each["name"]: each["bounds"] for each in json.loads((STATIC / "data" / "programs.json").read_text())}
    for name, steps in (("ridge", 1), ("lasso", 50), ("heavy_ball", 20), ("logistic", 200)):
        bound = replace(programs[name], steps=steps).promise(interpreter.line).bound
        assert bound <= known[name][steps] <= 1.002 * bound


def test_a_prompt_for_fewer_points_promises_no_less(programs, interpreter):
    for name in ("ridge", "lasso", "logistic"):
        whole = interpreter.certificate(programs[name])
        fewer = interpreter.certificate(for_points(programs[name], 5))
        assert fewer.bound <= whole.bound and fewer.proved == whole.proved
