"""Learners stacked along a leading axis end as each would alone."""

import pytest
import torch
from tiny_runs import TINY, in_a_process

from emulon.training import BadConfig, TrainConfig, TrainStep
from emulon.training.stack import Stack

CPU = torch.device("cpu")
DIFFERENT = [{}, {"seed": 5}, {"lr": 3e-3, "muon_lr": 0.02}, {"noise": 0.0, "seed": 1, "prior": 2.0}]


def configs(**changes) -> list[TrainConfig]:
    return [TINY.changed(**changes | each) for each in DIFFERENT]


def alone(config: TrainConfig, steps: int) -> tuple[TrainStep, list[float]]:
    task = config.make_task()
    step = TrainStep(config.make_learner(task), task, config, CPU)
    return step, [step(k).item() for k in range(steps)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimiser": "muon", "layers": 2, "beta2": 0.99, "decay": 0.1},
        {"clip": 0.1, "start_features": 1, "feature_every": 3, "early_weight": 0.2, "warmup": 3, "schedule": "cosine"},
        {"model": "looped", "loops": 3, "window": 2},
    ],
    ids=["adam", "muon", "curriculum", "looped"],
)
def test_every_learner_of_a_stack_ends_as_it_would_alone(changes):
    # no biases: that of the keys has no gradient but rounding, which Adam makes as large as any other
    changes = changes | {"bias": False}
    stack = Stack(configs(**changes), CPU)
    losses = torch.stack([stack(k).clone() for k in range(8)], dim=1)
    for k, config in enumerate(configs(**changes)):
        step, expected = alone(config, 8)
        assert losses[k].tolist() == pytest.approx(expected, rel=1e-5)
        here, there = stack.state_of(k), step.state()
        assert here.keys() == there.keys()
        for name in there:
            torch.testing.assert_close(here[name], there[name], rtol=1e-3, atol=2e-6, msg=name)
    assert len({round(each, 6) for each in losses[:, -1].tolist()}) == len(DIFFERENT)


def test_a_learner_goes_on_alone_from_a_stacks_state_and_a_stack_from_learners_states():
    stack = Stack(configs(), CPU)
    for k in range(4):
        stack(k)
    steps = [alone(config, 4)[0] for config in configs()]
    other = Stack(configs(), CPU)
    for k, step in enumerate(steps):
        other.load_one(k, step.state(), "memory")
        step.load({name: tensor.clone() for name, tensor in stack.state_of(k).items()})
    expected = stack(4).tolist()
    assert [step(4).item() for step in steps] == pytest.approx(expected, rel=1e-5)
    assert other(4).tolist() == pytest.approx(expected, rel=1e-5)


def test_bf16_follows_fp32_while_weights_stay_fp32():
    half, full = Stack(configs(precision="bf16"), CPU), Stack(configs(), CPU)
    for k in range(4):
        assert half(k).tolist() == pytest.approx(full(k).tolist(), rel=1e-2)
    assert not torch.equal(half.loss, full.loss)
    assert all(tensor.dtype == torch.float32 for tensor in half.state().values())


def test_a_learner_that_diverges_leaves_the_others_alone():
    wild = [TINY, TINY.changed(lr=1e30)]
    stack = Stack(wild, CPU)
    losses = [stack(k)[0].item() for k in range(6)]
    assert not torch.isfinite(stack.loss[1]) and losses == pytest.approx(alone(TINY, 6)[1], rel=1e-5)


def test_what_changes_the_shape_of_the_work_cannot_be_stacked():
    for change, reason in (({"width": 32}, "and here in width"), ({"steps": 61}, "and here in steps")):
        with pytest.raises(BadConfig, match=reason):
            Stack([TINY, TINY.changed(**change)], CPU)
    with pytest.raises(BadConfig, match="end together"):
        Stack([TINY.changed(patience=2)], CPU)


def test_one_traced_program_gives_the_eager_losses():
    """In a process of its own: the type checks that are on under test cannot be traced. With attention as torch has it,
    as on a GPU; on a CPU only its plain form can be mapped over a stack."""
    code = """
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from emulon.training import stack
from test_training_stack import CPU, configs
stack._mapped = lambda config, task, device: config.make_learner(task).to("meta")
real = torch.compile
torch.compile = lambda f, **options: real(f, backend="aot_eager", fullgraph=True, **options)
with sdpa_kernel(SDPBackend.MATH):
    changes = {"optimiser": "muon", "precision": "bf16"}
    eager, traced = (stack.Stack(configs(compile=kind, **changes), CPU) for kind in ("off", "whole"))
    for k in range(2):
        assert (eager(k) - traced(k)).abs().max() < 1e-4, (k, eager.loss, traced.loss)
"""
    process = in_a_process(code)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
