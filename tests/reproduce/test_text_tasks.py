"""Tasks over text: words and back, batches of like length, and what is asked of them."""

import dataclasses

import few_texts
import pytest
import torch

from emulon.core.errors import EmulonError
from emulon.tasks import at_step, read_task
from emulon.tasks.task import NOT_ASKED, PAD
from reproduce.text.corpora import END, START, BadText, Tokeniser, load_corpus
from reproduce.text.tasks import Classification, Translation

LONGEST = 24


@pytest.fixture(scope="module")
def translation(corpora):
    return Translation(corpora["translation"], LONGEST)


@pytest.fixture(scope="module")
def classification(corpora):
    return Classification(corpora["classification"], LONGEST)


@pytest.mark.parametrize("text", ["Ein Hund läuft.", "naïve café, 3 €", "日本 🐕", "two  blanks"])
def test_any_text_comes_back_from_its_words_and_as_the_library_writes_it(translation, text):
    tokeniser = translation.corpus.tokeniser
    [words] = tokeniser.encode([text])
    assert tokeniser.decode([START, *words, END, PAD]) == text
    assert tokeniser.decode(words) == tokeniser._encoder.decode(words).strip()


def test_a_corpus_reads_back_as_it_was_written(corpora, translation):
    made, read = few_texts.translations(), translation.corpus
    assert read.tokeniser.text == made.tokeniser.text and read.kind == "translation"
    for name, split in made.splits.items():
        again = read.split(name)
        assert [again.texts[k] for k in range(len(again))] == [split.texts[k] for k in range(len(split))]
        assert again.references == split.references
    assert read.split("test").references[0] == few_texts.PAIRS[3][1] and not read.split("train").references
    classes = load_corpus(corpora["classification"], "classification")
    assert classes.classes == few_texts.CLASSES
    assert torch.equal(classes.split("test").classes, few_texts.topics().split("test").classes)


def test_the_tokeniser_and_training_never_see_a_text_of_the_test_split():
    pairs = {"train": [("ab", "c"), ("qqq", "zz")], "validation": [("v", "w")], "test": [("qqq", "q")]}
    corpus = few_texts.make_corpus("translation", pairs, 300)
    assert len(corpus.split("train")) == 1
    assert not any(set("qz") & set(word) for word in corpus.tokeniser.words if len(word) > 1 and word[0] != "<")


def test_a_prompt_is_the_source_then_the_target_one_word_behind_what_is_asked(translation):
    split = translation.corpus.split("train")
    prompts = translation.prompts_of(split, torch.tensor([0]))
    source, target = split.texts[0], split.answers[0]
    words, places = prompts.tokens[0].unbind(-1)
    assert words[:LONGEST].tolist() == source + [PAD] * (LONGEST - len(source))
    assert words[LONGEST:].tolist() == [START, *target] + [PAD] * (LONGEST - 1 - len(target))
    assert places.tolist() == list(range(2 * LONGEST))
    assert prompts.targets[0, :, 0].tolist() == [*target, END] + [NOT_ASKED] * (LONGEST - 1 - len(target))
    assert torch.equal(translation.asked(prompts.tokens.float()), prompts.tokens[:, LONGEST:].float())


def test_places_do_not_depend_on_the_bucket(translation):
    short = translation.buckets[0]
    assert isinstance(short, Translation) and short.only < LONGEST
    prompts = short.sample(at_step(torch.Generator(), 0, 0), 3)
    places = prompts.tokens[0, :, 1]
    assert places.tolist() == [*range(short.only), *range(LONGEST, LONGEST + short.only)]


