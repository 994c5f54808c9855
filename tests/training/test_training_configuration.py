"""The configuration is the command line is the config.json; what is wrong in it is said in one line."""

import dataclasses
import json

import pytest

from emulon.training import PRESETS, BadConfig, TrainConfig
from emulon.training.command import main, parse
from emulon.training.schedule import live_features, live_points, rate_factor


def test_a_configuration_survives_its_json():
    config = TrainConfig(model="looped", noise=0.5, loops=7, lr=3e-4)
    assert TrainConfig.from_json(config.to_json()) == config


def test_every_field_is_a_flag():
    for field in dataclasses.fields(TrainConfig):
        if field.name != "model" and field.type == "int":
            config, _ = parse(["standard", f"--{field.name.replace('_', '-')}", "7"])
            assert getattr(config, field.name) == 7
    config, out = parse(["algoformer", "--task", "sparse", "--no-fused", "--noise", "0.5", "--out", "here"])
    assert (config.model, config.task, config.fused, config.noise, str(out)) == (
        "algoformer",
        "sparse",
        False,
        0.5,
        "here",
    )


def test_a_preset_gives_the_defaults_and_flags_change_them():
    config, out = parse(["standard", "--preset", "small", "--seed", "3", "--out=here"])
    assert (config, str(out)) == (dataclasses.replace(PRESETS["small"], seed=3), "here")
    assert all(preset.check() for preset in PRESETS.values())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["standard", "--feature", "5"], "did you mean --features"),
        (["standrad"], "did you mean standard"),
        (["standard", "--task", "linaer"], "did you mean linear"),
        (["standard", "--steps", "10", "--resme", "x"], "did you mean --resume"),
        (["standard", "--task", "linear", "--lags", "2", "--out", "never"], "the task linear has no 'lags'"),
        (["standard", "--loops", "2", "--out", "never"], "the model standard has no 'loops'"),
        (["standard", "--batch", "0"], "batch must be at least 1"),
        (["--resume", "a", "--steps", "3"], "nothing else"),
        (["standard", "--preset", "smal"], "did you mean small"),
        (["standard", "--out"], "--out needs a value"),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_one_line(args, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())  # refused before anything is built


def test_a_value_of_the_wrong_type_ends_with_code_2_too(capsys):
    assert main(["standard", "--steps", "many"]) == 2
    assert "many" in capsys.readouterr().err
    assert main(["standard", "--help"]) == 0


def test_help_and_nothing_show_the_usage(capsys):
    assert main(["--help"]) == 0 and main([]) == 2
    assert "emulon train --resume RUN" in capsys.readouterr().out


def test_unknown_keys_and_other_versions_are_refused():
    values = json.loads(TrainConfig().to_json())
    with pytest.raises(BadConfig, match="did you mean batch"):
        TrainConfig.from_json(json.dumps(values | {"batsch": 3}))
    with pytest.raises(BadConfig, match="version 0"):
        TrainConfig.from_json(json.dumps({key: value for key, value in values.items() if key != "version"}))
    with pytest.raises(BadConfig, match="not JSON"):
        TrainConfig.from_json("{")


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
