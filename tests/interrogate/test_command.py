"""The commands print tables, and refuse bad input in one line with exit code 2."""

import json

import pytest

from emulon.interrogate.command import identify_main, probe_main, read_task
from emulon.interrogate.task import LinearTask

MODULE = """
import torch
from emulon.algorithms import RidgeRegression

def ridge(xs, ys, x_query):
    return RidgeRegression(0.7).predict(xs, ys, x_query)

def nothing(xs, ys, x_query):
    return torch.ones(len(xs))

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
    assert identify_main([*args, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "ridge(ridge=0.7)" in printed and "previous target" in printed and "95% interval" in printed
    numbers = json.loads(out.read_text())
    assert numbers["algorithm"] == "ridge" and len(numbers["ranking"]) >= 12
    assert numbers["ranking"][0]["parameters"]["ridge"] == pytest.approx(0.7)


def test_identify_says_none_of_these(module, capsys):
    assert identify_main([f"{module}:nothing", "--datasets", "16", "--points", "6"]) == 0
    assert "none of these" in capsys.readouterr().out


def test_identify_and_probe_take_a_function_that_makes_a_machine(module, capsys):
    assert identify_main([f"{module}:machine", "--task", "linear:features=3", "--datasets", "16"]) == 0
    assert "sgd(step_size=0.05)" in capsys.readouterr().out
    args = [f"{module}:machine", "--task", "linear:features=3", "--points", "5", "--examples", "2"]
    assert probe_main([*args, "--step-size", "0.05", "--datasets", "256"]) == 0
    printed = capsys.readouterr().out
    assert "R² (control) of w after 2 examples" in printed and "1.00 (" in printed


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["nonsense"], "neither a run folder"),
        (["{folder}"], "a folder that nothing here can read"),
        (["{module}"], "a file that nothing here can read"),
        (["no.such.module:f"], "cannot be loaded"),
        (["{module}:absent"], "cannot be loaded"),
        (["{module}:two"], "does not predict"),
        (["{module}:fails", "--datasets", "8"], "KeyError"),
        (["{module}:ridge", "--task", "sine"], "unknown task"),
        (["{module}:ridge", "--task", "linear:colour=3"], "cannot read"),
        (["{module}:ridge", "--task", "linear:noise=-1"], "noise"),
        (["{module}:ridge", "--datasets", "1"], "at least 4"),
        (["{module}:ridge", "--points", "1"], "no number of examples"),
        (["{module}:ridge", "--tsak", "linear"], "cannot read the options"),
        ([], "cannot read the options"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, reason, module, tmp_path, capsys):
    args = [arg.replace("{module}", module).replace("{folder}", str(tmp_path)) for arg in args]
    assert identify_main(args) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("emulon identify: ") and reason in captured.err
    assert captured.err.count("\n") == 1 and not captured.out


def test_probe_refuses_what_it_cannot_look_into(module, capsys):
    assert probe_main([f"{module}:ridge"]) == 2
    assert "looked into" in capsys.readouterr().err
    assert probe_main([f"{module}:machine", "--examples", "9"]) == 2
    assert "examples must lie in" in capsys.readouterr().err


def test_help_is_printed(capsys):
    assert identify_main(["--help"]) == 0
    assert "--task" in capsys.readouterr().out


def test_tasks_are_read():
    assert read_task("linear") == LinearTask()
    assert read_task("linear:features=3,noise=0.5,prior=2") == LinearTask(3, 0.5, 2.0)