def test_every_training_text_is_in_one_bucket_and_longer_pairs_in_none(corpora, translation, classification):
    rows = [bucket.rows("train") for bucket in translation.buckets]
    lengths = translation.lengths_of(translation.corpus.split("train"))
    assert sorted(torch.cat(rows).tolist()) == (lengths <= LONGEST).nonzero().squeeze(-1).tolist()
    for bucket, those in zip(translation.buckets, rows, strict=True):
        assert bool((lengths[those] <= bucket.only).all())
    few = Translation(corpora["translation"], 10)
    assert 0 < sum(bucket.size for bucket in few.buckets) < len(lengths)
    for longest in range(10, LONGEST):  # buckets whose edges are lengths that texts have
        rows = [bucket.rows("train") for bucket in Translation(corpora["translation"], longest).buckets]
        assert sorted(torch.cat(rows).tolist()) == (lengths <= longest).nonzero().squeeze(-1).tolist()
    cut = Classification(corpora["classification"], 6)  # cut instead
    assert sum(bucket.size for bucket in cut.buckets) == len(cut.corpus.split("train"))


@pytest.mark.parametrize("which", ["translation", "classification"])
def test_batches_are_functions_of_seed_and_step(which, request):
    task = request.getfixturevalue(which)
    batches = [task.sample(at_step(torch.Generator(), *where), 6).tokens for where in ((5, 2), (5, 2), (5, 3), (6, 2))]
    assert [torch.equal(batches[0], other) for other in batches[1:]] == [True, False, False]
    line = f"{which}:data={task.data},longest={task.longest}"
    assert read_task(line) == task


def test_evaluation_is_on_the_validation_split(translation):
    held = translation.held_out_prompts(0, 1000).tokens[:, :LONGEST, 0].tolist()
    split = translation.corpus.split("validation")
    texts = [split.texts[k] for k in range(len(split)) if translation.lengths_of(split)[k] <= LONGEST]
    assert sorted(held) == sorted(text + [PAD] * (LONGEST - len(text)) for text in texts)


def test_what_cannot_be_read_is_refused_in_one_line(corpora, translation, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing of the kind")
    for make, reason in (
        (lambda: Translation("nowhere.safetensors").corpus, "there is no corpus 'nowhere.safetensors'"),
        (lambda: Translation(str(broken)).corpus, "is no corpus that can be read"),
        (lambda: Translation(corpora["classification"]).corpus, "is a corpus for classification, not for translation"),
        (lambda: translation.encode(["  "]), "the text is empty"),
        (lambda: translation.encode(["Wiese " * 40]), f"and this run reads {LONGEST}; shorten it"),
        (lambda: Translation("x", 0), "longest=0 makes no sense"),
        (lambda: translation.sample(torch.Generator(), 2, torch.ones(0)), "texts have no features"),
        (lambda: Translation(corpora["translation"], 2).sample(torch.Generator(), 2), "no training text of at most 2"),
        (lambda: Tokeniser.trained_on(["a"], 100), "a vocabulary of 100 words cannot be"),
        (lambda: Tokeniser("{}"), "this is no tokeniser"),
        (
            lambda: few_texts.make_corpus("translation", {"train": [("a", "b")]}, 300),
            "there are no texts to validation",
        ),
    ):
        with pytest.raises(EmulonError, match=reason) as refused:
            make()
        assert "\n" not in str(refused.value)


def test_without_the_library_texts_are_still_written_but_not_read(translation, monkeypatch):
    tokeniser = Tokeniser(translation.corpus.tokeniser.text)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    assert tokeniser.decode(translation.corpus.split("test").texts[0])
    with pytest.raises(BadText, match=r"pip install 'emulon\[text\]'"):
        tokeniser.encode(["Hund"])


def test_a_run_needs_no_corpus_once_its_folder_keeps_the_words(classification, tmp_path):
    classification.save_data(tmp_path)
    kept = classification.with_saved_data(tmp_path)
    assert kept.vocabulary == classification.vocabulary and kept.corpus.classes == few_texts.CLASSES
    assert not kept.corpus.splits
    assert dataclasses.replace(classification).with_saved_data(tmp_path / "elsewhere") == classification
