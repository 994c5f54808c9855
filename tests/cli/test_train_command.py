"""`emulon train`: every field of the configuration is an option, and one line says what is wrong."""

from pathlib import Path

import pytest

from emulon import cli
from emulon.cli import options_of
from emulon.cli.train import Options
from emulon.training import PRESETS, TrainConfig
from emulon.training.configuration import OPTIONS


def options(*words: str) -> Options:
    return options_of("train", words)


def test_every_field_is_a_flag():
    for name, option in OPTIONS.items():
        if option.kinds == (int,):
            assert options("standard", f"--{name.replace('_', '-')}", "7").config.options()[name] == 7
    config = options("algoformer", "--task", "sparse", "--no-fused", "--noise", "0.5").config
    assert config == TrainConfig.of(model="algoformer", task="sparse", fused=False, noise=0.5)
    assert options("standard", "--out=here").out == Path("here")


def test_a_preset_gives_the_defaults_and_flags_change_them():
    chosen = options("standard", "--preset", "small", "--seed", "3", "--out=here")
    assert (chosen.config, chosen.out) == (PRESETS["small"].changed(seed=3), Path("here"))
    assert all(preset.check() for preset in PRESETS.values())


def test_a_recipe_gives_defaults_too_and_a_flag_has_the_last_word():
    assert options("algoformer", "--recipe", "fast").config == TrainConfig.following("fast", "algoformer")
    changed = options("standard", "--recipe", "fast", "--preset", "small", "--lr", "0.5").config
    assert (changed.optimiser.lr, changed.optimiser.optimiser, changed.task.features) == (0.5, "muon", 5)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["standard", "--recipe", "fats"], "did you mean fast?"),
        (["standard", "--steps", "10", "--resme", "x"], "did you mean --resume?"),
        (
            ["standard", "--task", "relu_network", "--prior", "2", "--out", "never"],
            "the task relu_network has no 'prior'",
        ),
        (["standard", "--loops", "2", "--out", "never"], "the model standard has no 'loops'"),
        (["standard", "--batch", "0"], "batch must be at least 1"),
        (["--resume", "a", "--steps", "3"], "nothing else"),
        (["--resume", "a"], "a"),
        (["standard", "--preset", "smal"], "did you mean small?"),
        (["standard", "--out"], "--out needs a value"),
        ([], "say which model to train: standard, looped, algoformer"),
    ],
)
def test_a_wrong_request_ends_with_code_2_and_one_line(words, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", *words]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and error.startswith("emulon train: ")
    assert not list(tmp_path.iterdir())  # refused before anything is built
