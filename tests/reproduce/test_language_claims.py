"""AlgoFormer on language: the measurements on a handful of sentences, and rules that can say no."""

import sys
from dataclasses import replace

import pytest

from emulon.core.errors import WorkFailed
from emulon.report.figure import chart
from reproduce.algoformer import language, section_5_6, table_1, table_2
from reproduce.claim import Scale, all_claims
from reproduce.record import PARTS, measure, path_of

TINY = {"width": 8, "heads": 1, "batch": 8, "epochs": 1.0, "threads": 1, "device": "cpu"}


def shrunk(claim, **sizes):
    """The claim's scale gpu at a size for tests: its precision and patience, but few words, layers and loops."""
    gpu = claim.scales["gpu"].sizes
    whole = gpu | {"training": gpu["training"] | TINY, "models": language.FEW, "seeds": 1} | sizes
    return replace(claim, scales={"gpu": Scale(0.1, whole)})


@pytest.fixture
def few(corpora, monkeypatch, tmp_path):
    """The corpora of tests where claims look for theirs."""
    folder = tmp_path / "corpora"
    folder.mkdir()
    for kind, name in (("translation", "multi30k"), ("classification", "ag_news")):
        (folder / f"{name}-300.safetensors").symlink_to(corpora[kind])
    monkeypatch.setenv("EMULON_CORPORA", str(folder))
    monkeypatch.setenv("EMULON_DATA", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_translations_are_kept_until_bleu_can_be_counted(few, monkeypatch):
    claim = shrunk(table_1.CLAIM, vocabulary=300, longest=12, floor=0)
    monkeypatch.setattr(table_1, "RESAMPLES", 10)
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "sacrebleu", None)
        with pytest.raises(WorkFailed, match="translations are kept; BLEU is counted by sacrebleu"):
            measure(claim, "gpu", 0, few)
    assert path_of(claim.name, "gpu", few, PARTS).exists()
    monkeypatch.setattr(table_1, "learned", None)  # nothing is trained again
    record = measure(claim, "gpu", 0, few)
    found = record.numbers["models"]
    assert set(found) == set(language.MODELS) and all(0 <= each["beam"][0] <= 100 for each in found.values())
    assert all(each["entropy"][0] > 1 for each in found.values())
    assert len(record.numbers["translations"][0]) == 4 and record.numbers["tested_on"] > 0
    assert record.verdict(claim).state == "cannot be tested here"
    assert chart(claim.figure(record.numbers)).startswith("<svg")


def test_data_sets_that_are_missing_are_named_and_the_others_tested(few):
    claim = shrunk(table_2.CLAIM, vocabulary=300, sets={"ag_news": 12, "yahoo": 12}, floors=False)
    record = measure(claim, "gpu", 0, few)
    missing = record.numbers["sets"]["yahoo"]["cannot"]
    assert "python -m reproduce.text corpus yahoo --vocabulary 300 --out" in missing
    assert "1 of 5 sets tested, not imdb, dbpedia, yelp, yahoo" in record.verdict(claim).reason
    shares = record.numbers["sets"]["ag_news"]["models"]
    assert all(each["asked"][0] >= each["right"][0] > 0 for each in shares.values())
    assert chart(claim.figure(record.numbers)).startswith("<svg")


@pytest.mark.parametrize("name", ["algoformer-table-1", "algoformer-table-2"])
def test_without_any_texts_a_claim_says_how_to_get_them(few, name, monkeypatch):
    monkeypatch.setenv("EMULON_CORPORA", str(few / "empty"))
    claim = all_claims()[name]
    record = measure(claim, "small", 0, few)
    verdict = record.verdict(claim)
    assert verdict.state == "cannot be tested here" and "reproduce.text corpus" in verdict.reason


def translated(entropy, beam, half=1.0):
    seeds = len(beam)
    spread = {"beam within": [half] * seeds, "greedy": beam, "entropy": [entropy] * seeds, "beam": beam}
    return spread | {"learning": [{"steps": [5], "entropy": [entropy]}] * seeds}


def test_table_1_is_not_tested_on_another_set_and_tells_how_that_went():
    def told(own, floor=25):
        others = {"standard": translated(2.0, [30.0, 31.0]), "looped": translated(2.1, [28.0, 28.5])}
        numbers = {"set": "x", "floor": floor, "tested_on": 9, "models": others | {"algoformer": own}}
        verdict = table_1.judge(numbers)
        return verdict.state, verdict.reason

    for own in ([33.0, 34.0], [27.0, 27.5]):
        state, reason = told(translated(1.9, own))
        assert state == "cannot be tested here" and "IWSLT 2015 is not to be had" in reason
    assert "behind neither" in told(translated(1.9, [28.0, 28.0]))[1]  # 28 + 1 is where the standard one's begins
    assert "behind standard, and" in told(translated(1.9, [27.0, 27.5]))[1]
    assert "behind standard" in told(translated(2.05, [33.0, 34.0]))[1]  # its cross entropy is behind
    assert "ahead of looped" in told(translated(1.9, [32.0, 32.5]))[1]
    assert told(translated(1.9, [33.0]), floor=40)[0] == "not tested at scale"


def test_what_a_step_costs_is_counted_at_any_size(tmp_path, monkeypatch):
    # fewer loops and layers, so that it is quick: the standard model has as many layers as AlgoFormer with 2 loops
    monkeypatch.setattr(section_5_6, "TRAINED", {"10, 10": (2, 2), "20, 15": (1, 1)})
    monkeypatch.setitem(language.PAPER, "standard", {"layers": 4})
    sizes = {"width": 16, "heads": 2, "vocabulary": 50, "words": 4}
    numbers = measure(replace(section_5_6.INFERENCE, scales={"small": Scale(0.1, sizes)}), "small", 0, tmp_path).numbers
    inference = numbers["inference"]
    # layers: 4; T; 1 + T + 1
    assert inference["10"]["algoformer"] == pytest.approx(12 / 4 * inference["10"]["standard"], rel=1e-6)
    assert section_5_6.share_of_ends(inference["20"]) == pytest.approx(2 / 22, rel=1e-6)
    assert section_5_6.share_of_ends(inference["200"]) == pytest.approx(2 / 202, rel=1e-6)
    # in training pre 1, loop 2 and post 2 times, where the standard model has 4 layers
    assert numbers["blocks"]["algoformer"] / numbers["blocks"]["standard"] == pytest.approx(5 / 4, rel=0.02)
    for claim in (section_5_6.INFERENCE, section_5_6.TRAINING):
        assert chart(claim.figure(numbers)).startswith("<svg")
