"""What onnxruntime computes from the files is what PyTorch computes, and the files need nothing of emulon."""

import ast
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from emulon.export import interpreter_to_onnx, save_prompt
from emulon.interpreter import Interpreter, load_program
from playground.offers import for_points

ROOT = Path(__file__).parents[2]
EXAMPLE, PROGRAMS = ROOT / "examples" / "run_onnx.py", ROOT / "playground" / "programs"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Four algorithms and one interpreter as files, and the points they are asked about."""
    folder, draw = tmp_path_factory.mktemp("onnx"), np.random.default_rng(0)
    x = draw.uniform(-1, 1, size=(7, 2))
    y = x @ [1.0, -0.5] + 0.2 * draw.normal(size=7)
    plane = np.column_stack([x, draw.uniform(-1, 1, size=7)])
    tables = {"ridge": (x, y), "lasso": (x, y), "logistic": (plane, np.sign(y)), "poisson": (x, abs(y))}
    programs = {name: for_points(load_program(PROGRAMS / f"{name}.safetensors").changed(steps=6), 7) for name in tables}
    interpreter = Interpreter.fitting(*programs.values())
    (folder / "interpreter.onnx").write_bytes(interpreter_to_onnx(interpreter))
    for name, table in tables.items():
        save_prompt(programs[name], interpreter.capacity, folder / f"{name}.safetensors")
        np.savetxt(folder / f"{name}.csv", np.column_stack(table), delimiter=",", fmt="%.17g")
    return folder, interpreter, programs, tables


# At lasso's kink a sharp gate multiplies the last places of layer 1 in which two runtimes differ.
@pytest.mark.parametrize(
    ("name", "within"), [("ridge", 1e-12), ("logistic", 1e-12), ("poisson", 1e-12), ("lasso", 1e-9)]
)
def test_one_file_runs_every_algorithm_without_emulon(exported, name, within):
    folder, interpreter, programs, tables = exported
    run = interpreter.run(programs[name], *map(torch.from_numpy, tables[name]), mode="reference")
    command = [sys.executable, str(EXAMPLE), "interpreter.onnx", f"{name}.safetensors", f"{name}.csv"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env={})
    theirs = torch.tensor([float(word) for word in done.stdout.split()], dtype=torch.float64)
    assert run.weights.abs().max() > 0.1
    assert (theirs - run.weights).abs().max() <= within


def test_the_example_is_short_and_imports_no_emulon():
    statements = [node for node in ast.walk(ast.parse(EXAMPLE.read_text())) if isinstance(node, ast.stmt)]
    imported = {
        name for node in statements if isinstance(node, ast.Import) for name in (each.name for each in node.names)
    }
    imported |= {str(node.module) for node in statements if isinstance(node, ast.ImportFrom)}
    assert imported == {"json", "sys", "numpy", "onnxruntime", "safetensors"}
    assert len(statements) - len(imported) - 1 <= 21  # without the docstring


def test_the_files_weights_have_the_interpreters_hash(exported):
    folder, interpreter, *_ = exported
    model = onnx.load(folder / "interpreter.onnx")
    facts = {each.key: each.value for each in model.metadata_props}
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    digest = hashlib.sha256(facts["capacity"].encode())
    for name, _ in interpreter.named_buffers():
        digest.update(name.encode() + weights[name].tobytes())
    assert digest.hexdigest() == facts["sha256"] == interpreter.sha256
