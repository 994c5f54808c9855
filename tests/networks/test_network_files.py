"""Networks as files: the same bits, refused when altered, proved again; from the command line, too."""

import json
import random

import numpy as np
import pytest
import torch
from damage import altered, cases, damage_bytes
from small_networks import random as random_numbers
from small_networks import small_encoder
from torch import nn

from emulon import compile_network
from emulon.cli import main
from emulon.cli.compile import read_rows
from emulon.core.errors import EmulonError
from emulon.identification.loading import load_object
from emulon.interpreter import BadFile, load_program
from emulon.interpreter.files import read_sealed, write_sealed
from emulon.networks import compile_iteration, load_network, save_network
from emulon.networks.modules import Heads


@pytest.fixture(scope="module")
def saved(cases, tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    programs = {name: cases[name].program for name in ("relu", "gelu")}
    programs["encoder"] = compile_network(small_encoder(), data=random_numbers(6, 3, 4))
    heads = Heads(*(0.5 * random_numbers(3, 2, 3, 4)), causal=True, scale=3.0)
    programs["heads"] = compile_network(heads, data=random_numbers(4, 3, 4))
    programs["domain"] = compile_network(nn.Sequential(heads, nn.SiLU()), shape=(3, 4), domain=1.0)
    for name, program in programs.items():
        save_network(program, folder / f"{name}.safetensors")
    return folder, programs


@pytest.mark.parametrize("name", ["relu", "gelu", "encoder", "domain"])
def test_a_network_comes_back_as_it_was(name, saved, tmp_path):
    folder, programs = saved
    program, again = programs[name], load_network(folder / f"{name}.safetensors")
    x = random_numbers(6, *program.shape)[:2].clamp(*program.box.ends)
    assert torch.equal(again(x).outputs, program(x).outputs) and again(x).audit == program(x).audit
    assert again.certificate == program.certificate
    save_network(again, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (folder / f"{name}.safetensors").read_bytes()


def test_steps_come_back_as_they_were(tmp_path):
    program = compile_iteration(nn.Linear(2, 2), torch.ones(1, 2), 3)
    save_network(program, tmp_path / "steps.safetensors")
    again = load_network(tmp_path / "steps.safetensors")
    assert again.steps == 3 and again.certificate == program.certificate


def test_an_altered_file_and_an_older_one_are_refused_in_one_line(saved, tmp_path):
    path, whole = tmp_path / "bad.safetensors", (saved[0] / "relu.safetensors").read_bytes()
    older = whole.replace(b'\\"format\\": \\"4', b'\\"format\\": \\"3')
    for content, message in ((whole[:-3] + b"abc", "altered"), (older, "has format 3, this emulon reads 4")):
        path.write_bytes(content)
        with pytest.raises(BadFile, match=message) as refusal:
            load_network(path)
        assert "\n" not in str(refusal.value)
    with pytest.raises(BadFile, match="holds a network, not a program"):
        load_program(saved[0] / "relu.safetensors")


SOFTMAX, OUTPUT = ("softmaxes", 0), ("seen", 1, "output")


@pytest.mark.parametrize(
    ("name", "path", "value", "message"),
    [
        ("gelu", (*SOFTMAX, "interpolation"), 1e-15, "is not as near to"),
        ("gelu", (*SOFTMAX, "deviation"), 1e-15, "is not as near to"),
        ("gelu", (*SOFTMAX, "interpolation"), float("inf"), "has no bound"),
        ("gelu", (*SOFTMAX, "f"), "tanh(t)", "for another function"),
        ("gelu", (*SOFTMAX, "grid", "bands"), [{"lo": -1.0, "hi": 1.0}], "has no bound"),
        ("gelu", ("layers", 1, "kind"), "Gate", "lacks the field|has an unknown field"),
        ("gelu", ("source",), "domain", "more ranges or softmaxes than layers"),
        ("gelu", ("source",), "hearsay", "not one of domain, data"),
        ("gelu", ("tolerance",), "small", "tolerance of the network is 'small'"),
        ("gelu", ("layers", 0, "fields", "reads"), [4], "not there yet"),
        ("gelu", ("layers", 0, "fields", "bias"), "network.layers.2.fields.bias", "not the name of an array"),
        ("gelu", OUTPUT, {"lo": "network.box.lo", "hi": "network.box.hi"}, "has 5 ranges"),
        ("gelu", OUTPUT, {"lo": "network.seen.1.output.hi", "hi": "network.seen.1.output.lo"}, "or empty"),
        ("gelu", ("shape",), [10**9, 5], "is not possible"),
        ("gelu", ("steps",), 2, r"2 steps from \(5,\) to \(2,\) are not possible"),
        ("domain", ("steps",), 10**9, "are not possible"),
        ("gelu", ("out_shape",), [3], "output is of"),
        ("gelu", ("layers", 0, "fields", "name"), "1 1 gelu", "two layers have one name"),
        ("gelu", ("box",), {"lo": "network.box.hi", "hi": "network.box.lo"}, "the box is empty"),
        ("relu", ("layers", 1, "fields", "low"), 1.5, "is a gate of 1.5"),
        ("domain", ("layers", 1, "fields", "low"), 0.5, "is a gate of 0.5"),
        ("heads", ("layers", 0, "fields", "scale"), -1.0, "divided by the root of -1"),
        ("encoder", ("layers", 1, "fields", "eps"), -1.0, "an epsilon of -1"),
        ("heads", ("seen", 0, "attention", "score"), -1.0, "has no ranges of attention"),
    ],
)
def test_a_file_with_its_checksum_made_anew_is_not_believed(name, path, value, message, saved, tmp_path):
    tensors, facts = read_sealed(saved[0] / f"{name}.safetensors", "network")
    *places, last = path
    table = facts
    for place in places:
        table = table[place]
    table[last] = value
    write_sealed(tmp_path / "lie.safetensors", "network", tensors, facts)
    with pytest.raises(BadFile, match=f"{message}.*compile it again"):
        load_network(tmp_path / "lie.safetensors")


@pytest.mark.parametrize("part", ["numerators", "squares"])
def test_weights_must_be_the_rounded_map_that_the_file_says(part, saved, tmp_path):
    tensors, facts = read_sealed(saved[0] / "encoder.safetensors", "network")
    name = f"network.layers.0.fields.unrounded.{part}"
    write_sealed(tmp_path / "lie.safetensors", "network", tensors | {name: 1.5 * tensors[name]}, facts)
    with pytest.raises(BadFile, match="is not its exact map, rounded"):
        load_network(tmp_path / "lie.safetensors")


def tables_in(facts):
    """One of every kind of table in a file."""
    if isinstance(facts, dict):
        found = {tuple(facts): facts}
        for part in facts.values():
            found = tables_in(part) | found
        return found
    return {key: one for part in facts for key, one in tables_in(part).items()} if isinstance(facts, list) else {}


def test_no_field_may_be_missing(saved, tmp_path):
    tensors, facts = read_sealed(saved[0] / "encoder.safetensors", "network")
    for table in tables_in(facts).values():
        for field in list(table):
            kept = table.pop(field)
            write_sealed(tmp_path / "less.safetensors", "network", tensors, facts)
            with pytest.raises(BadFile, match=f"lacks the field '{field}'"):
                load_network(tmp_path / "less.safetensors")
            table[field] = kept


def alter_tensors(draw, tensors):
    name, other = draw.sample(sorted(tensors), 2)
    part = tensors[name].clone()
    how = draw.choice(("scale", "nan", "cut", "drop", "swap", "float", "flip"))
    if how == "drop":
        del tensors[name]
    elif how == "swap":
        tensors[name], tensors[other] = tensors[other], part
    else:
        part = {"cut": part[:-1], "float": part.float(), "scale": part * 10 ** draw.uniform(-3, 3)}.get(how, part)
        if how in ("nan", "flip"):
            place = draw.randrange(part.numel())
            part.flatten()[place] = float("nan") if how == "nan" else -part.flatten()[place]
        tensors[name] = part


def test_an_altered_network_is_refused_or_keeps_what_it_promises(saved, tmp_path):
    """Of whatever network the file says: its layers in plain float64 are the judge."""
    path, refused, kept = tmp_path / "altered.safetensors", 0, 0
    for seed in cases(100):
        draw = random.Random(seed)
        name = draw.choice(("relu", "encoder", "heads", "domain"))
        path.write_bytes((saved[0] / f"{name}.safetensors").read_bytes())
        tensors, facts = read_sealed(path, "network")
        if draw.random() < 0.2:
            damage_bytes(draw, path)
        elif draw.random() < 0.4:
            alter_tensors(draw, tensors)
            write_sealed(path, "network", tensors, facts)
        else:
            write_sealed(path, "network", tensors, altered(draw, facts))
        try:
            program = load_network(path)
            part = 0.5 + 0.3 * (random_numbers(8, *program.shape) / 4).clamp(-1, 1)
            x = program.box.lo + part * (program.box.hi - program.box.lo)
            run = program(x)
        except EmulonError as error:
            assert "\n" not in str(error), seed
            refused += 1
            continue
        error, size = (run.last - program.exact(x)).abs().max(), 1e-13 * (1 + run.last.abs().max())
        assert error <= run.certificate.bound + size and error <= run.audit.bound + size, f"{seed}: {name}"
        kept += 1
    assert min(refused, kept) > 0


MODEL = """
import torch
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """mine.py, x.csv, and the folder that emulon compile made of them; inputs that do not fit."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "mine.py").write_text(MODEL)
    np.savetxt(folder / "x.csv", np.random.default_rng(0).normal(size=(20, 2)), delimiter=",", header="a,b")
    model = f"{folder}/mine.py:network"
    assert main(["compile", model, "--data", f"{folder}/x.csv", "--out", f"{folder}/files"]) == 0
    np.savetxt(folder / "far.csv", [[1e3, 0.0]], delimiter=",", header="a,b")
    np.savetxt(folder / "wide.csv", np.zeros((3, 3)), delimiter=",", header="a,b,c")
    np.save(folder / "x.npy", np.zeros((2, 2)))
    return folder


def test_exec_writes_outputs_and_what_is_promised_of_them(files, tmp_path, capsys):
    assert main(["show", f"{files}/files/network.safetensors"]) == 0
    shown = capsys.readouterr().out
    assert "0 0 linear" in shown and "2 keys of tanh(t)" in shown
    for name in ("y.csv", "y.npy"):
        assert main(["exec", f"{files}/files", "--data", f"{files}/x.csv", "--out", f"{tmp_path}/{name}"]) == 0
    told = json.loads((tmp_path / "y.json").read_text())
    assert 0 < told["audit"] <= told["certificate"] < 1e-9 and len(set(told["interpreter sha256"])) == 1
    assert f"error ≤ {told['audit']:.2e} for this run only" in capsys.readouterr().out
    x, outputs = np.loadtxt(files / "x.csv", delimiter=",", skiprows=1), read_rows(tmp_path / "y.npy")
    with torch.no_grad():
        wanted = load_object(f"{files}/mine.py:network").double()(torch.from_numpy(x))
    assert (outputs - wanted).abs().max() <= told["audit"] + 1e-15
    # A .csv has the same numbers, to the bit, with the number of the row before them.
    assert torch.equal(read_rows(tmp_path / "y.csv")[:, 1:], outputs)
    assert main(["exec", f"{files}/files", "--data", f"{files}/x.npy", "--no-audit"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("row,output 0\n1,") and said.out.count("\n") == 3 and "this run only" not in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["exec", "files", "--data", "nowhere.csv"], "cannot be read as numbers"),
        (["exec", "files", "--data", "mine.py"], "cannot be read as numbers"),
        (["exec", "files", "--data", "far.csv"], "outside of what Sequential was compiled for"),
        (["exec", "files", "--data", "wide.csv"], "reads (…, 2)"),
        (["exec", "files", "--data", "x.csv", "--out", "y.txt"], "neither .csv nor .npy"),
        (["compile", "mine.py:network", "--out", "other"], "give --data FILE to see ranges on, or --domain BOUND"),
        (["compile", "mine.py:network", "--out", "other", "--data", "x.csv", "--domain", "1"], "not both"),
        (["compile", "mine.py:network", "--out", "other", "--data", "nowhere.npy"], "cannot be read as numbers"),
    ],
)
def test_bad_requests_are_one_line(words, message, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
