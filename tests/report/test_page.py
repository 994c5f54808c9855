"""The report: one file, nothing fetched, every section there; its pictures say what the run did."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from http.server import ThreadingHTTPServer
from urllib.parse import unquote

import numpy as np
import pytest
import torch

from emulon.algorithms import LogCoshRegression, Ridge
from emulon.cli import main
from emulon.playground import where
from emulon.report.page import facts, prompt_rows, write
from emulon.run import run_experiments
from emulon.tables.columns import Column
from emulon.tables.data import Data

SECTIONS = ["table", "fitted", "errors", "prompt", "hash"]


@pytest.fixture(scope="module")
def experiment():
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(16, 3)))
    y = (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)).numpy()
    data = Data(
        "<made & up>",
        "regression",
        x[:12],
        x[12:],
        y[:12],
        y[12:],
        tuple(Column(name, "number") for name in "abc"),
    )
    return run_experiments([Ridge, LogCoshRegression], [data], steps=4)[0]


@pytest.fixture(scope="module")
def page(experiment, tmp_path_factory):
    return write(experiment, tmp_path_factory.mktemp("report"))[0]


class Reader(HTMLParser):
    """Collects ids, addresses and whether every element is closed in order."""

    VOID = ("meta", "link", "br", "img", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        found = dict(attributes)
        self.ids += [found["id"]] if "id" in found else []
        self.addresses += [found[name] for name in ("src", "href", "xlink:href", "action", "data") if name in found]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_fetches_nothing(page, experiment):
    text = page.read_text()
    read = Reader(text)
    assert set(SECTIONS) <= set(read.ids)
    assert len(set(read.ids)) == len(read.ids)
    for address in read.addresses:
        assert address.startswith(("#", "data:", "playground.html#algorithms/")), address
        assert not address.startswith("#") or address[1:] in read.ids, address
    assert not re.search(r"@import|url\((?!#)|<script", text)
    assert all(ref in read.ids for ref in re.findall(r"url\(#(.*?)\)", text))
    assert text.count("<svg") == 3 * 2 + 2
    assert experiment.interpreter.sha256 in text and "&lt;made &amp; up&gt;" in text
    assert "width=device-width" in text


def test_a_run_is_scaled_to_the_picture_and_what_it_fitted_with_it(experiment):
    result = experiment.results[0]
    _, name, _, points, fitted, title = where(result, experiment.data).split("/")
    constant, slope = map(float, fitted.split(","))
    x, y = torch.tensor([[float(each) for each in point.split(",")] for point in points.split(";")]).double().T
    # b has the largest weight; all twelve rows are shown, in their order.
    wide, high = (run_part.abs().max() for run_part in (result.run.x[:, 1], result.run.y))
    torch.testing.assert_close(x * wide / 0.95, result.run.x[:, 1], rtol=0, atol=1e-2)
    torch.testing.assert_close(y * high / 1.9, result.run.y, rtol=0, atol=1e-2)
    assert constant == 0 and slope * high / 1.9 == pytest.approx((result.run.weights[1] * wide / 0.95).item(), rel=1e-5)
    assert name == "ridge" and unquote(title).startswith("12 of 12 rows of <made & up>: b, and target")


@pytest.mark.parametrize("kind", ["fista", "one feature of two classes"])
def test_a_run_that_the_picture_cannot_hold_has_no_address(kind, experiment):
    result, data = experiment.results[0], experiment.data
    if kind == "fista":
        assert where(replace(result, name="fista"), data) is None
    else:
        assert where(replace(result, name="ridge"), replace(data, columns=())) is None


def test_the_playground_opens_with_the_run_from_disk(page, experiment, chromium):
    said: list[str] = []
    desk = chromium.new_page()
    desk.on("console", lambda message: said.append(message.text))
    desk.on("pageerror", lambda error: said.append(str(error)))
    desk.on("request", lambda asked: said.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    desk.goto(page.as_uri())
    desk.get_by_role("link", name="ridge", exact=True).click()
    desk.wait_for_selector("#weights[data-own]")
    own, exact = (json.loads(desk.locator("#weights").get_attribute(f"data-{which}")) for which in ("own", "exact"))
    # The frozen weights in the page learn from the run's own points, as the exact algorithm does.
    assert max(abs(a - b) for a, b in zip(own, exact, strict=True)) < 1e-9 and abs(own[1]) > 0.1
    assert desk.locator(".plane .point").count() == 12 and desk.locator("path.ran").get_attribute("d")
    assert "12 of 12 rows of <made & up>" in desk.locator("#origin").inner_text()
    assert said == []


def test_the_command_opens_the_playground_with_a_run(page, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: None)
    assert main(["playground", "--run", str(page.parent), "--port", "0", "--no-browser"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "/#algorithms/ridge/200/" in first and second.startswith("log_cosh_regression: http://127.0.0.1:")
    assert main(["playground", "--run", str(tmp_path), "--no-browser"]) == 2
    refused = capsys.readouterr().err
    assert "holds no run that the playground could open" in refused and refused.count("\n") == 1


def test_the_prompts_rows_cover_every_row_and_bounds_what_is_there(experiment):
    run = experiment.results[0].run
    phase = run.program.gradient
    rows = prompt_rows(run.program, phase)
    assert sum(row.size for row in rows) == phase.slots.width
    tokens = phase.prompt(phase.data_rows(run.x, run.y), run.weights, state=run.weights, before=run.weights * 0)
    for row in rows:
        assert tokens[:, phase.slots[row.slot]].abs().max().item() <= row.largest * (1 + 1e-9), row.slot
    assert {"steps", "certificate", "gradient grid"} <= {name for name, _ in facts(run.program)}


def test_the_page_opens_in_chromium_without_a_word_on_the_console(page, on_a_phone):
    seen = on_a_phone(page)
    assert seen.said == []
    assert seen.pictures >= 4
    assert seen.needed <= seen.width, "the page is wider than a phone"
