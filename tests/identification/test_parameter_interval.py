"""The interval of a fitted parameter holds it as often as it says, and is as narrow as the answers allow."""

from __future__ import annotations

import math

import torch

from emulon.identification import REFERENCES, Prefixes, draw
from emulon.identification.fit import RESOLUTION, Observations, parameter_interval
from emulon.tasks import Linear


def observed(prefixes: Prefixes, name: str, parameters: dict[str, float], noise: float, seed: int) -> Observations:
    exact = REFERENCES[name].predict(prefixes, dict(parameters))
    errors = torch.randn(exact.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return Observations(prefixes, exact + noise * exact.std() * errors, exact.var(dim=0))


def test_ninety_five_of_a_hundred_intervals_hold_the_parameter() -> None:
    """What is fitted may be a little off: the interval is around what the data say."""
    held, widths, ridge = 0, [], REFERENCES["ridge"]
    for seed in range(100):
        drawn = draw(Linear(2, noise=0.5), seed=seed, datasets=64, points=5)
        interval = parameter_interval(ridge, {"ridge": 0.7}, observed(drawn, "ridge", {"ridge": 0.701}, 0.05, seed))
        assert interval is not None and interval.value == 0.7
        held += interval.low <= 0.701 <= interval.high
        widths.append(math.log(interval.high / interval.low))
    assert 90 <= held <= 99
    assert 0.01 < sum(widths) / len(widths) < 0.2


def test_exact_answers_leave_what_a_search_resolves() -> None:
    drawn = draw(Linear(2), datasets=16, points=5)
    interval = parameter_interval(
        REFERENCES["sgd"], {"step_size": 0.2}, observed(drawn, "sgd", {"step_size": 0.2}, 0.0, 0)
    )
    assert interval is not None and interval.low < 0.2 < interval.high
    assert math.log(interval.high / interval.low) < 2.1 * RESOLUTION


def test_without_a_continuous_parameter_or_any_effect_of_it_there_is_none() -> None:
    drawn = draw(Linear(2), datasets=16, points=5)
    seen = observed(drawn, "ols", {}, 0.1, 0)
    assert parameter_interval(REFERENCES["ols"], {}, seen) is None
    assert parameter_interval(REFERENCES["knn"], {"neighbours": 2}, seen) is None
    silent = Observations(Prefixes(drawn.xs, 0 * drawn.ys, drawn.counts), seen.answers, seen.scale)
    assert parameter_interval(REFERENCES["ridge"], {"ridge": 1.0}, silent) is None
    hardly = parameter_interval(REFERENCES["ridge"], {"ridge": 1e-12}, seen)
    assert hardly is None  # from e^-100 to e^100 times it would be no interval
