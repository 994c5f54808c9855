"""The report: one file, nothing fetched, every section there; its pictures say what the run did."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from emulon.algorithms import LogCoshRegression, Ridge
from emulon.experiments.data import Data
from emulon.experiments.run import run_experiment
from emulon.report.anatomy import anatomy, facts, routing, telling_samples
from emulon.report.page import write

SECTIONS = ["table", "fitted", "routing", "errors", "functions", "anatomy", "hash"]


@pytest.fixture(scope="module")
def experiment():
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(16, 3)))
    y = (x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)).numpy()
    data = Data("<made & up>", "regression", x[:12], x[12:], y[:12], y[12:], ("a", "b", "c"))
    return run_experiment([Ridge, LogCoshRegression], data, steps=4)


@pytest.fixture(scope="module")
def page(experiment, tmp_path_factory):
    return write(experiment, tmp_path_factory.mktemp("report"))


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
        assert address.startswith(("#", "data:")), address
        assert not address.startswith("#") or address[1:] in read.ids, address
    assert not re.search(r"@import|url\((?!#)|<script", text)
    assert all(ref in read.ids for ref in re.findall(r"url\(#(.*?)\)", text))
    assert text.count("<svg") == 3 * 2 + 2 + 2 + 2 + 1
    assert experiment.interpreter.sha256 in text and "&lt;made &amp; up&gt;" in text
    assert "width=device-width" in text


def test_nothing_is_left_beside_the_page(page):
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]


def test_the_routing_drawn_is_the_trace(experiment):
    run = experiment.results[0].run
    chosen = telling_samples(run, 4)
    drawn = routing(run, chosen)
    traced = run.trace["layer 2"].weights[list(chosen)].unflatten(-1, (12, drawn.keys))
    torch.testing.assert_close(drawn.weights, traced[:, list(chosen)].flatten(-2), rtol=0, atol=1e-12)
    assert drawn.samples == 12 and 0 <= drawn.elsewhere < 1e-6


def test_the_anatomy_covers_every_row_and_bounds_what_is_there(experiment):
    run = experiment.results[0].run
    phase = run.program.gradient
    rows = anatomy(run.program, phase)
    assert sum(row.size for row in rows) == phase.slots.width
    tokens = phase.prompt(phase.data_rows(run.x, run.y), run.weights, state=run.weights, before=run.weights * 0)
    for row in rows:
        assert tokens[:, phase.slots[row.slot]].abs().max().item() <= row.largest * (1 + 1e-9), row.slot
    assert {"steps", "certificate", "gradient grid"} <= {name for name, _ in facts(run.program)}


def test_errors_stay_under_their_bound(experiment):
    for result in experiment.results:
        assert result.errors.shape == (5,) and result.errors.max().item() <= result.run.certificate.bound
        assert result.run.sha256[0] == result.run.sha256[1] == experiment.interpreter.sha256


def test_the_page_opens_in_chromium_without_a_word_on_the_console(page, on_a_phone):
    seen = on_a_phone(page)
    assert seen.said == []
    assert seen.pictures >= 4
    assert seen.needed <= seen.width, "the page is wider than a phone"
