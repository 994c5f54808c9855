"""The configuration is the config.json; what is wrong in it is said in one line."""

import json

import pytest
import torch

from emulon.tasks import SparseLinear
from emulon.training import BadConfig, TrainConfig
from emulon.training.step import live_features, rate_factor


def test_a_configuration_survives_its_json():
    config = TrainConfig.of(model="looped", noise=0.5, loops=7, lr=3e-4)
    assert TrainConfig.from_json(config.to_json()) == config


def test_unknown_keys_and_other_versions_are_refused():
    values = json.loads(TrainConfig().to_json())
    with pytest.raises(BadConfig, match="did you mean batch"):
        TrainConfig.from_json(json.dumps(values | {"batsch": 3}))
    with pytest.raises(BadConfig, match="version 1 and this emulon reads version 2"):
        TrainConfig.from_json(json.dumps(values | {"version": 1}))
    with pytest.raises(BadConfig, match="not JSON"):
        TrainConfig.from_json("{")


def test_every_option_of_a_task_is_a_flag_or_stands_behind_its_name():
    sparse = TrainConfig.of(task="sparse:nonzero=2", features=3, points=5, prior=2.0)
    assert sparse.check().make_task() == SparseLinear(3, 5, prior=2.0, nonzero=2)
    assert TrainConfig.from_json(sparse.to_json()) == sparse
    for config, reason in (
        (TrainConfig.of(task="linear:lags=2"), "cannot read 'lags=2' in the task linear"),
        (TrainConfig.of(task="relu_network", prior=2.0), "the task relu_network has no 'prior'"),
        (TrainConfig.of(task="linaer:noise=1"), "did you mean linear"),
        (TrainConfig.of(task="linear:features=3"), "features is given twice"),
        (TrainConfig.of(task="linear", noise=-1.0), "noise must be 0 or more"),
        (TrainConfig.of(hold=1.0), r"hold must lie in \[0, 1\)"),
        (TrainConfig.of(optimiser="mun"), "did you mean muon"),
        (TrainConfig.of(early_weight=-1.0), "early_weight must be at least 0"),
    ):
        with pytest.raises(BadConfig, match=reason):
            config.check()


def test_the_learning_rate_warms_up_holds_and_comes_down():
    config = TrainConfig.of(lr=1.0, warmup=10, steps=110, schedule="cosine")
    rates = [rate_factor(config, step) for step in range(110)]
    assert rates[:10] == pytest.approx([(k + 1) / 10 for k in range(10)])
    assert rates[10] == 1 and rates[60] == pytest.approx(0.5) and rates[109] < 1e-3
    assert rate_factor(config.changed(schedule="constant"), 100) == 1
    linear = config.changed(steps=100, schedule="linear", hold=0.4)
    rates = [rate_factor(linear, step) for step in range(100)]
    assert rates[9:41] == [1.0] * 32 and rates[4] == 0.5
    assert rates[70] == pytest.approx(0.5) and rates[99] == pytest.approx(1 / 60)


def test_a_curriculum_grows_with_the_step_or_over_a_share_of_the_run_and_ends_full():
    config = TrainConfig.of(features=8, start_features=5, feature_every=10)
    assert [live_features(config, step) for step in (0, 9, 10, 29, 30, 999)] == [5, 5, 6, 7, 8, 8]
    assert live_features(TrainConfig.of(features=8), 0) == 8
    share = TrainConfig.of(features=20, start_features=5, curriculum=0.15, steps=1000)
    live = [live_features(share, step) for step in range(1000)]
    assert live[0] == 5 and live[149] == 20 and live[150:] == [20] * 850 and live == sorted(live)


def test_a_recipe_sets_everything_at_once_and_changes_win():
    config = TrainConfig.following("fast", "algoformer", steps=7, lr=0.1)
    expected = {"optimiser": "muon", "schedule": "linear", "bias": False, "zero_output": True, "recipe": "fast"}
    expected |= {"model": "algoformer", "steps": 7, "lr": 0.1, "muon_lr": 0.005}
    assert expected.items() <= config.options().items()
    assert TrainConfig.following() == TrainConfig()
    with pytest.raises(BadConfig, match="did you mean fast"):
        TrainConfig.following("fas")


def test_what_is_automatic_is_settled_by_the_device():
    config = TrainConfig.following("fast")
    cpu, gpu = config.on(torch.device("cpu")).device, config.on(torch.device("cuda")).device
    assert (cpu.precision, cpu.compile, gpu.precision, gpu.compile) == ("fp32", "off", "bf16", "whole")


def test_an_option_of_the_wrong_type_is_refused():
    values = json.loads(TrainConfig().to_json())
    for wrong, reason in (
        ({"optimiser": {"lr": "fast"}}, "lr: 'fast' is not a number"),
        ({"seed": 0.5}, "seed: 0.5 is not a whole number"),
    ):
        with pytest.raises(BadConfig, match=reason):
            TrainConfig.from_json(json.dumps(values | wrong))
    assert TrainConfig.from_json(json.dumps(values | {"optimiser": {"lr": 1}})).optimiser.lr == 1.0
