"""Trained modules of the public code: stacks beside models alone, and attention beside torch's own layer."""

from functools import partial

import pytest
import torch
from torch import nn

from reproduce.claim import Setting
from reproduce.emulation import modules
from reproduce.emulation.modules import Batches, MultiHeads, Predictor, Stack, TwoInputs, fit

MODELS, BATCH, N, D, HIDDEN, P, HEADS = 3, 4, 5, 2, 6, 9, 3
MAKE = {
    "heads": partial(MultiHeads, N, D, HIDDEN, 4, P - N, HEADS),
    "over keys": partial(TwoInputs, N, D, HIDDEN, P - N, True),
    "over queries": partial(TwoInputs, N, D, HIDDEN, P - N, False),
}


def test_a_stack_trains_every_model_as_if_it_were_alone():
    stack = Stack(MODELS, 0, MAKE["heads"])
    torch.manual_seed(0)
    alone = [MAKE["heads"]() for _ in range(MODELS)]
    draw = torch.Generator().manual_seed(1)
    data = [torch.randn(20, N, D, generator=draw), torch.randn(20, N, 4, generator=draw)]
    rows = torch.stack([torch.randperm(20, generator=draw)[:16] for _ in range(MODELS)])

    def loss(x, target, _):
        return (stack(x)[0] - target).square().mean(dim=(1, 2, 3)).sum()

    fit(stack, loss, Batches(data, rows, BATCH, 7), Setting({"epochs": 3, "lr": 1e-2}))
    batches, optimizers = Batches(data, rows, BATCH, 7), [torch.optim.Adam(m.parameters(), lr=1e-2) for m in alone]
    for _ in range(3):
        batches.shuffle()
        for _ in range(batches.steps):
            x, target, _ = batches.draw()
            for model, (module, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
                optimizer.zero_grad()
                nn.functional.mse_loss(module(x[model])[0], target[model]).backward()
                optimizer.step()
    with torch.no_grad():
        together, apart = stack(data[0].expand(MODELS, -1, -1, -1))[0], torch.stack([m(data[0])[0] for m in alone])
    assert torch.allclose(together, apart, atol=2e-5)
    assert (together - data[1]).abs().max() > 0.1  # they are not all one number


def every_token(extension, x):
    own = extension.project(x) * extension.modulation
    return torch.cat([own, extension.extra.expand(len(x), -1, -1)], dim=1)


def test_heads_are_torchs_over_all_tokens_with_the_learnable_ones_answers_cut_off():
    torch.manual_seed(0)
    made, x = MAKE["heads"](), torch.randn(BATCH, N, D)
    theirs = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
    parts = made.query, made.key, made.value
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "in_proj_bias": torch.cat([part.bias for part in parts]),
            "out_proj.weight": torch.eye(HIDDEN),
            "out_proj.bias": torch.zeros(HIDDEN),
        }
    )
    tokens = every_token(made.extension, x)
    mixed, weights = theirs(tokens, tokens, tokens, average_attn_weights=False)
    answers, own = made(x)
    torch.testing.assert_close(answers, made.out(mixed)[:, :N])
    torch.testing.assert_close(own, weights[:, :, :N])
    extra = made.extension.extra
    assert extra[:, 0].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1]) and (extra == extra[:, :1]).all()
    assert (made.extension.modulation == 1).all() and (own[..., N:] > 0).all()


@pytest.mark.parametrize("kind", ["over keys", "over queries"])
def test_two_inputs_normalise_over_the_axis_that_is_said(kind):
    """softmax(K Qᵀ) or softmax(Q Kᵀ) over all p × p pairs, normalised over the last axis."""
    torch.manual_seed(0)
    made, x, w = MAKE[kind](), torch.randn(BATCH, N, D + 1), torch.randn(BATCH, N, D)
    data = every_token(made.of_data, x)
    q, k, v = made.query(every_token(made.of_weights, w)), made.key(data), made.value(data)
    scores = q @ k.mT if kind == "over keys" else k @ q.mT
    torch.testing.assert_close(made(x, w)[0], (scores.softmax(-1) @ v)[:, :N])


def test_a_row_alone_attends_to_the_learnable_tokens():
    """One token of data and 99 learnable ones: no constant softmax, and the weights in the prompt change the answer."""
    torch.manual_seed(0)
    model = Predictor(1, 4, 8, 99, 2)
    x, (some, other) = torch.randn(6, 1, 4), torch.randn(2, 6, 4)
    answer, weights = model(x, some)
    assert weights.shape == (6, 2, 1, 100) and (weights[..., 0] < 0.5).all() and weights.std(dim=-1).min() > 0
    assert (answer - model(x, other)[0]).abs().min() > 0


def test_batches_show_every_row_of_a_stream_once_an_epoch():
    rows = torch.tensor([[3, 1, 4, 8], [2, 7, 6, 0]])
    batches = Batches([torch.arange(9)], rows, 2, seed=0)
    orders = []
    for _ in range(2):
        batches.shuffle()
        orders.append(torch.cat([batches.draw()[0] for _ in range(batches.steps)], dim=1))
        assert (orders[-1].sort(dim=1).values == rows.sort(dim=1).values).all()
    assert not torch.equal(*orders)
    again = Batches([torch.arange(9)], rows, 2, seed=0)
    again.shuffle()
    assert torch.equal(again.draw()[0], orders[0][:, :2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
def test_steps_recorded_in_a_graph_are_the_plain_ones(monkeypatch):
    ends = []
    for captured in (modules._captured, lambda step, device: step):
        monkeypatch.setattr(modules, "_captured", captured)
        stack = Stack(2, 0, partial(MultiHeads, N, D, HIDDEN, D, 4, HEADS))
        x = torch.randn(40, N, D, generator=torch.Generator().manual_seed(1)).cuda()
        rows = torch.arange(40, device="cuda").expand(2, -1)

        def loss(x, _, stack=stack):
            return (stack(x)[0] - x.flip(-1)).square().mean(dim=(1, 2, 3)).sum()

        fit(stack, loss, Batches([x], rows, 8, 0), Setting({"epochs": 6, "lr": 1e-2}))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in stack.parameters()]))
    assert torch.allclose(*ends, atol=1e-5) and ends[0].isfinite().all()
