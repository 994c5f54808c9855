"""Networks as files: the same bits, refused when altered, proved again; from the command line, too."""

import numpy as np
import pytest
import torch

from emulon.cli import main
from emulon.interpreter import BadFile, load_program
from emulon.interpreter.files import read_sealed, write_sealed
from emulon.networks import load_network, save_network


@pytest.fixture(scope="module")
def saved(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    for name in ("relu", "gelu"):
        save_network(cases[name].program, folder / f"{name}.safetensors")
    return folder


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_a_network_comes_back_as_it_was(name, saved, cases, tmp_path):
    case, again = cases[name], load_network(saved / f"{name}.safetensors")
    assert torch.equal(again(case.x).outputs, case.program(case.x).outputs)
    assert again.certificate == case.program.certificate
    save_network(again, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (saved / f"{name}.safetensors").read_bytes()


def test_an_altered_file_is_refused(saved, tmp_path):
    content = bytearray((saved / "relu.safetensors").read_bytes())
    content[-3] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(BadFile, match="altered"):
        load_network(tmp_path / "bad.safetensors")
    with pytest.raises(BadFile, match="holds a network, not a program"):
        load_program(saved / "relu.safetensors")


def lie(facts, tensors, what):
    gelu = facts["phases"][1]
    if what == "interpolation":
        gelu["plan"]["softmax"]["interpolation"] *= 1e-3
    elif what == "function":
        gelu["plan"]["softmax"]["f"] = "tanh(t)"
    elif what == "range":
        tensors["1.inputs.hi"] *= 100
    elif what == "source":
        facts["source"] = "hearsay"
    elif what == "register":
        facts["phases"][0]["reads"] = [4]
    else:
        del facts["phases"][1]["f"]


@pytest.mark.parametrize("what", ["interpolation", "function", "range", "source", "register", "missing"])
def test_a_file_with_its_checksum_made_anew_is_not_believed(what, saved, tmp_path):
    tensors, facts = read_sealed(saved / "gelu.safetensors", "network")
    lie(facts, tensors, what)
    write_sealed(tmp_path / "lie.safetensors", "network", tensors, facts)
    with pytest.raises(BadFile, match="compile it again"):
        load_network(tmp_path / "lie.safetensors")


MODEL = """
import torch
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
"""


def test_the_command_writes_both_files_and_show_reads_them(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODEL)
    np.savetxt(tmp_path / "x.csv", np.random.default_rng(0).normal(size=(20, 2)), delimiter=",", header="a,b")
    model = f"{tmp_path}/mine.py:network"
    assert main(["compile-network", model, "--data", f"{tmp_path}/x.csv", "--out", f"{tmp_path}/files"]) == 0
    assert "3 phases; interpreter sha256" in capsys.readouterr().out
    assert main(["show", f"{tmp_path}/files/network.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "0 0 linear" in shown and "2 keys of tanh(t)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --data FILE to see ranges on, or --domain BOUND"),
        (["--data", "x.csv", "--domain", "1"], "not both"),
        (["--data", "nowhere.npy"], "cannot be read as numbers"),
    ],
)
def test_bad_requests_are_one_line(words, message, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(MODEL)
    assert main(["compile-network", f"{tmp_path}/mine.py:network", "--out", str(tmp_path), *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
