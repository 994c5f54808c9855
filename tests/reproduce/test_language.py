"""Learners of text trained, resumed and asked: by search, by class, and from their folder alone."""

import dataclasses
import math
import shutil

import few_texts
import pytest
import torch

from emulon import cli
from emulon.training import TrainConfig, load_learner, resume, train
from emulon.training.run_folder import checkpoints, read_checkpoint
from reproduce.arguments import run_script
from reproduce.text import __main__ as script
from reproduce.text.corpora import END, BadText
from reproduce.text.language import Share, accuracy, bleu, entropy, open_run, translations
from reproduce.text.tasks import Classification, Translation

LONGEST = 24
SMALL = TrainConfig.of(width=32, heads=2, batch=16, lr=3e-3, evaluate_every=20, device="cpu", quiet=True, threads=1)


def command(name, *words):
    return run_script(name, script.main, [name, *words]) if name in script.COMMANDS else cli.main([name, *words])


def begin(task, corpora, out, **changes):
    config = SMALL.changed(task=f"{task}:data={corpora[task]},longest={LONGEST}", **changes)
    return train(config, out)


@pytest.fixture(scope="module")
def translator(corpora, tmp_path_factory):
    """A run folder on its own: the corpus that it was trained on is gone."""
    out = tmp_path_factory.mktemp("runs") / "de-en"
    copy = {"translation": shutil.copy(corpora["translation"], out.parent / "gone.safetensors")}
    begin("translation", copy, out, layers=1, steps=130, lr=5e-3, evaluate_every=200)
    (out.parent / "gone.safetensors").unlink()
    return out


@pytest.fixture(scope="module")
def classifier(corpora, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "topics"
    begin("classification", corpora, out, model="looped", loops=3, window=2, steps=30)
    return out


def test_a_run_translates_from_its_folder_alone(translator, capsys):
    text = "Ein hund schläft im Haus."
    for words in ([text], [text, "--beams", "3"], [text, "Ein vogel springt."]):
        assert command("translate", str(translator), *words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["A dog sleeps in the house."] * 2 and len(said) == 4
    assert load_learner(translator)[1].task.task.endswith(f"gone.safetensors,longest={LONGEST}")


def test_a_run_classifies(classifier, corpora, capsys):
    assert command("classify", str(classifier), "The snow comes again.") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "weather" and len(said) == 3
    chances = [float(line.split()[-1]) for line in said[1:]]
    assert sum(chances) == pytest.approx(1, abs=2e-3) and chances[0] > 0.5
    learner, task = open_run(classifier, Classification)
    task = dataclasses.replace(task, data=corpora["classification"])
    found = accuracy(learner, task)
    learner.window = 1  # the loss of the last loop count alone
    prompts = task.prompts_of(task.corpus.split("test"), task.rows("test"))
    loss = learner.loss(prompts.tokens, prompts.targets, task.asked).item()
    assert entropy(learner, task) == pytest.approx(loss, rel=1e-5)
    assert found.value > 0.9 and found.asked == len(few_texts.TOPICS[3::4])


def test_search_in_a_batch_is_search_one_by_one(translator):
    learner, task = open_run(translator, Translation)
    sources = task.encode([german for german, _ in few_texts.PAIRS[3::16]])
    for beams in (1, 3):
        alone = [words for source in sources for words in translations(learner, task, [source], beams)]
        assert translations(learner, task, sources, beams) == alone


def chance_of(learner, task, source, words):
    """The logarithm of the probability of an answer and its end."""
    tokens = task.pair(torch.tensor([source]), torch.tensor([[1, *words]]))
    with torch.no_grad():
        scores = learner(tokens)[0, len(source) :].log_softmax(-1)
    return sum(scores[place, word].item() for place, word in enumerate([*words, END]))


def test_one_beam_takes_the_most_probable_word_and_more_find_no_worse_answers(translator):
    learner, task = open_run(translator, Translation)
    gained = []
    for source in task.encode(["Ein pferd frisst im Haus.", "Haus Haus Wiese", "grün"]):
        [greedy], [best] = translations(learner, task, [source]), translations(learner, task, [source], 6)
        tokens = task.pair(torch.tensor([source]), torch.tensor([[1, *greedy]]))
        with torch.no_grad():
            assert learner(tokens)[0, len(source) :].argmax(-1).tolist()[: len(greedy)] == greedy
        ours, theirs = (chance_of(learner, task, source, words) / (len(words) + 1) for words in (best, greedy))
        gained.append(ours - theirs)
    assert min(gained) > -1e-5


def test_a_resumed_run_with_dropout_ends_with_the_same_bits(corpora, tmp_path):
    begin("translation", corpora, tmp_path / "whole", steps=8, checkpoint_every=4, layers=1, dropout=0.2)
    shutil.copytree(tmp_path / "whole", tmp_path / "broken")
    checkpoints(tmp_path / "broken" / "checkpoints")[-1].unlink()
    resume(tmp_path / "broken")
    whole, again = (read_checkpoint(tmp_path / name / "checkpoints")[1] for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def refusal(capsys, name, *words):
    assert command(name, *words) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    return said.err


def test_bad_requests_are_one_line_each(translator, classifier, tmp_path, capsys):
    run, topics = str(translator), str(classifier)
    assert "the text is empty" in refusal(capsys, "translate", run, " ")
    assert f"and this run reads {LONGEST}; shorten it" in refusal(capsys, "translate", run, "Wiese " * 30)
    assert f"and this run reads {LONGEST - 1}; shorten it" in refusal(capsys, "classify", topics, "north " * 30)
    assert "a run on classification, and this asks for one on translation" in refusal(capsys, "translate", topics, "a")
    assert "a run on translation, and this asks for one on classification" in refusal(capsys, "classify", run, "a")
    assert "holds no run" in refusal(capsys, "classify", str(tmp_path), "a")
    assert "required: TEXT" in refusal(capsys, "translate", run)
    nowhere = ["train", "standard", "--task", "translation:data=nowhere", "--out", str(tmp_path / "new")]
    assert "there is no corpus 'nowhere'" in refusal(capsys, *nowhere) and not (tmp_path / "new").exists()
    assert "does not ask for a y from an x" in refusal(capsys, "identify", run)


def test_wilsons_interval_solves_its_quadratic_and_stays_within_0_and_1():
    for share in (Share(85, 100), Share(0, 20), Share(20, 20), Share(6900, 7600)):
        low, high = share.interval
        assert 0 <= low <= share.value <= high <= 1
        for end in (low, high):
            if 0 < end < 1:
                off = abs(share.value - end) / math.sqrt(end * (1 - end) / share.asked)
                assert off == pytest.approx(1.96, abs=1e-3)


def test_bleu_is_sacrebleus(monkeypatch):
    references = ["A dog runs over the green meadow.", "Two cats sleep in the house today."]
    assert bleu(references, references) == (pytest.approx(100), 0)
    score, half = bleu(["A dog runs over a green field.", references[1]], references, resamples=50)
    assert 20 < score < 90 and half > 0
    monkeypatch.setitem(__import__("sys").modules, "sacrebleu", None)
    with pytest.raises(BadText, match="pip install"):
        bleu(references, references)
