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


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it from 2.9 on")
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_steps_are_those_of_torchs_muon(decay):
    ours, theirs = (torch.nn.Parameter(torch.ones(8, 2)) for _ in range(2))
    muon = Muon({ours: 1}, torch.tensor(0.1), momentum=0.9, dtype=torch.bfloat16, compiled=False, decay=decay)
    expected = torch.optim.Muon([theirs], lr=0.1, momentum=0.9, weight_decay=decay)  # always in bfloat16
    for seed in range(3):
        ours.grad = torch.randn(8, 2, generator=torch.Generator().manual_seed(seed))
        theirs.grad = ours.grad.clone()
        muon.step()
        expected.step()
    torch.testing.assert_close(ours.detach(), theirs.detach(), atol=0.02, rtol=0)
    torch.testing.assert_close(muon.state[ours], expected.state[theirs]["momentum_buffer"])


def test_parts_of_a_matrix_move_as_matrices_of_their_own():
    whole, *parts = (torch.nn.Parameter(torch.ones(rows, 3)) for rows in (4, 2, 2))
    draw = torch.Generator().manual_seed(0)
    options = {"momentum": 0.9, "dtype": torch.float64, "compiled": False, "decay": 0.5}
    both = [Muon(m, torch.tensor(0.1), **options) for m in ({whole: 2}, dict.fromkeys(parts, 1))]
    for _ in range(3):
        whole.grad = torch.randn(4, 3, generator=draw)
        for part, grad in zip(parts, whole.grad.split(2), strict=True):
            part.grad = grad.clone()
        for muon in both:
            muon.step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


@pytest.mark.parametrize(("per_head", "parts"), [(False, 1), (True, 3 * FAST.model.heads)])
def test_heads_are_told_apart_where_that_is_asked_for(per_head, parts):
    config = FAST.changed(per_head=per_head)
    learner = config.make_learner(config.make_task())
    muon = Optimiser(learner, CPU, config).muon
    assert muon is not None
    told = {id(matrix): parts for (_, parts), group in muon.groups.items() for matrix in group}
    for block in learner.decoder.blocks:
        assert [told[id(matrix)] for matrix in block.matrices] == [parts, 1, 1, 1]


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
