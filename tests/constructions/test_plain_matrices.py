"""Anyone's own softmax attention, run on the exposed prompts and matrices, gives the same numbers."""

import numpy as np
import pytest
import torch
from construction_cases import (
    DOMAIN,
    data,
    gradient_step,
    hopfield,
    linear_layer,
    random_head,
    residual_map,
    step_data,
    truncated,
    uniform,
)

from emulon.constructions import HeadInEmbedding, HeadInTokens

N = DOMAIN.samples


def attention(tokens, w_k, w_q, w_v):
    """Softmax self-attention in four lines of numpy."""
    tokens, w_k, w_q, w_v = (part.numpy() for part in (tokens, w_k, w_q, w_v))
    scores = (tokens @ w_q.T) @ (tokens @ w_k.T).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return torch.from_numpy(weights @ (tokens @ w_v.T) / weights.sum(axis=1, keepdims=True))


def matrices(head):
    return head.w_k, head.w_q, head.w_v


def same(ours, theirs, tolerance=1e-9):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", [("tanh(t)", 1e-4), ("Max(t, 0)", 1e-3), ("t", None, DOMAIN, "paper", 65)])
def test_the_residual_map(options):
    module, (x, y, w) = residual_map(*options), data()
    same(module(x, y, w), attention(module.prompt(x, y, w), *matrices(module.head))[:N], 1e-8)


def test_the_hopfield_layer():
    module, (x, y, w) = hopfield(), data()
    stored, values = module.patterns(x, y)
    scores = module.beta * module.state(w).numpy() @ stored.numpy().T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    by_hand = (weights / weights.sum(axis=1, keepdims=True)) @ values.numpy() @ module.w_v.numpy().T
    same(module(x, y, w), torch.from_numpy(by_hand))


@pytest.mark.parametrize(("name", "l2", "l1"), [("squared", 0.3, 4.0), ("logistic", 0.5, 0.0), ("poisson", 0.2, 0.0)])
def test_the_gradient_step_and_its_proximal_half(name, l2, l1):
    module = gradient_step(name, 1e-3, l2, l1, step_size=0.1)
    x, y, w = step_data(module.loss)
    out = attention(module.prompt(x, y, w), *matrices(module.head))[:N].mean(dim=0)
    if module.proximal is not None:
        out = attention(module.proximal.prompt(out), *matrices(module.proximal.head))[: DOMAIN.features].sum(dim=0)
    same(module(x, y, w), out)


def test_the_linear_layer_a_head_per_row():
    module, x, theta = linear_layer(), uniform(5, 3), uniform(4, 3, bound=2.0, seed=1)
    prompts = module.prompt(x, theta)
    rows = [attention(prompts[r], *matrices(module.head))[:5, 0] for r in range(4)]
    same(module(x, theta), torch.stack(rows, dim=-1))


def test_the_truncated_linear_map_in_both_forms():
    x, w = uniform(12, 3, bound=0.6), uniform(3, seed=1, bound=0.55)
    soft, sharp = truncated(), truncated("paper", None, 4)
    same(soft(x, w), attention(soft.heads.prompt(x, w[None])[0], *matrices(soft.heads.head))[:12, 0])
    prompt = sharp.heads.prompt(x, w[None])
    assert prompt.shape[0] == 12
    same(sharp(x, w), sum(attention(prompt, *sharp.heads.matrices(0, head))[:, 0] for head in range(4)))


def test_a_head_in_tokens_both_layers():
    x, weights, bound = random_head(6, 3, 2)
    module = HeadInTokens(6, 3, 2, bound, points=17)
    prompts = module.layer.prompt(x, torch.cat(weights))
    rows = torch.stack([attention(prompts[r], *matrices(module.layer.head))[:6, 0] for r in range(6)], dim=-1)
    same(module(x, *weights), attention(rows, *matrices(module.assemble)))


@pytest.mark.parametrize("options", [{"points": 17}, {"grid": "paper", "heads": 9}])
def test_a_head_in_the_embedding_both_layers(options):
    x, weights, bound = random_head(6, 3, 2)
    module = HeadInEmbedding(6, 3, 2, bound, **options)
    layer = module.layer
    prompt = layer.prompt(x, torch.cat(weights))
    rows = [sum(attention(prompt, *layer.matrices(r, h))[:6, 0] for h in range(layer.heads)) for r in range(6)]
    same(module(x, *weights), attention(torch.stack(rows, dim=-1), *matrices(module.assemble)))
