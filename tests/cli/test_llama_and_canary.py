"""`emulon llama` and `emulon canary`: prompts, runs by text, known answers."""

import json

import numpy as np
import pytest

from emulon.canary import canary
from emulon.canary.check import answers, names_for
from emulon.canary.engine import Engine
from emulon.canary.engines import engines_named
from emulon.cli import main
from emulon.language.prompt import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    assert main(["llama", "write", str(path), "--quiet"]) == 0
    return path


def test_a_prompt_alone_is_printed(capsys):
    assert main(["llama", "prompt", "ridge", "--rows", "3", "--features", "2", "--steps", "4"]) == 0
    found = read(capsys.readouterr().out)
    assert (len(found.rows), len(found.start), found.until) == (3, 2, 4)


def test_a_run_names_its_bound_and_the_model_is_unchanged(folder, tmp_path, capsys):
    words = ["ridge", "--model", str(folder), "--rows", "4", "--features", "2", "--steps", "2", "--mode", "drafted"]
    assert main(["llama", "run", *words, "--out", str(tmp_path), "--json", "-"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["sha256"][0] == record["sha256"][1]
    assert record["runs"][0]["bound of this run"] < 2e-7
    assert main(["check", str(tmp_path / "ridge.txt")]) == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "rigde"], "there is no method 'rigde'; did you mean ridge?"),
        (["prompt", "ridge", "--data", "diabetes", "--rows", "61"], "61 rows"),
        (["prompt", "logistic", "--data", "wine"], "a prompt holds two"),
        (["run", "ridge", "--model", "nowhere"], "nowhere"),
        (["prompt", "linear", "--penalty", "0.1"], "linear does not take --penalty"),
    ],
)
def test_what_the_model_cannot_hold_is_refused_in_one_line(words, reason, capsys):
    assert main(["llama", *words]) == 2
    complaint = capsys.readouterr().err.splitlines()[-1]
    assert complaint.startswith("emulon llama: ") and reason in complaint


def test_logits_of_an_engine_are_checked_from_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("emulon.cli.stock.names_for", lambda *_: names_for("float32")[-1:])
    [name] = names_for("float32")[-1:]
    one, exact = canary(name), answers(name, "float32", 0)
    logits = np.zeros((len(exact), 260))
    for row, each in zip(logits, exact, strict=True):
        for place, value in each.items():
            row[place] = float(value.exact.mid())
    np.save(tmp_path / f"{name}.npy", logits)
    assert main(["canary", "check", "--logits", str(tmp_path)]) == 0
    assert "no fault" in capsys.readouterr().out
    logits[:, one.registers["mean"]] *= 1.001
    np.save(tmp_path / f"{name}.npy", logits)
    assert main(["canary", "check", "--logits", str(tmp_path)]) == 1
    assert "first wrong operation: layer 1, mean of 48 values" in capsys.readouterr().out
    (tmp_path / f"{name}.npy").write_bytes(b"no array")
    assert main(["canary", "check", "--logits", str(tmp_path)]) == 2


def test_canaries_are_written_as_folders(tmp_path, capsys):
    assert main(["canary", "write", str(tmp_path)]) == 0
    for name in names_for("float32"):
        assert {path.name for path in (tmp_path / name).iterdir()} >= {
            "config.json",
            "model.safetensors",
            "prompts.txt",
        }
    assert main(["canary", "check", "--engine", "nothing"]) == 2
    error = capsys.readouterr().err
    assert "there is no engine 'nothing'; choose from ctranslate2, cuda, llama.cpp" in error and len(error) < 200
    words = ["canary", "write", str(tmp_path), "--arch", "qwen3", "--dtype", "bfloat16"]
    assert main(words) == 0
    config = json.loads((tmp_path / "digital-qwen3" / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["Qwen3ForCausalLM"], "bfloat16")
    assert main([*words, "--gguf"]) == 2
    assert "GGUF files are written of llama, gpt2 and gpt_neox, not of qwen3" in capsys.readouterr().err


def test_an_engine_that_cannot_run_says_why_and_the_others_are_checked(tmp_path, capsys, monkeypatch):
    def broken(folder):
        raise AttributeError("no such size\nand more")

    right, broken = engines_named("transformers float32 eager mistral")[0], Engine("b", "torch", "float32", broken)
    monkeypatch.setattr("emulon.cli.stock.engines_named", lambda start: [broken, right])
    assert main(["canary", "check", "--engine", "any", "--json", str(tmp_path / "found.json")]) == 1
    said = capsys.readouterr()
    assert said.err == "note: b did not run: AttributeError: no such size\n" and "no fault" in said.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert [each["engine"] for each in found] == [right.name, "b"] and found[1]["failed"].endswith("no such size")


def test_a_package_alone_stands_for_its_plain_configurations():
    found = engines_named("transformers")
    assert len(found) == 8 and all(engine.plain for engine in found)
    assert {engine.arithmetic for engine in found} == {"float32", "bfloat16", "float16"}
    assert [engine.offset for engine in engines_named("transformers float32 eager at 4")] == [4096]
