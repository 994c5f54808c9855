"""The configuration is the config.json; what is wrong in it is said in one line."""

import dataclasses
import json

import pytest

from emulon.tasks import RidgeMixture
from emulon.training import BadConfig, TrainConfig
from emulon.training.schedule import live_features, live_points, rate_factor


def test_a_configuration_survives_its_json():
    config = TrainConfig(model="looped", noise=0.5, loops=7, lr=3e-4)
    assert TrainConfig.from_json(config.to_json()) == config


def test_unknown_keys_and_other_versions_are_refused():
    values = json.loads(TrainConfig().to_json())
    with pytest.raises(BadConfig, match="did you mean batch"):
        TrainConfig.from_json(json.dumps(values | {"batsch": 3}))
    with pytest.raises(BadConfig, match="version 0"):
        TrainConfig.from_json(json.dumps({key: value for key, value in values.items() if key != "version"}))
    with pytest.raises(BadConfig, match="not JSON"):
        TrainConfig.from_json("{")


def test_every_option_of_a_task_is_a_flag_or_stands_behind_its_name():
    mixture = TrainConfig(task="mixture:noises=0.1/2", features=3, points=5, prior=2.0)
    assert mixture.check().make_task() == RidgeMixture(3, 5, prior=2.0, noises=(0.1, 2.0))
    assert TrainConfig.from_json(mixture.to_json()) == mixture
    for config, reason in (
        (TrainConfig(task="linear", lags=2), "the task linear has no 'lags'"),
        (TrainConfig(task="linaer:noise=1"), "did you mean linear"),
        (TrainConfig(task="linear:features=3"), "features is given twice"),
        (TrainConfig(task="linear", noise=-1.0), "noise must be 0 or more"),
    ):
        with pytest.raises(BadConfig, match=reason):
            config.check()


def test_the_learning_rate_warms_up_and_comes_down():
    config = TrainConfig(lr=1.0, warmup=10, steps=110, schedule="cosine")
    rates = [rate_factor(config, step) for step in range(110)]
    assert rates[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert rates[10] == 1 and rates[60] == pytest.approx(0.5) and rates[109] < 1e-3
    assert rate_factor(dataclasses.replace(config, schedule="constant"), 100) == 1


def test_a_curriculum_grows_with_the_step_and_ends_full():
    config = TrainConfig(features=8, start_features=5, feature_every=10, start_points=3, point_every=5)
    assert [live_features(config, step) for step in (0, 9, 10, 29, 30, 999)] == [5, 5, 6, 7, 8, 8]
    assert [live_points(config, step, 9) for step in (0, 5, 999)] == [3, 4, 9]
    assert live_features(TrainConfig(features=8), 0) == 8
