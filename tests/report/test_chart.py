"""Charts: how many rows panels take, and what a legend says."""

import math
import re

from emulon.report.figure import COLOURS, HEIGHT, WIDTH, Figure, Panel, Series, chart


def drawn(panels, *labels):
    panel = Panel("x", "y", [Series(label, [0, 1], [place, 1]) for place, label in enumerate(labels)])
    return chart(Figure([panel] * panels))


def test_up_to_three_panels_stand_in_a_row():
    sizes = {}
    for panels in (1, 3, 4, 5, 7):
        width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', drawn(panels, "one")).groups())
        sizes[panels] = (round(width / 72 / WIDTH, 6), round(height / 72 / HEIGHT, 6))
    assert sizes == {1: (1, 1), 3: (3, 1), 4: (2, 2), 5: (3, 2), 7: (3, 3)}


def test_what_has_no_extent_or_is_not_finite_is_drawn_all_the_same():
    flat = Panel("t", "", [Series("f", [0, 1], [0.0, 0.0])], y_range=(0.0, 0.0))
    missing = Panel("t", "", [Series("f", ["a", "b"], [math.nan, math.nan], "bars")])
    endless = Panel("t", "", [Series("f", [1, 2], [math.inf, 0.0], "dashes")], log_y=True)
    for panel in (flat, missing, endless):
        drawn = chart(Figure([panel]))
        assert drawn.count("<svg") == 1 and "nan" not in drawn and "inf" not in drawn


def test_a_label_that_several_curves_share_is_told_once_and_has_one_colour():
    svg = drawn(1, "seeds", "seeds", "other")
    assert svg.count(">seeds<") == 1 and svg.count(">other<") == 1
    assert [colour in svg for colour in COLOURS[:3]] == [True, True, False]
