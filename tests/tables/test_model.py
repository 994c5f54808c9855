"""A fitted model is a small file that predicts as the run did, by weights in the table's own units."""

import csv
import io
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from damage import alter_json, cases, damage_bytes

from emulon.cli import main
from emulon.run import algorithm_named, answers, run_experiments
from emulon.tables import BadData
from emulon.tables.data import load
from emulon.tables.model import FittedModel, load_models, save_models


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A gap, words, and numbers far from zero."""
    draw = np.random.default_rng(2)
    rows = [(draw.normal(100, 20), draw.normal(5, 2), ("flat", "house")[draw.integers(2)]) for _ in range(40)]
    lines = [f"{a},{b},{kind},{3 * a - 10 * b + 50 * (kind == 'flat')}" for a, b, kind in rows]
    lines[7] = f"{rows[7][0]},,{rows[7][2]},300"
    path = tmp_path_factory.mktemp("model") / "mixed.csv"
    path.write_text("\n".join(["size,age,kind,price", *lines]))
    return str(path)


@pytest.mark.parametrize(("name", "standardize"), [("ridge", True), ("log_cosh", False), ("poisson", True)])
def test_a_saved_model_predicts_by_its_weights_in_original_units(tmp_path, table, name, standardize):
    data = load(table, "price", intercept=True, standardize=standardize)
    [experiment] = run_experiments([algorithm_named(name)], [data], steps=5, tolerance=1e-4)
    [result] = experiment.results
    run, loss = result.run, result.run.program.loss
    save_models([FittedModel.of(name, run, data)], tmp_path / "model.json")
    [model] = load_models(tmp_path / "model.json")
    coefficients, intercept = data.original(run.weights.numpy(), loss)
    w = dict(zip(data.features, coefficients.tolist(), strict=True))
    rows = [("flat", 100, 5), ("house", 60, 9), ("castle", 500, 5)]
    scores = [intercept + w["size"] * a + w["age"] * b + w.get(f"kind={kind}", 0.0) for kind, a, b in rows]
    new = {name: [str(cell) for cell in cells] for name, *cells in zip(("kind", "size", "age"), *rows, strict=True)}
    np.testing.assert_allclose(model.predict(new), np.exp(scores) if name == "poisson" else scores, rtol=1e-9)
    assert [note for note in model.notes(new) if "castle" in note] and model.bound == run.bounds.bound
    raw = data.x_test.numpy() * data.size + data.center
    kinds = ["flat" if row[data.features.index("kind=flat")] > 0.5 else "house" for row in raw]
    own = {name: raw[:, data.features.index(name)].astype(str).tolist() for name in ("size", "age")}
    np.testing.assert_allclose(model.predict(own | {"kind": kinds}), answers(run, data, data.x_test), rtol=1e-9)


@pytest.fixture(scope="module")
def files(table, tmp_path_factory):
    """Model files of several kinds, and the target of each."""
    folder = tmp_path_factory.mktemp("files")
    words = {"ridge": "price", "poisson": "price", "logistic_regression": "kind"}
    for name, target in words.items():
        data = load(table, target, intercept=True)
        [experiment] = run_experiments([algorithm_named(name)], [data], steps=3, tolerance=1e-4)
        [result] = experiment.results
        save_models([FittedModel.of(name, result.run, data)], folder / f"{name}.json")
    return folder, words, table


def set_at(table, path, value):
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), 99, "another format"),
        (("models",), [], "holds no model"),
        (("models",), {}, "not of type list"),
        (("models", 0, "weights"), [[1.0]], "as many weights as features"),
        (("models", 0, "weights"), [], "0 rows of weights"),
        (("models", 0, "intercepts", 0), float("inf"), "not finite"),
        (("models", 0, "columns", 0, "low"), 1e9, "no range or no formats"),
        (("models", 0, "columns", 0, "kind"), "date", "no range or no formats"),
        (("models", 0, "columns", 0, "kind"), "category", "has not the levels"),
        (("models", 0, "columns", 0, "kept"), [1], "has not the levels"),
        (("models", 0, "columns", 0, "kind"), "word", "not one of number, date, category"),
        (("models", 0, "baseline"), "much", "could not convert"),
        (("models", 0, "response"), "class", "with 0 classes"),
        (("models", 0, "target"), "\ud800", "surrogates not allowed"),
        (("models", 0, "bound"), -1.0, "negative bound"),
    ],
)
def test_a_model_that_is_none_is_refused(path, value, message, files, tmp_path):
    content = json.loads((files[0] / "ridge.json").read_text())
    set_at(content, path, value)
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(BadData, match=message):
        load_models(tmp_path / "model.json")


def test_what_is_missing_from_a_model_is_named(files, tmp_path):
    content = json.loads((files[0] / "ridge.json").read_text())
    [model] = content["models"]
    for table in (content, model, model["columns"][0]):
        for name in list(table):
            kept = table.pop(name)
            (tmp_path / "model.json").write_text(json.dumps(content))
            with pytest.raises(BadData, match=f"lacks the field '{name}'"):
                load_models(tmp_path / "model.json")
            table[name] = kept


CELLS = ("", "nan", "inf", "1e999", "-1e308", "None", "?", "é", "flat", "castle", "5", "0", "=1+1", '"')


def odd_table(draw, lines):
    """The table with cells, columns or rows changed, left out or doubled."""
    rows = [line.split(",") for line in lines[: draw.choice((1, 2, 3, len(lines)))]]
    for _ in range(draw.choice((0, 1, 1, 5))):
        row = draw.randrange(len(rows))
        how, column = draw.choice(("cell", "cell", "cell", "column", "row", "names")), draw.randrange(len(rows[row]))
        if how == "cell":
            rows[row][column] = draw.choice(CELLS)
        elif how == "column":
            rows = [[cell for i, cell in enumerate(one) if i != column] or ["x"] for one in rows]
        elif how == "names":
            rows[0] = [*rows[0][1:], rows[0][0]]
        else:
            rows.insert(row, list(rows[row]))
    return "\n".join(",".join(row) for row in rows)


def test_altered_models_and_odd_tables_predict_or_are_one_line(files, tmp_path, capsys):
    folder, words, table = files
    lines, refused, done = Path(table).read_text().splitlines(), 0, 0
    for seed in cases(100):
        draw = random.Random(seed)
        name = draw.choice(sorted(words))
        model, new = tmp_path / "model.json", tmp_path / "new.csv"
        model.write_bytes((folder / f"{name}.json").read_bytes())
        new.write_text("\n".join(lines))
        how = draw.choice(("model", "model", "bytes", "table", "table"))
        if how == "model":
            alter_json(draw, model)
        elif how == "bytes":
            damage_bytes(draw, draw.choice((model, new)))
        else:
            new.write_text(odd_table(draw, lines))
        code = main(["predict", str(model), str(new)])
        out, err = capsys.readouterr()
        told = [line for line in err.splitlines() if not line.startswith(("note: ", "R²", "accuracy"))]
        assert (code, len(told)) in ((0, 0), (2, 1)), f"{seed} {how}: {err}"
        if code == 0:
            rows = list(csv.reader(io.StringIO(out)))[1:]
            assert rows and all(name == "logistic_regression" or math.isfinite(float(row[1])) for row in rows), seed
        refused, done = refused + (code == 2), done + (code == 0)
    print(f"{refused} refused, {done} predicted")
    assert min(refused, done) > 0


def test_scores_are_told_of_rows_that_have_a_target(files, tmp_path, capsys):
    folder, _, table = files
    header, *lines = Path(table).read_text().splitlines()
    first, second = [line for line in lines if ",flat," in line][:2]
    cannot = "cannot be told: {} of 1 rows have a target"
    for name, rows, said in (
        ("logistic_regression", [first, second.replace("flat", "")], r"accuracy 1\.0000 on 1 rows"),
        ("logistic_regression", [first.replace("flat", "")], f"accuracy {cannot.format(0)}"),
        ("ridge", lines, r"R² 0\.\d+ on 40 rows \(the training rows' mean: -?0\.0\d+\)"),
        ("ridge", lines[:1], f"R² {cannot.format(1)}"),
    ):
        (tmp_path / "new.csv").write_text("\n".join([header, *rows]))
        assert main(["predict", str(folder / f"{name}.json"), str(tmp_path / "new.csv")]) == 0
        assert re.search(said, capsys.readouterr().err), said
