"""The page of an analysis: one file, nothing fetched; its pictures change with the numbers."""

import pytest
import torch

from emulon.algorithms import RidgeRegression
from emulon.identification import Curve, Identification, Interval, Match, analyse
from emulon.report.learners import distances, ranking, render, write
from emulon.tasks import Linear

TASK = Linear(3, noise=0.5)


@pytest.fixture(scope="module")
def said():
    return analyse(RidgeRegression(0.25), TASK, target="<mine & yours>", datasets=32, points=9)


def test_the_page_says_what_was_found(said):
    page = render(said)
    assert "&lt;mine &amp; yours&gt;: ridge" in page and "ridge(ridge=0.25): unexplained" in page
    assert "within the grid&#39;s step" in page and "λ = σ²/τ² = 0.25" in page
    assert page.count("<svg") == 4 and "<script" not in page and "http://" not in page.replace("http://www.w3.org", "")
    for match in said.identification.ranking:
        assert f'<td class="left">{match}</td>' in page
    for n in range(1, 9):
        assert f"<tr><td>{n}</td>" in page


def test_a_page_without_noise_or_with_none_of_these_does_without_its_sentences():
    page = render(analyse(lambda xs, ys, x_query: x_query[:, 0], Linear(3), datasets=16, points=6))
    assert "none of these: the nearest" in page and "σ²/τ²" not in page


def test_a_reference_that_diverges_does_not_squeeze_the_others_together():
    left = {"ridge": 0.01, "knn": 0.5, "ols": 1e12}
    matches = [Match(name, {}, Interval(value, value / 2, 2 * value), 0.1) for name, value in left.items()]
    picture = ranking(Identification(tuple(matches), (), 0.1, (1, 2), 16))
    curves = {name: Curve.of(name, (1, 2), torch.full((4, 2), value)) for name, value in left.items()}
    for drawn in (picture, distances(curves, "distance")):  # every power of ten near the others has its mark
        assert all(mark in drawn for mark in (">0.01<", ">0.1<", ">1<", ">10<"))
    assert "1e+12" not in picture


def test_the_page_opens_in_chromium_without_a_word_on_the_console(said, tmp_path, on_a_phone):
    page = write(said, tmp_path / "new")
    assert [path.name for path in page.parent.iterdir()] == ["index.html"]
    seen = on_a_phone(page)
    assert seen.said == [] and seen.pictures == 4
    assert seen.needed <= seen.width, "the page is wider than a phone"
