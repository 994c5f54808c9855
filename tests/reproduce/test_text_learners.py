"""Learners of text: padding is not seen, the future is not seen, and the loss is cross entropy over loop counts."""

import dataclasses

import pytest
import torch

from emulon.core.errors import EmulonError
from emulon.tasks.task import NOT_ASKED
from emulon.training import TrainConfig

MODELS = {"standard": {"layers": 2}, "looped": {"loops": 3, "window": 2}, "algoformer": {"loops": 3, "window": 2}}
LONGEST = 20


def config(model, task, corpora, **changes):
    line = f"{task}:data={corpora[task]},longest={LONGEST}"
    return TrainConfig.of(model=model, task=line, width=16, heads=2, init=0.3, device="cpu", **MODELS[model], **changes)


def made(model, task, corpora, **changes):
    chosen = config(model, task, corpora, **changes)
    task = chosen.make_task()
    return chosen.make_learner(task).eval(), task


def one_by_one(task, count):
    """The first test texts, together and each padded no further than it needs."""
    split = task.corpus.split("test")
    lengths = task.lengths_of(split)
    rows = (lengths <= task.longest).nonzero().squeeze(-1)[:count]
    alone = []
    for row in rows:
        short = dataclasses.replace(task, only=int(lengths[row]))
        alone.append(short.prompts_of(split, row.unsqueeze(0)))
    return task.prompts_of(split, rows), alone


def last_states(learner, tokens):
    return learner.states(learner.embed(tokens), 1, learner.visible(tokens))[-1]


@pytest.mark.parametrize(
    ("model", "kind", "fused"),
    [
        ("standard", "translation", True),
        ("standard", "classification", False),
        ("looped", "classification", True),
        ("algoformer", "translation", False),
    ],
)
def test_a_padded_batch_gives_the_loss_of_its_texts_one_by_one(model, kind, fused, corpora):
    learner, task = made(model, kind, corpora, fused=fused)
    together, alone = one_by_one(task, 6)
    assert together.tokens.shape[1] > min(each.tokens.shape[1] for each in alone)
    with torch.no_grad():
        whole = learner.loss(together.tokens, together.targets, task.asked)
        counts = torch.tensor([(each.targets != NOT_ASKED).sum().item() for each in alone])
        losses = torch.stack([learner.loss(each.tokens, each.targets, task.asked) for each in alone])
    assert abs(whole - (losses * counts).sum() / counts.sum()) < 1e-5 * whole


@pytest.mark.parametrize("model", MODELS)
def test_no_token_sees_the_future(model, corpora):
    learner, task = made(model, "translation", corpora)
    prompts = one_by_one(task, 4)[0]
    changed = prompts.tokens.clone()
    changed[:, LONGEST + 4 :, 0] = 7
    with torch.no_grad():
        before, after = learner(prompts.tokens), learner(changed)
    assert torch.equal(before[:, : LONGEST + 4], after[:, : LONGEST + 4])
    assert not torch.allclose(before[:, LONGEST + 4], after[:, LONGEST + 4])


@pytest.mark.parametrize("model", MODELS)
def test_an_encoder_sees_the_whole_text_and_a_translation_its_source(model, corpora):
    for kind, place, seer in (("classification", 5, 0), ("translation", 2, LONGEST)):
        learner, task = made(model, kind, corpora)
        prompts = one_by_one(task, 2)[0]
        changed = prompts.tokens.clone()
        changed[:, place, 0] = 7
        with torch.no_grad():
            before, after = (last_states(learner, tokens)[:, seer] for tokens in (prompts.tokens, changed))
        assert not torch.allclose(before, after)


def test_a_class_is_read_off_the_mean_of_all_that_is_no_padding(corpora):
    learner, task = made("standard", "classification", corpora)
    prompts, alone = one_by_one(task, 4)
    with torch.no_grad():
        states = last_states(learner, prompts.tokens)
        by_hand = [states[text, : each.tokens.shape[1]].mean(dim=0) for text, each in enumerate(alone)]
        torch.testing.assert_close(learner(prompts.tokens)[:, 0], learner.read_out(torch.stack(by_hand)))


def test_the_loss_is_cross_entropy_over_the_last_loop_counts_and_the_words_that_are_asked(corpora):
    learner, task = made("algoformer", "translation", corpora)
    prompts = one_by_one(task, 3)[0]
    states = learner.states(learner.embed(prompts.tokens), None, learner.visible(prompts.tokens))
    scores = learner.read_out(task.asked(states)).log_softmax(-1)
    wanted = prompts.targets[..., 0]
    terms = [
        -scores[turn, text, place, wanted[text, place]]
        for turn in range(2)
        for text, place in (wanted != NOT_ASKED).nonzero().tolist()
    ]
    by_hand = torch.stack(terms).mean()
    torch.testing.assert_close(learner.loss(prompts.tokens, prompts.targets, task.asked), by_hand)
    assert len(states) == 2


def test_what_makes_no_sense_with_texts_is_refused(corpora):
    text = config("standard", "translation", corpora)
    for changes, reason in (
        ({"early_weight": 0.2}, "early_weight is about in-context samples, and texts have none"),
        ({"features": 5}, "features is about in-context samples"),
        ({"dropout": 1.5}, "dropout must lie in"),
    ):
        with pytest.raises(EmulonError, match=reason):
            chosen = text.changed(**changes).check()
            chosen.make_learner(chosen.make_task())
