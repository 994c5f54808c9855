"""Stacked modules beside plain ones, written from the public code's description with torch's own layers."""

import pytest
import torch
from torch import nn

from reproduce.claim import Setting
from reproduce.emulation import modules
from reproduce.emulation.modules import Batches, Linears, MultiHeads, Predictor, TwoInputs, fit

MODELS, BATCH, N, D, HIDDEN, P = 3, 4, 5, 2, 6, 9
HEADS = 3


def linear(stack: Linears, model: int) -> nn.Linear:
    width_in, width_out = stack.weight.shape[1:]
    made = nn.Linear(width_in, width_out)
    made.weight.data, made.bias.data = stack.weight[model].detach().T.clone(), stack.bias[model, 0].detach().clone()
    return made


class Extended(nn.Module):
    """All p tokens: those of the data, modulated, and the learnable ones behind them."""

    def __init__(self, stack, model):
        super().__init__()
        self.project = linear(stack.project, model)
        self.modulation = nn.Parameter(stack.modulation[model, 0].detach().clone())
        self.extra = nn.Parameter(stack.extra[model].detach().clone())

    def forward(self, x):
        return torch.cat([self.project(x) * self.modulation, self.extra.expand(len(x), -1, -1)], dim=1)


class Plain(nn.Module):
    """Multi-head attention over all p tokens, each of which asks; the first n answers are kept."""

    def __init__(self, stack, model):
        super().__init__()
        self.extended = Extended(stack.extension, model)
        self.query, self.key, self.value, self.out = (
            linear(part, model) for part in (stack.query, stack.key, stack.value, stack.out)
        )

    def forward(self, x):
        tokens = self.extended(x)
        q, k, v = (part(tokens).chunk(HEADS, dim=-1) for part in (self.query, self.key, self.value))
        each = [(a @ b.mT / a.shape[-1] ** 0.5).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]
        return self.out(torch.cat(each, dim=-1))[:, :N]


class PlainTwo(nn.Module):
    """Section 5.1's, with softmax(K Qᵀ) or softmax(Q Kᵀ) over all p × p pairs, normalised over the last axis."""

    def __init__(self, stack, model):
        super().__init__()
        self.over_keys = stack.over_keys
        self.data, self.weights = (Extended(part, model) for part in (stack.of_data, stack.of_weights))
        self.query, self.key, self.value = (linear(part, model) for part in (stack.query, stack.key, stack.value))

    def forward(self, x, w):
        data = self.data(x)
        q, k, v = self.query(self.weights(w)), self.key(data), self.value(data)
        scores = q @ k.mT if self.over_keys else k @ q.mT
        return (scores.softmax(-1) @ v)[:, :N]


def stacked(kind):
    draw = torch.Generator().manual_seed(0)
    if kind == "heads":
        return MultiHeads(MODELS, N, D, HIDDEN, 4, extra=P - N, heads=HEADS, draw=draw), Plain, 1
    return TwoInputs(MODELS, N, D, HIDDEN, extra=P - N, over_keys=kind == "over keys", draw=draw), PlainTwo, 2


@pytest.mark.parametrize("kind", ["heads", "over keys", "over queries"])
def test_a_stack_trains_every_model_as_if_it_were_alone(kind):
    stack, plain, inputs = stacked(kind)
    alone = [plain(stack, model) for model in range(MODELS)]
    draw = torch.Generator().manual_seed(1)
    width = D if kind == "heads" else D + 1
    data = [torch.randn(20, N, width, generator=draw), torch.randn(20, N, D, generator=draw)][:inputs]
    target = torch.randn(20, N, 4 if kind == "heads" else D, generator=draw)
    rows = torch.stack([torch.randperm(20, generator=draw)[:16] for _ in range(MODELS)])
    setting = Setting({"epochs": 3, "lr": 1e-2})

    def loss(*batch):
        return (stack(*batch[:inputs]) - batch[inputs]).square().mean(dim=(1, 2, 3)).sum()

    fit(stack, loss, Batches([*data, target], rows, BATCH, 7), setting)
    batches, optimizers = (
        Batches([*data, target], rows, BATCH, 7),
        [torch.optim.Adam(m.parameters(), lr=1e-2) for m in alone],
    )
    for _ in range(3):
        batches.shuffle()
        for _ in range(batches.steps):
            batch = batches.draw()
            for model, (module, optimizer) in enumerate(zip(alone, optimizers, strict=True)):
                optimizer.zero_grad()
                said = module(*(part[model] for part in batch[:inputs]))
                nn.functional.mse_loss(said, batch[inputs][model]).backward()
                optimizer.step()
    asked = [part.expand(MODELS, *part.shape) for part in data]
    with torch.no_grad():
        together, apart = stack(*asked), torch.stack([module(*data) for module in alone])
    assert torch.allclose(together, apart, atol=2e-5)
    assert (together - target).abs().max() > 0.1  # they are not all one number


def test_learnable_tokens_start_from_minus_one_to_one_and_get_weight_of_their_own():
    stack, *_ = stacked("heads")
    extra = stack.extension.extra
    assert extra[1, :, 0].tolist() == pytest.approx([-1, -1 / 3, 1 / 3, 1]) and (extra[1] == extra[1, :, :1]).all()
    assert (stack.extension.modulation == 1).all()
    _, weights = stack.answer(torch.randn(3, 2, N, D))
    assert (weights[..., N:] > 0).all() and torch.allclose(weights.sum(-1), torch.ones(()))


def test_a_row_alone_attends_to_the_learnable_tokens():
    """One token of data and 99 learnable ones: no constant softmax, and the weights in the prompt change the answer."""
    model = Predictor(1, 1, 4, 8, extra=99, heads=2, draw=torch.Generator().manual_seed(0))
    x, (some, other) = torch.randn(1, 6, 1, 4), torch.randn(2, 1, 6, 4)
    answer, weights = model.answer(x, some)
    assert weights.shape == (1, 2, 6, 1, 100) and (weights[..., 0] < 0.5).all() and weights.std(dim=-1).min() > 0
    assert (answer - model(x, other)).abs().min() > 0


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
        stack = MultiHeads(2, N, D, HIDDEN, D, extra=4, heads=3, draw=torch.Generator().manual_seed(0))
        x = torch.randn(40, N, D, generator=torch.Generator().manual_seed(1)).cuda()
        rows = torch.arange(40, device="cuda").expand(2, -1)

        def loss(x, _, stack=stack):
            return (stack(x) - x.flip(-1)).square().mean(dim=(1, 2, 3)).sum()

        fit(stack, loss, Batches([x], rows, 8, 0), Setting({"epochs": 6, "lr": 1e-2}))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in stack.parameters()]))
    assert torch.allclose(*ends, atol=1e-5) and ends[0].isfinite().all()
