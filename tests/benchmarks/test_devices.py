"""Programs are carried to machines that can prove nothing: what is run there is what was proved elsewhere."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import devices
from emulon.interpreter import load_program
from reproduce.arguments import run_script


def command(*words: str) -> int:
    return run_script("benchmarks.devices", devices.main, words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "CASES", {"ridge": replace(devices.CASES["ridge"], rows=(3000,))})
        assert devices.main(["prepare", str(path)]) == 0
    return path


def test_a_program_is_prepared_and_measured(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "CASES", {"ridge": replace(devices.CASES["ridge"], rows=(2000, 3000))})
    monkeypatch.setattr(devices, "REPEATS", 1)
    assert devices.main(["measure", str(folder), "--out", str(tmp_path / "x.json"), "--device", "cpu"]) == 0
    said = json.loads((tmp_path / "x.json").read_text())
    assert [line["rows"] for line in said["lines"]] == [2000, 3000]
    assert all(line["one_step"] > 0 and line["off"] < 1e-9 and line["runs"] == 1 for line in said["lines"])
    assert said["proved elsewhere"] == json.loads((folder / devices.MANIFEST).read_text())


def test_another_file_than_the_proved_one_is_refused(folder, tmp_path, capsys):
    manifest = tmp_path / devices.MANIFEST
    manifest.write_text(json.dumps({"ridge": "0" * 64}))
    (tmp_path / "ridge.safetensors").write_bytes((folder / "ridge.safetensors").read_bytes())
    assert command("measure", str(tmp_path), "--out", str(tmp_path / "x.json"), "--device", "cpu") == 2
    assert "is not the file that was proved" in capsys.readouterr().err
    manifest.unlink()
    assert command("measure", str(tmp_path), "--out", str(tmp_path / "x.json"), "--device", "cpu") == 2
    assert "prepare FOLDER" in capsys.readouterr().err
    assert command("measure", str(tmp_path), "--devise", "cpu") == 2
    assert "did you mean --device?" in capsys.readouterr().err


def test_a_program_for_other_rows_promises_what_one_compiled_for_them_does(folder):
    few = load_program(folder / "ridge.safetensors")
    same = devices.for_rows(devices.for_rows(few, 2000), devices.FEW)
    assert same.certificate == few.certificate
    case = devices.CASES["ridge"]
    run = devices.for_rows(few, 2000)(*case.data(2000))
    error = (run.weights - case.algorithm.run(*case.data(2000))).abs().max().item()
    assert error <= run.audit.bound <= run.certificate.bound and run.certificate.proved
