"""What columns of messy tables are taken for, and that a model learns as much from them as from tidy numbers."""

import csv
import datetime

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from emulon.algorithms import logistic
from emulon.cli import main
from emulon.tables import BadData, load, read_columns
from emulon.tables.columns import dates_of, formats_of, number_of, take

ROWS = 3000
MARKS = ("", "-", "n/a", "?", "NA", "unknown", ".")
CITIES = ("New\nYork", "Paris", "São Paulo", "Rome")


@pytest.mark.parametrize(
    ("cell", "decimal", "number"),
    [
        ("1,234.5", ".", 1234.5),
        ("12%", ".", 12.0),
        ("$5", ".", 5.0),
        ("-$1,000", ".", -1000.0),
        ("<1", ".", 1.0),
        ("≥ 3", ".", 3.0),
        ("(7)", ".", -7.0),
        ("\u22122.5", ".", -2.5),
        ("1e-3", ".", 0.001),
        ("1.234,5", ",", 1234.5),
        ("1 234,5", ",", 1234.5),
        ("0,567", ",", 0.567),
        ("0,567", ".", None),
        ("1.5", ",", None),
        ("12/3", ".", None),
        ("1,23,4", ".", None),
        ("5 apples", ".", None),
        ("%", ".", None),
        ("", ".", None),
    ],
)
def test_numbers_are_read_as_people_write_them(cell, decimal, number):
    assert number_of(cell, decimal) == number


@pytest.mark.parametrize(
    ("cell", "formats", "day"),
    [
        ("2021-03-04", ("ISO8601",), (2021, 3, 4)),
        ("2021-03-04T12:00:00Z", ("ISO8601",), (2021, 3, 4.5)),
        ("04.03.2021", ("%d.%m.%Y",), (2021, 3, 4)),
        ("04.03.2021 06:00", ("%d.%m.%Y %H:%M",), (2021, 3, 4.25)),
        ("03/14/2021", ("%m/%d/%Y",), (2021, 3, 14)),
        ("14/03/2021", ("%d/%m/%Y",), (2021, 3, 14)),
        ("4 Mar 2021", ("%d %b %Y",), (2021, 3, 4)),
    ],
)
def test_dates_are_days_since_1970(cell, formats, day):
    year, month, days = day
    whole = datetime.date(year, month, int(days)).toordinal() - datetime.date(1970, 1, 1).toordinal()
    assert formats_of([cell]) == formats
    assert dates_of([cell, "soon"], formats)[0] == whole + days % 1 and np.isnan(dates_of(["soon"], formats))[0]


def test_day_and_month_are_not_exchanged_within_a_column():
    assert formats_of(["13/02/2021", "03/04/2021", "05/06/2021"]) == ("%d/%m/%Y",)
    assert np.isnan(dates_of(["02/13/2021"], ("%d/%m/%Y",)))[0]


@pytest.mark.parametrize(
    ("name", "cells", "asked", "reason"),
    [
        ("a", [*map(str, range(290)), "-", "1,234.5", "12%", "$5", "<1"], None, "number, as '1,234.5' is 1234.5; 1 mi"),
        ("a", ["1,5", "2,25", "1.000,5"] * 9, None, "number, decimal comma, as '1,5' is 1.5"),
        ("a", ["2021-01-02", "03.01.2021"] * 9, None, "date (year-month-day, %d.%m.%Y), in days"),
        ("a", ["01/02/2021", "03/04/2021"] * 9, None, "date (%m/%d/%Y), in days, the month first"),
        ("a", ["Yes", "yes ", "no"] * 9, None, "category, 2 levels one-hot; 1 other spelling (case, spaces)"),
        ("a", ["", "pool"] * 9, None, "category, 2 levels one-hot; 9 missing, a level of their own"),
        ("a", ["x"] * 9, None, "left out: it is constant ('x')"),
        ("a", [f"R-{i}" for i in range(30)], None, "left out: identifier or free text, 30 different values in 30 rows"),
        ("id", [str(i) for i in range(30)], None, "left out: identifier, the whole numbers 0 to 29 once each"),
        ("id", [str(i) for i in range(30)], "number", "number"),
        ("zip", ["1010", "1020", "1030"] * 9, "category", "category, 3 levels one-hot"),
        ("a", ["1", "2", "much"] * 9, "number", "number; 9 missing ('much'), filled with the mean"),
        ("a", ["1", "2", "3"] * 9, "drop", "left out, as asked"),
    ],
)
def test_what_a_column_is_taken_for_is_said(name, cells, asked, reason):
    assert take(name, cells, np.arange(len(cells)), asked)[1].startswith(reason)


def test_what_cannot_be_asked_for_is_refused():
    with pytest.raises(BadData, match=r"--as a=date: no cell of it can be read as a date \('x'\)"):
        take("a", ["x", "y", "z"], np.arange(3), "date")


