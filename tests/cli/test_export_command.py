"""`emulon export` writes what other runtimes read, and says in a line what it cannot."""

import re
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from emulon import cli

ROOT = Path(__file__).parents[2]
PROGRAM = str(ROOT / "playground" / "programs" / "log_cosh.safetensors")
EXAMPLE = ROOT / "examples" / "run_onnx.py"


def test_programs_share_one_interpreter_and_leave_what_they_were_read_from(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", PROGRAM, "--out", "files"]) == 0
    assert "interpreter sha256 " in capsys.readouterr().out
    session = onnxruntime.InferenceSession("files/interpreter.onnx")
    assert [each.name for each in session.get_inputs()] == ["tokens", "w_k", "w_q", "w_v", "queries"]
    assert (tmp_path / "files" / "log_cosh_prompt.safetensors").is_file()


def test_an_algorithm_comes_with_its_rows_and_runs_without_emulon(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.csv").write_text("a,b\n" + "\n".join(f"{k},{(-1) ** k + 0.5 * k}" for k in range(12)))
    words = ["--data", "mine.csv", "--target", "b", "--no-intercept", "--steps", "5"]
    assert cli.main(["export", "log_cosh", *words, "--out", "files"]) == 0
    files = [f"files/{name}" for name in ("interpreter.onnx", "log_cosh.safetensors", "log_cosh.csv")]
    capsys.readouterr()
    done = subprocess.run([sys.executable, EXAMPLE, *files], capture_output=True, text=True, check=True, env={})
    assert cli.main(["compile", "log_cosh", *words, "--out", "files"]) == 0
    assert cli.main(["exec", "files/interpreter.safetensors", "files/program.safetensors", *words[:5]]) == 0
    weight = float(re.search(r"^([+-]\S+) +\S+ +a$", capsys.readouterr().out, flags=re.MULTILINE)[1])
    assert float(done.stdout) == pytest.approx(weight, abs=1e-12) and abs(weight) > 0.1


@pytest.mark.parametrize(
    ("words", "reason"), [(["nothing.safetensors"], "there is no file nothing"), ([], "is missing")]
)
def test_what_cannot_be_exported_is_refused(capsys, tmp_path, monkeypatch, words, reason):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["export", *words, "--out", "files"]) == 2
    assert reason in capsys.readouterr().err


def test_a_missing_onnx_is_named_with_its_extra(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert cli.main(["export", PROGRAM, "--out", str(tmp_path / "files")]) == 2
    assert "pip install 'emulon[onnx]'" in capsys.readouterr().err
    assert not (tmp_path / "files").exists()
