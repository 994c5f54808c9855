"""Muon moves every direction of a matrix alike, and takes the blocks' matrices alone."""

import pytest
import torch
from tiny_runs import FAST

from emulon.training import TrainStep
from emulon.training.step import Muon, Optimiser, orthogonalised

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 32)])
def test_singular_values_come_near_one_and_singular_vectors_stay(shape):
    matrices = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    turned = u.mT @ orthogonalised(matrices, torch.float64) @ vh.mT
    values = turned.diagonal(dim1=-2, dim2=-1)
    assert values.min() > 0.3 and values.max() < 1.25  # the smallest of a square Gaussian matrix is tiny to begin with
    assert (turned - torch.diag_embed(values)).abs().max() < 1e-9
    alone = orthogonalised(1000 * matrices[:1], torch.float64)  # neither the batch nor the size matters
    torch.testing.assert_close(alone[0], orthogonalised(matrices, torch.float64)[0], atol=1e-6, rtol=0)


def test_a_step_is_nesterovs_momentum_orthogonalised_and_scaled_by_the_shape():
    weight = torch.nn.Parameter(torch.zeros(8, 2))
    muon = Muon([weight], torch.tensor(0.1), momentum=0.9, dtype=torch.float32, compiled=False)
    momentum, moved = torch.zeros(8, 2), torch.zeros(8, 2)
    for seed in range(3):
        weight.grad = torch.randn(8, 2, generator=torch.Generator().manual_seed(seed))
        momentum = 0.9 * momentum + 0.1 * weight.grad
        ahead = 0.9 * momentum + 0.1 * weight.grad
        moved -= 0.1 * 2 * orthogonalised(ahead.unsqueeze(0), torch.float32)[0]  # √(8/2) = 2
        muon.step()
    torch.testing.assert_close(weight.detach(), moved)
    torch.testing.assert_close(muon.state[weight], momentum)


def test_decay_shrinks_a_matrix_by_itself_times_the_rate():
    weights = [torch.nn.Parameter(torch.ones(2, 4)) for _ in range(2)]
    plain, shrinking = (
        Muon([weight], torch.tensor(0.1), momentum=0.9, dtype=torch.float32, compiled=False, decay=decay)
        for weight, decay in zip(weights, (0.0, 0.5), strict=True)
    )
    for weight in weights:
        weight.grad = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    plain.step()
    shrinking.step()
    torch.testing.assert_close(weights[1].detach(), weights[0].detach() - 0.05)


def test_muon_takes_the_matrices_of_blocks_and_adam_everything_else():
    learner = FAST.make_learner(FAST.make_task())
    optimiser = Optimiser(learner, CPU, FAST)
    state = [key.split("/") for key in optimiser.state()]
    kinds = {name: {kind for _, kind, owner in state if owner == name} for name, _ in learner.named_parameters()}
    matrices = {name for name, kind in kinds.items() if kind == {"momentum"}}
    assert matrices == {
        f"decoder.blocks.0.{part}.weight" for part in ("attention.to_qkv", "attention.merge", "widen", "narrow")
    }
    assert all(kind == {"step", "exp_avg", "exp_avg_sq"} for name, kind in kinds.items() if name not in matrices)


def test_early_answers_weigh_less_while_they_are_early():
    config = FAST.changed(features=3, points=5, start_features=1, feature_every=2, early_weight=0.25)
    task = config.make_task()
    step = TrainStep(config.make_learner(task), task, config, CPU)
    seen = []
    for k in (0, 2, 9):
        step(k)
        assert step.weight is not None and step.live is not None
        seen.append((step.live.sum().item(), step.weight.tolist()))
    assert seen == [(1, [0.25, 1, 1, 1, 1]), (2, [0.25, 0.25, 1, 1, 1]), (3, [0.25, 0.25, 0.25, 1, 1])]