def messy(path):
    """Write a messy table of three classes; return its features as tidy numbers, NaN where missing."""
    draw = np.random.default_rng(0)
    tidy = {
        "age": draw.normal(45, 12, ROWS).round(1),
        "income": draw.lognormal(8, 0.5, ROWS).round(2),
        "ratio": draw.uniform(0, 1, ROWS).round(3),
        "dose": draw.gamma(2, 2, ROWS).round(2) + 0.5,
        "price": draw.normal(20, 5, ROWS).round(2),
    }
    day, city, sex = (draw.integers(0, high, ROWS) for high in (2000, 4, 2))
    scores = [
        (tidy["age"] - 45) / 12 + 2 * tidy["ratio"],
        2 * np.log(tidy["income"]) - 15 + 1.5 * (city == 1) - (tidy["price"] - 20) / 5,
        (day - 1000) / 500 + tidy["dose"] / 3 + (city == 3) + sex,
    ]
    target = (np.stack(scores) + 0.5 * draw.gumbel(size=(3, ROWS))).argmax(axis=0)
    written = {
        "age": lambda value, i: f"{'~' * (i % 50 == 0)}{value:g}",
        "income": lambda value, i: f"${value:,.2f}",
        "ratio": lambda value, i: f"{100 * value:.1f}%",
        "dose": lambda value, i: f"{'<' * (i % 40 == 0)}{value:.2f}",
        "price": lambda value, i: f"{value:.2f}".replace(".", ","),
    }
    gaps = {name: draw.uniform(size=ROWS) < 0.03 for name in tidy}
    days = [datetime.date(2015, 1, 1) + datetime.timedelta(days=int(each)) for each in day]
    columns = {"record": [f"R-{i:05d}" for i in draw.permutation(ROWS)], "id": list(range(1, ROWS + 1))}
    for name, form in written.items():
        marks = draw.integers(len(MARKS), size=ROWS)
        columns[name] = [MARKS[marks[i]] if gaps[name][i] else form(tidy[name][i], i) for i in range(ROWS)]
    columns["day"] = [each.strftime("%d.%m.%Y" if i % 7 else "%Y-%m-%d") for i, each in enumerate(days)]
    columns["city"] = [CITIES[k] if i % 9 else f"{CITIES[k].upper()} " for i, k in enumerate(city)]
    columns["sex"] = ["mf"[each] for each in sex]
    columns["country"] = ["X"] * ROWS
    columns["grade"] = [("low", "middle", "high")[each] for each in target]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    numbers = {name: np.where(gaps[name], np.nan, value) for name, value in tidy.items()}
    levels = {f"city{k}": (city == k) * 1.0 for k in range(4)} | {"sex": sex * 1.0}
    return np.column_stack([*numbers.values(), day, *levels.values()]), np.array(columns["grade"])


def test_a_messy_table_teaches_as_much_as_the_same_data_typed_by_hand(tmp_path):
    tidy, grades = messy(tmp_path / "messy.csv")
    data = load(str(tmp_path / "messy.csv"), "grade", intercept=True)
    taken = dict(data.taken)
    for name, reason in {
        "record": "left out: identifier",
        "id": "left out: identifier",
        "country": "left out: it is constant",
        "age": "number, as '~",
        "income": "number, as '$",
        "ratio": "number, as '",
        "dose": "number, as '<",
        "price": "number, decimal comma",
        "day": "date (%d.%m.%Y, year-month-day)",
        "city": "category, 4 levels one-hot; 4 other spellings",
        "sex": "category, 2 levels",
    }.items():
        assert taken[name].startswith(reason), taken[name]
    assert all(mark in taken["age"] for mark in ("'-'", "missing")) and len(data.taken) == 11
    # The same split, of the numbers as they were before they were written into the table.
    rows = torch.cat([data.x_train, data.x_test])
    assert rows.shape == (ROWS, 12) and torch.isfinite(rows).all()
    train, test = train_test_split(np.arange(ROWS), test_size=0.2, random_state=0, stratify=grades)
    filled = np.where(np.isnan(tidy), np.nanmean(tidy[train], axis=0), tidy)
    filled = (filled - filled[train].mean(axis=0)) / filled[train].std(axis=0)

    def accuracy(x_train, x_test):
        return LogisticRegression(max_iter=2000).fit(x_train, data.y_train).score(x_test, data.y_test)

    ours, by_hand = accuracy(data.x_train.numpy(), data.x_test.numpy()), accuracy(filled[train], filled[test])
    print(f"accuracy {ours:.4f}, typed by hand {by_hand:.4f}, always the most frequent class {data.baseline_score:.4f}")
    assert abs(ours - by_hand) <= 0.01 and by_hand > data.baseline_score + 0.2
    assert data.problem(logistic())[0].shape == (3, 2400, 13)


def test_a_cell_with_a_line_break_stays_whole(tmp_path):
    path = tmp_path / "towns.csv"
    path.write_text('town,y\n"New\nYork",1\nRome,2\n')
    assert read_columns(path)["town"] == ["New\nYork", "Rome"]


def test_columns_are_overridden_on_the_command_line_and_every_one_is_told(tmp_path, capsys):
    path = tmp_path / "zip.csv"
    lines = [f"{1010 + 10 * (i % 3)},{i % 7 + 0.5},w{i},{i % 5 + 0.25}" for i in range(40)]
    path.write_text("\n".join(["zip,a,note,y", *lines]))
    words = ["--data", str(path), "--target", "y", "--steps", "2", "--out", str(tmp_path / "files")]
    assert main(["compile", "ridge", *words, "--as", "zip=category", "--as", "a=drop"]) == 0
    out = capsys.readouterr().out
    assert "column zip   category, 3 levels one-hot" in out and "column a     left out, as asked" in out
    assert "column note  left out: identifier or free text" in out
    for word, said in (
        ("zap=drop", "there is no column 'zap'; did you mean zip?"),
        ("zip=categorical", "did you mean category?"),
        ("zip", "write COLUMN=number|category|date|drop"),
        ("y=drop", "there is no column 'y'"),
    ):
        assert main(["compile", "ridge", *words, "--as", word]) == 2
        assert said in capsys.readouterr().err
