"""The commands print tables, and refuse bad input in one line with exit code 2."""

import json

import pytest

from emulon import cli
from emulon.training import TrainConfig, train

MODULE = """
import torch
from emulon.algorithms import RidgeRegression

def ridge(xs, ys, x_query):
    return RidgeRegression(0.7).predict(xs, ys, x_query)

def nothing(xs, ys, x_query):
    return x_query[:, 0]

def constant(xs, ys, x_query):
    return torch.full((len(xs),), 5)

def machine():
    from emulon.machine.programs import sgd
    return sgd(3, 5, 0.05).compile()

def fails(xs, ys, x_query):
    raise KeyError("oops")

def two(xs, ys):
    return ys
"""


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODULE)
    return str(path)


def test_identify_prints_the_ranking_and_writes_the_numbers(module, tmp_path, capsys):
    out = tmp_path / "out.json"
    args = [f"{module}:ridge", "--task", "linear:features=4,noise=0.2", "--datasets", "32", "--points", "9"]
    assert cli.main(["identify", *args, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ridge(ridge=0.7)" in printed and "previous target" in printed and "95% interval" in printed
    numbers = json.loads(out.read_text())
    assert numbers["algorithm"] == "ridge" and len(numbers["ranking"]) >= 12
    assert numbers["ranking"][0]["parameters"]["ridge"] == pytest.approx(0.7)


def test_identify_says_none_of_these_and_names_a_constant(module, capsys):
    assert cli.main(["identify", f"{module}:nothing", "--datasets", "16", "--points", "6"]) == 0
    assert "none of these" in capsys.readouterr().out
    assert cli.main(["identify", f"{module}:constant", "--datasets", "16", "--points", "6"]) == 0
    assert "constant: the answer is 5, whatever the examples and the query" in capsys.readouterr().out


def test_identify_takes_a_function_that_makes_a_machine(module, capsys):
    assert cli.main(["identify", f"{module}:machine", "--datasets", "16"]) == 0
    printed = capsys.readouterr().out
    assert "sgd(step_size=0.05)" in printed and "linear functions of 3 features" in printed


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["nonsense"], "neither a run folder"),
        (["{folder}"], "a folder that nothing here can read"),
        (["{module}"], "a file that nothing here can read"),
        (["no.such.module:f"], "cannot be loaded"),
        (["{module}:two"], "does not predict"),
        (["{module}:fails", "--datasets", "8"], "KeyError"),
        (["{module}:ridge", "--task", "sine"], "there is no task 'sine'"),
        (["{module}:ridge", "--task", "linear:features=0"], "1 or more"),
        (["{module}:ridge", "--datasets", "8", "--json", "{module}/x.json"], "could not be written: File exists"),
        (["{module}:ridge", "--task", "linear:colour=3"], "cannot read"),
        (["{module}:ridge", "--datasets", "1"], "at least 4"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, reason, module, tmp_path, capsys):
    args = [arg.replace("{module}", module).replace("{folder}", str(tmp_path)) for arg in args]
    assert cli.main(["identify", *args]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("emulon identify: ") and reason in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


def test_a_runs_phases_are_a_table_and_a_picture_over_steps(module, tmp_path, capsys):
    size = {"features": 2, "points": 6, "noise": 0.5, "width": 16, "heads": 2, "layers": 1, "device": "cpu"}
    config = TrainConfig.of(**size, steps=3, checkpoint_every=1, keep_checkpoints=0, log_every=1, quiet=True)
    train(config, tmp_path / "run")
    report, numbers = tmp_path / "page", tmp_path / "out.json"
    args = ["--checkpoints", "--datasets", "16", "--report", str(report), "--json", str(numbers)]
    assert cli.main(["identify", str(tmp_path / "run"), *args]) == 0
    printed = capsys.readouterr().out
    rows = [line.split("│")[1].strip() for line in printed.splitlines() if line.startswith("│")]
    assert rows == ["1", "2", "3"] and "linear functions of 2 features" in printed
    page = (report / "index.html").read_text()
    assert page.count("<svg") == 3 and ">steps<" in page and page.count("<tr><td") == 3
    assert [phase["place"] for phase in json.loads(numbers.read_text())] == [1, 2, 3]
    assert cli.main(["show", str(tmp_path / "run"), "--datasets", "16"]) == 0
    assert "report/index.html" in capsys.readouterr().out
    page = (tmp_path / "run" / "report" / "index.html").read_text()
    assert page.count("<svg") == 3 and page.count("<tr><td") == 3 and ">held-out error<" in page and ">ols<" in page
    assert cli.main(["identify", f"{module}:ridge", "--checkpoints"]) == 2
    assert "the folder of a training run" in capsys.readouterr().err


def test_a_run_is_identified_on_its_own_task(tmp_path, capsys):
    config = TrainConfig.of(features=2, points=6, noise=0.5, width=16, heads=2, layers=1, steps=3, device="cpu")
    train(config, tmp_path / "run")
    report, numbers = tmp_path / "new" / "page", tmp_path / "new" / "out.json"
    args = [str(tmp_path / "run"), "--datasets", "32", "--report", str(report), "--json", str(numbers)]
    assert cli.main(["identify", *args]) == 0
    printed = capsys.readouterr().out
    assert "linear functions of 2 features, noise 0.5" in printed and "σ²/τ² = 0.25" in printed
    tables = printed[printed.index("distance by number of examples") :]
    assert [line.split("│")[1].strip() for line in tables.splitlines() if line.startswith("│")] == 2 * list("12345")
    assert f"report {report / 'index.html'}" in printed and (report / "index.html").stat().st_size > 10_000
    assert json.loads(numbers.read_text())["counts"] == [1, 2, 3, 4, 5]
    (tmp_path / "run" / "config.json").write_text("{}")
    assert cli.main(["identify", str(tmp_path / "run")]) == 2
    assert "version 0" in capsys.readouterr().err
