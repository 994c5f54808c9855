"""`emulon train` of a grid: a table and a file, one line for what makes no sense."""

import json

import pytest

from emulon import cli
from emulon.cli import options_of
from emulon.training.grid import read_words, runs_of

TINY = "--features 2 --points 5 --width 8 --heads 1 --batch 4 --evaluation-batch 16 --steps 3 --device cpu --threads 1"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_sweep_ends_with_a_table_and_a_file(tmp_path, capsys):
    words = ["train", "standard", *TINY.split(), "--vary", "seed=0,1", "--vary", "layers=1,2"]
    assert cli.main([*words, "--out", "out"]) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert [row[:3] for row in rows] == [["0", "1", "3"], ["0", "2", "3"], ["1", "1", "3"], ["1", "2", "3"]]
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert record["varies"] == {"seed": [0, 1], "layers": [1, 2]} and record["machine"] and record["commit"]
    curve = json.loads((tmp_path / "out" / "seed=1,layers=2" / "curve.json").read_text())["curve"]
    last = record["runs"][3]
    assert last["values"] == {"seed": 1, "layers": 2} and rows[3][4] == f"{last['after_d']:.4g}"
    assert (last["after_d"], last["after_2d"]) == (curve[2] / 2, curve[4] / 2)


def test_a_run_that_had_to_stop_is_marked_and_the_command_ends_with_code_1(tmp_path, capsys):
    words = ["train", "standard", *TINY.split(), "--vary", "lr=1e-3,1e30"]
    assert cli.main(words) == 1
    out, err = capsys.readouterr()
    assert out.count("not finished") == 1 and err.startswith("emulon train: lr=1e+30 is not finished: ")
    assert err.count("\n") == 1
    runs = json.loads((tmp_path / "runs" / "sweep" / "sweep.json").read_text())["runs"]
    assert ["failed" in run for run in runs] == [False, True]


def test_a_recipe_varies_with_all_it_sets(tmp_path):
    words = ["looped", "--preset", "small", "--lr", "0.5", "--vary", "recipe=paper,fast"]
    options = options_of("train", words)
    paper, fast = runs_of(options.changes, read_words(options.vary), tmp_path)
    assert (paper.config.optimiser.optimiser, fast.config.optimiser.optimiser) == ("adam", "muon")
    assert paper.config.optimiser.lr == fast.config.optimiser.lr == 0.5
    assert fast.config.task.features == 5 and fast.config.model.model == "looped"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--vary", "seed=0"], "say which model to train"),
        (["standard", "--jobs", "2"], "--jobs is for grids; say with --vary NAME=VALUES what varies"),
        (["standard", "--vary", "seed="], "no value of seed is given to vary"),
        (["standard", "--vary", "seed=0", "--vary", "seed=1"], "seed varies twice"),
        (["standard", "--vary", "seed=0,1", "--seed", "3"], "seed is both fixed (3) and varied"),
        (["standard", "--vary", "seed=1,1"], "a value of seed is given twice: 1, 1"),
        (["standard", "--vary", "heads=3"], "heads=3: 3 heads do not divide a width of 256"),
        (["standard", "--vary", "loops=2"], "loops=2: the model standard has no 'loops'"),
        (["standard", "--vary", "seed=0", "--slurm", "partition=a"], "there is no Slurm here"),
        (["standard", "--vary", "seed=0", "--jobs", "2", "--slurm", "a=b"], "--jobs is for processes of this machine"),
        (["standard", "--vary", "seed=0", "--out", "file/x"], "could not be written: Not a directory"),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_one_line(tmp_path, capsys, monkeypatch, words, reason):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PATH", "")
    assert cli.main(["train", *words]) == 2
    out, err = capsys.readouterr()
    assert reason in err and err.startswith("emulon train: ") and err.count("\n") == 1 and not out


def test_a_sweep_over_texts_compares_cross_entropies(corpora, tmp_path, capsys):
    task = f"classification:data={corpora['classification']},longest=8"
    words = ["train", "standard", "--task", task, "--layers", "1", *TINY.split()[4:], "--vary", "lr=0.001,0.01"]
    assert cli.main([*words, "--out", "out"]) == 0
    assert "cross entropy" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert all(0.1 < run["cross_entropy"] < 2 and "last" not in run for run in record["runs"])
