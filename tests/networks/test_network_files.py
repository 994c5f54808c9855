"""Networks as files: the same bits, refused when altered, proved again; from the command line, too."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from emulon.cli import main
from emulon.commands.rows import read_rows
from emulon.interpreter import BadFile, load_program
from emulon.interpreter.files import read_sealed, write_sealed
from emulon.loading import load_object
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


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """mine.py, x.csv, and the folder that compile-network made of them."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "mine.py").write_text(MODEL)
    np.savetxt(folder / "x.csv", np.random.default_rng(0).normal(size=(20, 2)), delimiter=",", header="a,b")
    model = f"{folder}/mine.py:network"
    assert main(["compile-network", model, "--data", f"{folder}/x.csv", "--out", f"{folder}/files"]) == 0
    return folder


def test_show_reads_what_compile_network_wrote(files, capsys):
    assert main(["show", f"{files}/files/network.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "0 0 linear" in shown and "2 keys of tanh(t)" in shown


def wanted(files):
    x = np.loadtxt(files / "x.csv", delimiter=",", skiprows=1)
    with torch.no_grad():
        return load_object(f"{files}/mine.py:network").double()(torch.from_numpy(x))


def test_exec_network_writes_outputs_and_what_is_promised_of_them(files, tmp_path, capsys):
    for name in ("y.csv", "y.safetensors"):
        assert main(["exec-network", f"{files}/files", f"{files}/x.csv", "--out", f"{tmp_path}/{name}"]) == 0
    told = json.loads((tmp_path / "y.json").read_text())
    assert 0 < told["audit"] <= told["certificate"] < 1e-9 and len(set(told["interpreter sha256"])) == 1
    assert f"error ≤ {told['audit']:.2e} for this run only" in capsys.readouterr().out
    outputs = read_rows(tmp_path / "y.safetensors")
    assert (outputs - wanted(files)).abs().max() <= told["audit"] + 1e-15
    # A .csv has the same numbers, to the bit, with the number of the row before them.
    assert torch.equal(read_rows(tmp_path / "y.csv")[:, 1:], outputs)


def test_outputs_alone_stand_on_stdout(files, tmp_path, capsys):
    save_file({"x": torch.zeros(2, 2), "y": torch.zeros(2)}, tmp_path / "x.safetensors")
    assert main(["exec-network", f"{files}/files", f"{tmp_path}/x.safetensors", "--no-audit"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("row,output 0\n1,") and said.out.count("\n") == 3 and "this run only" not in said.err


@pytest.mark.parametrize(
    ("inputs", "words", "message"),
    [
        ("nowhere.csv", [], "cannot be read as numbers"),
        ("mine.py", [], "cannot be read as numbers"),
        ("far.csv", [], "outside of what Sequential was compiled for"),
        ("wide.csv", [], "reads (…, 2)"),
        ("several.safetensors", [], "holds a, b; give one tensor, or call it x"),
        ("x.csv", ["--out", "y.txt"], "neither .csv nor .safetensors"),
    ],
)
def test_bad_inputs_are_one_line(inputs, words, message, files, capsys):
    np.savetxt(files / "far.csv", [[1e3, 0.0]], delimiter=",", header="a,b")
    np.savetxt(files / "wide.csv", np.zeros((3, 3)), delimiter=",", header="a,b,c")
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, files / "several.safetensors")
    assert main(["exec-network", f"{files}/files", f"{files}/{inputs}", *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --data FILE to see ranges on, or --domain BOUND"),
        (["--data", "x.csv", "--domain", "1"], "not both"),
        (["--data", "nowhere.npy"], "cannot be read as numbers"),
    ],
)
def test_bad_requests_are_one_line(words, message, files, tmp_path, capsys):
    assert main(["compile-network", f"{files}/mine.py:network", "--out", str(tmp_path), *words]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
