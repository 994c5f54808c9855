"""A sealed split gives nothing of its truth away, scores what the open questions score, and refuses altered files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from emulon import cli, planted
from emulon.planted.benchmark import METHODS, ask, score
from emulon.planted.benchmark.split import BadEntry, Split, answered, read_entry, read_truth, scored, seal
from emulon.planted.benchmark.study import variant_of

pytest.importorskip("transformers", reason="planted models are GPT2Models (pip install 'emulon[hf]')")
SECRET = (1, 2)


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def truth(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("sealed") / "split"
    return seal(folder, 2, architecture=request.param, secret=SECRET)


def folder_of(truth: Path) -> Path:
    return truth.with_name("split")


def altered(path: Path, place: Path, change: tuple[str, str]) -> Path:
    text = path.read_text()
    assert change[0] in text
    place.write_text(text.replace(*change, 1))
    return place


def test_answers_to_a_sealed_split_score_what_the_open_questions_score(truth: Path, tmp_path: Path) -> None:
    revealed = read_truth(truth)
    architecture = json.loads((folder_of(truth) / "commitment.json").read_text())["architecture"]
    for method in ("linear-probe", "attribution-patching"):
        entry = answered(method, folder_of(truth))
        assert entry.cells == (), "nothing is scored before the truth is out"
        cells = {(one["measure"], one["variant"]): one["score"]["value"] for one in scored(entry, revealed).cells}
        for name, model in revealed[1].models.items():
            made = variant_of(planted.sample(model.seed, architecture=architecture), model.variant, model.seed)
            questions = ask(made, model.seed)
            open_scores = score(METHODS[method](questions.subject), questions)
            assert model.seed == SECRET[int(name)]
            for measure, value in open_scores.items():
                assert cells[measure, model.variant] == pytest.approx(value, abs=1e-6)


def test_the_folder_names_no_seed_mechanism_or_place(truth: Path) -> None:
    told = json.loads(truth.read_text())
    written = "".join(path.read_text(errors="ignore") for path in folder_of(truth).rglob("*.json"))
    assert all(
        word not in written for word in (told["nonce"], "sgd(", "moving average(", "step_size", "held", "mechanism")
    )
    assert sorted(path.name for path in (folder_of(truth) / "000").iterdir()) == [
        "config.json", "model.safetensors", "questions.json", "questions.safetensors",
    ]  # fmt: skip


def test_what_was_altered_is_refused_in_a_line(truth: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "entry.json"
    entered = ["--split", "sealed", "--folder", str(folder_of(truth)), "--json", str(path)]
    assert cli.main(["benchmark", "random", *entered]) == 0
    verify = ["benchmark", "--truth", str(truth), "--verify"]
    assert cli.main([*verify, str(path), "--json", str(tmp_path / "with-scores.json")]) == 0
    assert "circuit" in capsys.readouterr().out
    told = json.loads((tmp_path / "with-scores.json").read_text())
    value = str(told["cells"][0]["score"]["value"])
    named = json.loads(path.read_text())["answers"]["000"]["which"]["name"]
    for file, change, why in (
        (path, (f'"name": "{named}"', '"name": "another"'), "was altered"),
        (path, ('"method": "random"', '"method": "mine"'), "was altered"),
        (path, ('"format"', '"formats"'), "lacks the field"),
        (tmp_path / "with-scores.json", (f'"value": {value}', '"value": 0.123'), "not those of the recorded answers"),
    ):
        assert cli.main([*verify, str(altered(file, tmp_path / "altered.json", change))]) == 2
        error = capsys.readouterr().err
        assert why in error and error.count("\n") == 1
    other = altered(truth, tmp_path / "truth.json", ('"nonce": "', '"nonce": "0'))
    assert cli.main(["benchmark", "--truth", str(other), "--verify", str(path)]) == 2
    assert "was committed to" in capsys.readouterr().err
    assert cli.main(["benchmark", "--verify", str(path)]) == 2 and "is sealed" in capsys.readouterr().err


def test_a_split_that_is_not_what_was_committed_to_is_refused(truth: Path, tmp_path: Path) -> None:
    questions = folder_of(truth) / "001" / "questions.json"
    before = questions.read_text()
    questions.write_text(before.replace("sgd", "sgb", 1))
    try:
        with pytest.raises(BadEntry, match=r"001 is not what commitment\.json says"):
            answered("random", folder_of(truth))
    finally:
        questions.write_text(before)


def test_answers_to_public_models_are_scored_at_once_and_again(tmp_path: Path) -> None:
    entry = answered("coordinate-probe", Split("public", "gpt2", 2, 1, ("plain", "rotated"), None))
    path = tmp_path / "entry.json"
    path.write_text(json.dumps(asdict(entry)))
    again = scored(read_entry(path))
    assert {cell["measure"] for cell in again.cells} == {"where", "found", "what"} and len(again.answers) == 4
    assert [cell["score"] for cell in again.cells] == [cell["score"] for cell in entry.cells]


def test_the_entries_that_are_kept_have_the_scores_of_their_answers() -> None:
    kept = Path(__file__).parents[2] / "results" / "benchmark" / "sealed"
    revealed = read_truth(kept / "truth.json")
    methods = set()
    for path in kept.glob("*.entry.json"):
        entry = read_entry(path)
        assert entry.cells and scored(entry, revealed)
        methods.add(entry.method)
    assert methods == set(METHODS)
