"""Bootstrap intervals, and the curves made of them."""

import numpy as np
import pytest
import torch

from emulon.identification import Curve, Interval
from emulon.identification.curves import bounds, intervals


def test_intervals_cover_the_mean_about_as_often_as_they_say():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(60, 400, generator=generator, dtype=torch.float64).exp()
    truth = float(np.exp(0.5))
    covered = sum(one.low <= truth <= one.high for one in intervals(values)) / 400
    assert 0.86 < covered < 0.98
    assert str(Interval(1.0, 0.5, 2.0)) == "1 [0.5, 2]"


def test_a_curve_has_a_mean_for_every_count_and_one_for_all():
    values = torch.tensor([[1.0, 4.0], [3.0, 8.0]], dtype=torch.float64)
    curve = Curve.of("error", (2, 5), values)
    assert (curve[2].value, curve[5].value, curve.overall.value) == (2, 6, 4)
    assert 1 <= curve[2].low <= 2 <= curve[2].high <= 3
    assert str(curve).splitlines()[0] == "error" and str(curve).splitlines()[2].startswith("   5  6 [")


def test_an_interval_leaves_a_fortieth_out_at_either_end():
    low, high = bounds(torch.arange(1001).double().unsqueeze(-1) / 1000)
    assert (low.item(), high.item()) == pytest.approx((0.025, 0.975))
