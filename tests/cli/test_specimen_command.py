"""`emulon specimen` writes a folder that is the specimen it says."""

from pathlib import Path

import pytest

from emulon import cli
from emulon import planted as specimens

pytest.importorskip("transformers", reason="specimens are GPT2Models (pip install 'emulon[hf]')")


def test_a_named_one_in_disguise_says_what_it_is_and_what_is_promised(tmp_path: Path, capsys) -> None:
    words = ["mixture:samples=3,first=last-value,second=moving-average,share=0.25", "--disguise", "all", "--seed", "4"]
    assert cli.main(["specimen", *words, "--out", str(tmp_path)]) == 0
    made, said = specimens.load(tmp_path), capsys.readouterr().out
    parts = {"first": {"name": "last value"}, "second": {"name": "moving average"}}
    plain = specimens.specimen_named("mixture", samples=3, share=0.25, **parts)
    assert made.mechanism == plain.mechanism and made.build.disguises == specimens.DISGUISES and made.build.seed == 4
    assert made.name in said and made.promise in said and f'from_pretrained("{tmp_path}")' in said
    xs, ys = made.draw(8)
    made.certificate.verify(made(xs, ys), plain.algorithm(xs, ys))


def test_a_seed_draws_one(tmp_path: Path, capsys) -> None:
    assert cli.main(["specimen", "--seed", "7", "--dtype", "float32", "--out", str(tmp_path)]) == 0
    assert specimens.load(tmp_path).mechanism == specimens.drawn_mechanism(7)
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
        (["last-value", "--disguise", "trned"], "did you mean turned?"),
        (["last-value", "--disguise", "all", "--strength", "3"], "a strength between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(tmp_path: Path, capsys, words: list[str], reason: str) -> None:
    assert cli.main(["specimen", *words, "--out", str(tmp_path / "never")]) == 2
    said = capsys.readouterr().err
    assert reason in said and said.count("\n") == 1 and not (tmp_path / "never").exists()
