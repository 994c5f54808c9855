"""Every leading dimension is a batch, for every construction."""

import pytest
import torch
from construction_cases import (
    data,
    gradient_step,
    hopfield,
    linear_layer,
    normal,
    random_head,
    residual_map,
    step_data,
    truncated,
    uniform,
)

from emulon.algorithms import LinearRegression, losses
from emulon.constructions import DescentInContext, HeadInEmbedding, HeadInTokens


def close(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def on_samples(name):
    if name == "residual map":
        return residual_map(), data(batch=(2, 3))
    if name == "hopfield":
        return hopfield(), data(batch=(2, 3))
    if name == "proximal step":
        return gradient_step("squared", 1e-3, 0.3, 4.0), step_data(losses.squared(), batch=(2, 3))
    if name == "poisson step":
        return gradient_step("poisson", 1e-3, 0.2, step_size=0.1), step_data(losses.poisson(), batch=(2, 3))
    return gradient_step("logistic", 1e-3, 0.5, step_size=0.1), step_data(losses.logistic(), batch=(2, 3))


@pytest.mark.parametrize("name", ["residual map", "hopfield", "gradient step", "proximal step", "poisson step"])
def test_a_batched_call_is_the_loop_of_single_calls_and_dimensions_broadcast(name):
    module, (x, y, w) = on_samples(name)
    whole = module(x, y, w)
    close(whole, torch.stack([torch.stack([module(x[i, j], y[i, j], w[i, j]) for j in range(3)]) for i in range(2)]))
    close(module(x, y, w[0, 0]), module(x, y, w[0, 0].expand_as(w)))
    close(module(x[0, 0], y[0, 0], w), module(x[0, 0].expand_as(x), y[0, 0].expand_as(y), w))
    close(module(x, y[0, 0], w[1]), module(x, y[0, 0].expand_as(y), w[1].expand_as(w)))
    close(module(x[:, :1], y[:1], w[1, 2]), module(x[:, :1].expand_as(x), y[:1].expand_as(y), w[1, 2].expand_as(w)))


def test_descents_on_several_datasets_at_once():
    x, y = normal(3, 10, 2), normal(3, 10, seed=1)
    module = DescentInContext.of(LinearRegression(steps=5, step_size=0.2), x, y, 1e-6)
    close(module(x, y), torch.stack([module(x[i], y[i]) for i in range(3)]))
    close(module.run(x, y[0]).iterates[2], module.run(x[2], y[0]).iterates)
    module.certificate.verify(module(x, y), LinearRegression(steps=5, step_size=0.2).run(x, y))


def test_linear_maps():
    layer, clipped, sharp = linear_layer(), truncated(), truncated("paper", None, 4)
    x, theta = uniform(2, 3, 5, 3), uniform(3, 4, 3, seed=1)
    close(layer(x, theta)[1, 2], layer(x[1, 2], theta[2]))
    close(layer(x[0, 0], theta), layer(x[0, 0].expand(3, 5, 3), theta))
    tokens, w = uniform(2, 12, 3, bound=0.6), uniform(4, 1, 3, bound=0.55)
    for module in (clipped, sharp):
        assert module(tokens, w).shape == (4, 2, 12)
        close(module(tokens, w)[3, 1], module(tokens[1], w[3, 0]))


@pytest.mark.parametrize("options", [{"points": 17}, {"grid": "paper", "heads": 9}])
@pytest.mark.parametrize("cls", [HeadInTokens, HeadInEmbedding])
def test_heads(cls, options):
    if cls is HeadInTokens and "heads" in options:
        options = {"points": 17, "grid": "paper"}
    x, weights, bound = random_head(6, 3, 2, batch=(2, 4))
    module = cls(6, 3, 2, bound, **options)
    whole = module(x, *weights)
    close(whole[1, 3], module(x[1, 3], *(w[1, 3] for w in weights)))
    w_k, w_q, w_v = weights
    mixed = module(x[1], w_k[:, :1], w_q[0, 2], w_v)
    assert mixed.shape == (2, 4, 6, 2)
    close(mixed[1, 2], module(x[1, 2], w_k[1, 0], w_q[0, 2], w_v[1, 2]))
