"""`emulon plant` writes a folder that is the planted model it says."""

from pathlib import Path

import pytest

from emulon import cli, planted

pytest.importorskip("transformers", reason="planted models are GPT2Models (pip install 'emulon[hf]')")


def test_a_named_and_obfuscated_model_is_described_with_its_bound(tmp_path: Path, capsys) -> None:
    words = ["mixture:samples=3,first=last-value,second=moving-average,share=0.25", "--obfuscate", "all", "--seed", "4"]
    assert cli.main(["plant", *words, "--out", str(tmp_path)]) == 0
    made, said = planted.load(tmp_path), capsys.readouterr().out
    parts = {"first": {"name": "last value"}, "second": {"name": "moving average"}}
    plain = planted.plant("mixture", samples=3, share=0.25, **parts)
    assert (
        made.mechanism == plain.mechanism and made.build.obfuscations == planted.OBFUSCATIONS and made.build.seed == 4
    )
    assert made.name in said and made.error_bound in said and f'from_pretrained("{tmp_path}")' in said
    xs, ys = made.draw(8)
    made.certificate.verify(made(xs, ys), plain.algorithm(xs, ys))


def test_a_seed_draws_one(tmp_path: Path, capsys) -> None:
    assert cli.main(["plant", "--seed", "7", "--dtype", "float32", "--out", str(tmp_path)]) == 0
    assert planted.load(tmp_path).mechanism == planted.drawn_mechanism(7)
    assert "float32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "NAME or --seed is missing"),
        (["sgd:stepsize=1"], "did you mean step_size?"),
        (["sgd:features=2.5"], "features is a whole number"),
        (["sgd:step_size=-1"], "step_size of sgd is 0 or more, got -1"),
        (["ridge:ridge=0"], "ridge of ridge is"),
        (["momentum:decay=nan"], "decay of momentum is 0 or more, got nan"),
        (["switch:first=rigde"], "did you mean ridge?"),
        (["last-value", "--obfuscate", "trned"], "did you mean rotated?"),
        (["last-value", "--obfuscate", "all", "--strength", "3"], "a strength between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path, capsys, words: list[str], reason: str) -> None:
    assert cli.main(["plant", *words, "--out", str(tmp_path / "never")]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1 and not (tmp_path / "never").exists()


def test_the_command_of_02_is_still_there(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["specimen", "last-value:samples=2", "--disguise", "permuted", "--out", str(tmp_path)]
    assert cli.main(words) == 0 and planted.load(tmp_path).build.obfuscations == ("permuted",)
    told = capsys.readouterr().err
    assert "specimen is plant since 0.3" in told and "--disguise is --obfuscate since 0.3" in told
