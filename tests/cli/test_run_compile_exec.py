"""Algorithms on real tables from the command line: tables, files whose bits agree, one clear line for every mistake."""

import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import train_test_split

from emulon import cli
from emulon.algorithms import quantile
from emulon.cli.run import use_threads
from emulon.interpreter import load_program

SOURCE = Path(cli.__file__).parents[2]


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def table(folder):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(30, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.1 * draw.normal(size=30)
    return write(folder / "table.csv", ["a", "b", "c", "y"], np.column_stack([x, y]).tolist())


@pytest.fixture(scope="module")
def ran(folder, table):
    """`emulon run ridge quantile` on the small table: exit code, what it printed, and the report's folder."""
    report = folder / "report"
    words = ["run", "ridge", "quantile", "--data", table, "--target", "y", "--steps", "5", "--out", str(report)]
    words += ["--json", str(folder / "run.json")]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    return code, out.getvalue(), err.getvalue(), report


def elsewhere(*words):
    """In a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "emulon.cli", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def refused(capsys, *words):
    """Exit code 2, nothing but one line on stderr; that line."""
    code = cli.main(words)
    out, err = capsys.readouterr()
    assert code == 2, (out, err)
    assert err.count("\n") == 1 and err.startswith(f"emulon {words[0]}: "), err
    assert "Traceback" not in err
    return err


def test_run_prints_the_table_and_writes_the_report_and_the_numbers(ran):
    code, out, err, report = ran
    [numbers] = json.loads((report.parent / "run.json").read_text())
    assert [each["algorithm"] for each in numbers["results"]] == ["ridge", "quantile_regression"]
    assert numbers["columns"] == dict.fromkeys("abc", "number") and numbers["baseline"] < 0.5
    for each in numbers["results"]:
        assert f"{each['score']:.4f}" in out and each["weights"].keys() == {*"abc", "intercept"}
    assert code == 0 and err == ""
    for word in ("ridge", "quantile", "run ≤", "domain ≤", "solver", "score", "R²", "(the same)"):
        assert word in out
    assert "data: 3 numbers standardised, target standardised, intercept fitted\n" in out
    first, second = re.findall(r"^(?:interpreter sha256|after the runs) +(\w{64})", out, flags=re.MULTILINE)
    assert first == second
    assert {path.name for path in report.iterdir()} == {
        "index.html",
        "playground.html",
        "playground.json",
        "weights.csv",
        "ridge.json",
        "quantile.json",
    }


@pytest.fixture(scope="module")
def files(folder, table):
    """The two files of `emulon compile quantile`."""
    words = ["--data", table, "--target", "y", "--steps", "5", "--quiet", "--out", str(folder / "files")]
    assert cli.main(["compile", "quantile", *words]) == 0
    return [folder / "files" / f"{name}.safetensors" for name in ("interpreter", "program")]


def test_exec_in_another_process_gives_the_bits_of_run(folder, table, ran, files):
    words = ["--data", table, "--target", "y", "--out", str(folder / "weights.csv")]
    done = elsewhere("exec", *map(str, files), *words)
    assert done.returncode == 0, done.stderr
    first, second = re.findall(r"error ≤ (\S+) for (?:this run only|every input)", done.stdout)
    assert float(first) <= float(second)
    with (ran[-1] / "weights.csv").open() as file:
        wanted = [row for row in csv.reader(file) if row[0] != "Ridge"]
    with (folder / "weights.csv").open() as file:
        assert list(csv.reader(file)) == wanted and len(wanted) == 5


def test_a_tolerance_that_cannot_be_kept_is_told_in_the_words_of_refusals(folder, table, capsys):
    words = ["--data", table, "--target", "y", "--steps", "2", "--tolerance", "1e-30"]
    assert cli.main(["compile", "ridge", *words, "--out", str(folder / "tight")]) == 0
    assert re.search(r"note: .* Ridge can promise \S+, not 1\.0e-30; loosen it\n", capsys.readouterr().err)
    assert "can promise" in refused(capsys, "approximate", "t", "-1", "1", "--tolerance", "1e-30")
    assert cli.main(["compile", "ridge", *words[:-2], "--certificate", "--out", str(folder / "loose")]) == 0
    assert not capsys.readouterr().err  # none was asked for
    assert cli.main(["check", str(folder / "loose" / "certificate.json")]) == 0


def test_ridge_on_the_diabetes_data_waits_for_no_package_that_it_has_no_use_of(tmp_path):
    words = ["run", "ridge", "--steps", "3", "--quiet", "--out", str(tmp_path)]
    code = f"import sys; from emulon.cli import main; main({words}); print({{'pandas', 'sklearn'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True
    )
    assert (tmp_path / "index.html").exists() and done.stdout == b"set()\n", done


def test_a_folder_of_compile_is_shown_and_run_without_naming_its_files(table, files, capsys):
    folder = str(files[1].parent)
    assert cli.main(["show", folder]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("key_code", "query_x", "5 of size", "2 keys", "certificate", "48 tokens")), out
    assert cli.main(["show", folder, "--json", "-"]) == 0
    assert "key_code" in [row["slot"] for row in json.loads(capsys.readouterr().out)["prompt"]["gradient"]]
    assert cli.main(["exec", folder, "--data", table, "--target", "y", "--quiet", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"].keys() == {*"abc", "intercept"}
    for words, said in (
        ([folder, "--no-audit"], "--audit is for networks"),
        ([str(files[1])], "name the folder of emulon compile, or the interpreter's file and the program's"),
        ([], "name the folder of emulon compile"),
    ):
        assert said in refused(capsys, "exec", *words, "--data", table)
    assert "holds no program" in refused(capsys, "show", str(files[1].parent.parent))
    assert "--steps is for algorithms" in refused(capsys, "compile", "a.py:b", "--out", "never", "--steps", "3")
    assert "--domain is for networks" in refused(capsys, "compile", "ridge", "--out", "never", "--domain", "3")


def test_exec_refuses_files_that_do_not_fit(tmp_path, table, files, capsys):
    words = ["--data", table, "--target", "y"]
    parts = list(map(str, files))
    assert "data options that the program was compiled with" in refused(capsys, "exec", *parts, "--data", "diabetes")
    assert "check the order" in refused(capsys, "exec", *reversed(parts), *words)
    content = bytearray(files[1].read_bytes())
    content[-3] ^= 1
    (tmp_path / "program.safetensors").write_bytes(content)
    assert "altered" in refused(capsys, "exec", parts[0], str(tmp_path / "program.safetensors"), *words)


def test_algorithms_that_do_not_suit_the_target_are_left_out_and_said(folder, monkeypatch, capsys):
    from emulon.algorithms import LogCoshRegression, PoissonRegression

    few = {"poisson_regression": PoissonRegression, "log_cosh_regression": LogCoshRegression}
    monkeypatch.setattr("emulon.run.runnable", lambda: few)
    path = write(folder / "negative.csv", ["a", "y"], [[i % 7, i % 5 - 2] for i in range(30)])
    words = ["--data", path, "--target", "y", "--steps", "3", "--out", str(folder / "negative")]
    assert cli.main(["run", "--kind", "regression", *words]) == 0
    out = capsys.readouterr().out
    assert "left out poisson_regression: needs non-negative targets" in out
    assert "non-negative" in refused(capsys, "run", "poisson", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "newton_least_squares"], "not gradient descent"),
        (["run", "ridge", "logistic"], "run them separately"),
        (["run", "ridge", "--data", "wine"], "a regression needs numbers"),
        (["run", "ridge", "--data", "wine", "--target", "x"], "has its own target"),
        (["run", "logistic"], "a classifier needs 2 to 20"),
        (["compile", "ridge", "--out", "/proc/nowhere"], "/proc/nowhere could not be written"),
        (["exec", "nothing", "nothing"], "there is no file nothing"),
        (["show", __file__], "not a whole safetensors file"),
        (["approximate", "1/t", "-1", "1"], "not finite"),
        (["approximate", "t", "1", "-1"], "give lo < hi"),
        (["approximate", "t^2", "0", "1"], "t**2, not t^2"),
        (["approximate", "9**9**9*t", "0", "1"], "more than 1000 digits"),
        (["run", "ridge", "--out", "/proc/nowhere"], "/proc/nowhere could not be written"),
    ],
)
def test_mistakes_get_one_clear_line(capsys, words, said):
    assert said in refused(capsys, *words)


def test_a_bad_table_leaves_nothing_behind(tmp_path, capsys):
    path = tmp_path / "bad.csv"
    path.write_text("a,y\n" + "1,2\n2,2\n" * 10)
    words = ["--data", str(path), "--target", "y", "--out", str(tmp_path / "report")]
    assert "nothing to learn" in refused(capsys, "run", "ridge", *words) and not (tmp_path / "report").exists()
    assert "bad.csv could not be written" in refused(capsys, "run", "ridge", "--out", str(path))


def test_settings_reach_the_algorithm_and_are_refused_where_it_has_none(folder, table, capsys):
    words = ["--data", table, "--target", "y", "--steps", "4", "--out", str(folder / "set")]
    assert cli.main(["compile", "ridge", *words, "--penalty", "0.5", "--step-size", "0.01"]) == 0
    program = load_program(folder / "set" / "program.safetensors")
    assert (program.steps, program.descent.l2, program.step_size) == (4, 0.5, 0.01)
    assert cli.main(["compile", "quantile", *words, "--tau", "0.2"]) == 0
    assert load_program(folder / "set" / "program.safetensors").loss == quantile(0.2)
    capsys.readouterr()
    assert "--tau is for quantile_regression; ridge has none" in refused(capsys, "run", "ridge", "--tau", "0.3")
    assert "[0, 1]" in refused(capsys, "compile", "elastic_net", "--l1-ratio", "2", *words)


def weights(path):
    """{(program, feature): (weight, in original units)}."""
    with path.open() as file:
        return {(row[0], row[1]): (float(row[2]), float(row[3])) for row in list(csv.reader(file))[1:]}


@pytest.mark.parametrize("flags", [[], ["--no-standardize"]])
def test_weights_in_original_units_are_scikit_learns_on_the_raw_columns(tmp_path, table, flags, capsys):
    words = ["--data", table, "--target", "y", *flags]
    assert cli.main(["compile", "linear", "--steps", "300", *words, "--out", str(tmp_path)]) == 0
    files = [str(tmp_path / f"{name}.safetensors") for name in ("interpreter", "program")]
    assert cli.main(["exec", *files, *words, "--out", str(tmp_path / "weights.csv")]) == 0
    assert "in original units" in capsys.readouterr().out
    raw = np.genfromtxt(table, delimiter=",", skip_header=1)
    train, _ = train_test_split(np.arange(30), test_size=0.2, random_state=0)
    theirs = LinearRegression().fit(raw[train, :3], raw[train, 3])
    found = [own for _, own in weights(tmp_path / "weights.csv").values()]
    np.testing.assert_allclose(found, [*theirs.coef_, theirs.intercept_], rtol=1e-6)


def test_a_run_leaves_a_model_that_predicts_and_scores_new_tables(tmp_path, capsys):
    draw = np.random.default_rng(2)
    kinds = [("flat", "house")[i % 2] for i in range(40)]
    rows = [[draw.normal(100 + 40 * (kind == "flat"), 20), draw.normal(5, 2), kind] for kind in kinds]
    table = write(tmp_path / "mixed.csv", ["size", "age", "kind"], rows)
    words = ["--data", table, "--target", "kind", "--steps", "30", "--out", str(tmp_path / "page")]
    assert cli.main(["run", "logistic", *words]) == 0
    assert re.search(r"intercept +│ +\S+ │ +\S+", capsys.readouterr().out)
    model = str(tmp_path / "page" / "logistic.json")
    assert cli.main(["predict", model, table, "--proba"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head == ["row", "kind", "kind=flat", "kind=house"]
    assert all(float(row[2]) + float(row[3]) == pytest.approx(1) for row in rows)
    assert all((float(row[3]) > 0.5) == (row[1] == "house") for row in rows)
    assert cli.main(["predict", model, table]) == 0
    out, err = capsys.readouterr()
    said = [line.split(",")[1] for line in out.splitlines()]
    assert said[0] == "kind" and set(said[1:]) == {"flat", "house"}
    right = np.mean([one == kind for one, kind in zip(said[1:], kinds, strict=True)])
    assert f"accuracy {right:.4f} on 40 rows" in err and right > 0.8
    new = write(tmp_path / "new.csv", ["age", "size"], [[5, 500], ["", 100]])
    assert cli.main(["predict", model, new, "--out", str(tmp_path / "out.csv")]) == 0
    notes = capsys.readouterr().err
    assert "1 of 2 rows lie outside the training rows in 'size'" in notes and "1 missing in 'age', filled" in notes
    assert (tmp_path / "out.csv").read_text().splitlines()[:2] == ["row,kind", "1,flat"]
    poor = write(tmp_path / "poor.csv", ["sise", "age"], [[1, 2]])
    assert "no column 'size', which the model needs; did you mean sise?" in refused(capsys, "predict", model, poor)
    assert "not a model that emulon run wrote" in refused(capsys, "predict", table, table)
    worse = write(tmp_path / "worse.csv", ["size", "age"], [["big", 2]])
    assert "'size' holds text" in refused(capsys, "predict", model, worse)


def test_whole_numbers_that_may_be_classes_are_asked_about(tmp_path, capsys):
    path = write(tmp_path / "iris.csv", ["a", "y"], [[(i % 3) + 0.1 * (i % 7), i % 3] for i in range(30)])
    words = ["--data", path, "--target", "y", "--steps", "3", "--out", str(tmp_path / "page")]
    said = refused(capsys, "run", *words)
    assert "is the target 'y' (0, 1, 2) a number or a class? Say --kind regression or --kind classification" in said
    assert cli.main(["compile", "perceptron", *words[:6], "--out", str(tmp_path / "files")]) == 0
    assert "one class against the rest" in capsys.readouterr().out
    assert "--kind is regression" in refused(capsys, "run", "logistic", "--kind", "regression", *words)


def test_a_margin_lets_a_program_run_on_data_a_little_outside(folder, table, capsys):
    farther = np.genfromtxt(table, delimiter=",", skip_header=1)
    farther[np.abs(farther).argmax(axis=0), range(4)] *= 1.05
    moved = write(folder / "farther.csv", ["a", "b", "c", "y"], farther.tolist())
    words = ["--target", "y", "--no-standardize", "--no-intercept"]
    for margin, code in (("1.2", 0), ("1", 2)):
        out = folder / f"margin-{margin}"
        made = ["compile", "ridge", "--data", table, *words, "--steps", "3", "--margin", margin, "--out", str(out)]
        assert cli.main(made) == 0
        files = [str(out / f"{name}.safetensors") for name in ("interpreter", "program")]
        assert cli.main(["exec", *files, "--data", moved, *words]) == code
    assert "build a wider domain" in capsys.readouterr().err


def test_tables_fit_eighty_columns_with_the_longest_name(ran):
    rows = [line for line in ran[1].splitlines() if not line.startswith(("interpreter", "after", "report", "models"))]
    assert max(map(len, rows)) <= 80 - len("squared_hinge") + len("algorithm") and "…" not in ran[1]


def test_a_small_table_takes_one_thread_unless_somebody_says_how_many(monkeypatch):
    before = torch.get_num_threads()
    try:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        for numbers, wanted in ((1000, 1), (10**7, 2)):
            torch.set_num_threads(2)
            use_threads(numbers)
            assert torch.get_num_threads() == wanted
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        use_threads(1000)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_several_targets_run_side_by_side_and_are_scikit_learns_multi_output_ridge(tmp_path, capsys):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(30, 3))
    y = x @ draw.normal(size=(3, 2)) + 0.1 * draw.normal(size=(30, 2))
    table = write(tmp_path / "two.csv", ["a", "b", "c", "price", "rent"], np.column_stack([x, y]).tolist())
    report = tmp_path / "report"
    words = ["--data", table, "--target", "price, rent", "--no-standardize", "--steps", "100", "--out", str(report)]
    assert cli.main(["run", "ridge", *words]) == 0
    out = capsys.readouterr().out
    assert out.count("two.csv, price: ") == out.count("two.csv, rent: ") == 1 and "(the same)" in out
    train, _ = train_test_split(np.arange(30), test_size=0.2, random_state=0)
    theirs = Ridge(alpha=0.1 * len(train)).fit(x[train], y[train])
    for name, coefficients in zip(("price", "rent"), theirs.coef_, strict=True):
        assert (report / name / "index.html").exists()
        with (report / name / "weights.csv").open() as file:
            ours = [float(row["original units"]) for row in csv.DictReader(file) if row["feature"] != "intercept"]
        np.testing.assert_allclose(ours, coefficients, atol=1e-8)
    assert cli.main(["predict", str(report / "ridge.json"), table]) == 0
    out, err = capsys.readouterr()
    header, *lines = csv.reader(io.StringIO(out))
    assert header == ["row", "price", "rent"] and "price: R² 0.9" in err and "rent: R² 0.9" in err
    np.testing.assert_allclose([[float(cell) for cell in line[1:]] for line in lines], theirs.predict(x), atol=1e-7)


def test_several_targets_are_refused_by_name_and_where_one_is_taken(tmp_path, table, capsys):
    def said(command, target, *words):
        return refused(capsys, command, "ridge", "--data", table, "--target", target, *words)

    assert "no column 'z'" in said("run", "y,z")
    assert "'y' twice" in said("run", "y,a,y")
    assert "no feature to learn from" in said("run", "a,b,c,y")
    assert "emulon run takes several" in said("compile", "y,a", "--out", str(tmp_path))


@pytest.fixture(scope="module")
def strange(folder):
    """A table of three classes whose names of columns and classes mean something to rich and to spreadsheets."""
    draw = np.random.default_rng(3)
    names = ("[bold]", "=1+1|x", "-1")
    rows = [[*draw.normal(size=2), names[i % 3]] for i in range(36)]
    return write(folder / "strange.csv", ["length [/cm]", "=cmd|' /C calc'!A0", "kind"], rows)


def test_brackets_in_names_are_printed_and_formulas_are_kept_from_spreadsheets(tmp_path, capsys, strange):
    words = ["--data", strange, "--target", "kind", "--steps", "3"]
    assert cli.main(["run", "logistic", *words, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in ("[bold]", "=1+1|x", "-1"):
        assert f"length [/cm] [{name}]" in out and f"intercept [{name}]" in out
    cells = [cell for line in csv.reader((tmp_path / "weights.csv").read_text().splitlines()) for cell in line]
    assert "'=cmd|' /C calc'!A0 [-1]" in cells and not [cell for cell in cells if cell.startswith("=")]
    assert cli.main(["predict", str(tmp_path / "logistic.json"), strange]) == 0
    said = {line.split(",")[1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert said <= {"[bold]", "'=1+1|x", "-1"}


def test_every_class_is_exported_with_its_own_rows(tmp_path, capsys, strange):
    words = ["export", "logistic", "--data", strange, "--target", "kind", "--steps", "3", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    capsys.readouterr()
    tables = [np.loadtxt(tmp_path / f"logistic_{number}.csv", delimiter=",") for number in (1, 2, 3)]
    assert all(np.array_equal(each[:, :-1], tables[0][:, :-1]) for each in tables) and tables[0].shape == (28, 4)
    assert (np.stack([each[:, -1] for each in tables]).sum(axis=0) == -1).all()  # one of ±1 is 1 in every row


def test_models_have_the_names_that_were_asked_for(tmp_path, capsys, table, strange):
    report, steps = tmp_path / "report", ["--steps", "3", "--out", str(tmp_path / "report")]
    assert cli.main(["run", "lasso", "ridge", "--data", table, "--target", "y,c", *steps]) == 0
    assert {"lasso.json", "ridge.json", "y", "c"} <= {path.name for path in report.iterdir()}
    capsys.readouterr()
    words = ["run", "logistic-regression", "logistic", "--data", strange, "--target", "kind"]
    assert cli.main([*words, *steps]) == 0
    assert f"models {report}/logistic_regression.json\n" in capsys.readouterr().out
