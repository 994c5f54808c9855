"""What the site is made of: nothing from elsewhere, a cure for every error, a picture and a claim for every mark."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "making"))
import doctests  # noqa: E402 (found in docs/making)
import fragments  # noqa: E402 (found in docs/making)
import offline  # noqa: E402 (found in docs/making)
import pictures  # noqa: E402 (found in docs/making)
import timings  # noqa: E402 (found in docs/making)

from benchmarks import performance  # noqa: E402 (after the path)
from reproduce.record import records as measured  # noqa: E402 (after the path)

PAGES = sorted((ROOT / "docs").rglob("*.md"))


def test_what_a_page_fetches_from_elsewhere_is_found(tmp_path):
    fetching = [
        '<script src="https://cdn.example/a.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<img src="http://example.org/a.png">',
        '<p style="background: url(https://example.org/a.png)">',
    ]
    innocent = '<a href="https://example.org">there</a><link rel="canonical" href="https://a.org"><img src="a.png">'
    (tmp_path / "page.html").write_text(innocent)
    (tmp_path / "style.css").write_text("a { background: url(b.png) }")
    assert offline.fetched(tmp_path) == []
    (tmp_path / "page.html").write_text(innocent + "".join(fetching))
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/a.css';")
    assert len(offline.fetched(tmp_path)) == len(fetching) + 1


def test_the_page_of_performance_has_every_part_and_says_what_was_not_measured():
    page = (ROOT / "docs" / "performance.md").read_text()
    parts = re.findall(r"<!-- performance: (\w+) -->", page)
    assert set(parts) == {*performance.PARTS, "devices"} - {"step"}
    for name in parts:
        made = timings.part(name)
        assert "Not measured" in made or ("commit" in made and made.count("\n| ") >= 3), name
    assert "Not measured" in timings.part("nothing") and "<svg" in timings.part("rows")


def test_the_script_that_searches_answers_from_the_file_system(tmp_path, chromium):
    """Browsers start no worker there: the page has a frame that behaves as one."""
    shutil.copy(ROOT / "docs" / "assets" / "iframe-worker.js", tmp_path)
    (tmp_path / "double.js").write_text('addEventListener("message", (event) => postMessage(2 * event.data))')
    (tmp_path / "page.html").write_text('<script src="iframe-worker.js"></script><body></body>')
    asked = """() => new Promise((done) => {
        const worker = new Worker(new URL("double.js", location));
        worker.addEventListener("message", (event) => done(event.data));
        worker.postMessage(21);
    })"""
    page = chromium.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.evaluate(asked) == 42
    assert "polyfills: [assets/iframe-worker.js]" in (ROOT / "mkdocs.yml").read_text()


def test_the_picture_of_engines_is_of_the_measured_table():
    kept = (ROOT / "docs" / "images" / "bits_kept.svg").read_text(encoding="utf-8")
    assert kept == pictures.as_file("bits_kept"), "stale: run python docs/making/pictures.py"


def test_every_error_says_its_cause_and_cure():
    found = fragments.refusals()
    assert {"OutOfDomain", "ToleranceTooTight", "BadData", "BadFile"} <= set(found)
    assert [name for name, (_, cause, cure) in found.items() if not cause or not cure.endswith(".")] == []
    for name, (module, _, _) in found.items():
        assert hasattr(importlib.import_module(module), name)


def test_numbers_are_those_of_the_results():
    from reproduce.claim import all_claims

    states = set()
    for kept in sorted((ROOT / "results" / "claims").glob("*.json")):
        name = json.loads(kept.read_text())["claim"]
        [*_, last] = measured(all_claims()[name], ROOT / "results")
        states.add(state := last.verdict(all_claims()[name]).state)
        assert f"**{state}**" in (shown := fragments.numbers(name, "../"))
        assert "cannot" in last.numbers or f"](../figures/{name}" in shown
    assert len(states) > 1
    speedrun = json.loads((ROOT / "results" / "bench" / "speedrun.json").read_text())
    for attempt in speedrun["standard"]["attempts"]:
        assert f"| {attempt['seed']} | – | {attempt['steps']:,} |" in fragments.records("")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_marks_name_claims_and_pictures_that_exist(page):
    from reproduce.claim import all_claims

    drawn = re.findall(r"^@picture\ndef (\w+)", (ROOT / "docs" / "making" / "pictures.py").read_text(), re.MULTILINE)
    text = page.read_text()
    assert set(re.findall(r"<!-- numbers: (.*?) -->", text)) <= set(all_claims())
    assert set(re.findall(r"<!-- picture: (.*?) -->", text)) <= set(drawn)


def test_every_theorem_has_a_page():
    from reproduce.claim import all_claims

    told = {name for page in PAGES for name in re.findall(r"<!-- numbers: (.*?) -->", page.read_text())}
    stated = {name for name in all_claims() if re.search(r"theorem|lemma|corollar", name)}
    assert stated - told == set()


def test_examples_in_docstrings_become_code():
    assert doctests.fenced("One.\n\n>>> f(1)\n2\n\nTwo.") == "One.\n\n```pycon\n>>> f(1)\n2\n```\n\nTwo."
