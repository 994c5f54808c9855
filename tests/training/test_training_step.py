"""One step: the same on every path, and nothing depends on what was trained beside it."""

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny_runs import FAST, TINY, in_a_process

from emulon.models import BlockShape, Learner
from emulon.training import Evaluation, TrainConfig, TrainStep, train

CPU = torch.device("cpu")


def begin(config: TrainConfig) -> TrainStep:
    task = config.make_task()
    return TrainStep(config.make_learner(task), task, config, CPU)


def losses(config: TrainConfig, steps: int = 8) -> list[float]:
    step = begin(config)
    return [step(k).item() for k in range(steps)]


@pytest.mark.parametrize(
    ("model", "start"),
    [("standard", FAST), ("looped", TINY), ("algoformer", FAST)],
)
def test_every_model_learns(model, start):
    easy = start.changed(model=model, steps=150, features=1, points=4, noise=0.0, lr=3e-3, init=0.1)
    if model in ("looped", "algoformer"):
        easy = easy.changed(loops=3, window=2)
    found = losses(easy, 150)
    assert sum(found[-25:]) < 0.8 * sum(found[:25])


def test_bf16_follows_fp32_while_weights_and_optimiser_stay_fp32():
    half = TINY.changed(precision="bf16")
    assert losses(half) == pytest.approx(losses(TINY), rel=1e-2)
    step = begin(half)
    step(0)
    assert all(tensor.dtype == torch.float32 for tensor in step.state().values())
    inner = step.worker.learner.decoder.blocks[0].widen
    assert inner.weight.dtype == torch.bfloat16
    assert torch.equal(inner.weight, step.learner.decoder.blocks[0].widen.weight.bfloat16())


def test_one_traced_program_gives_the_eager_losses():
    """In a process of its own: the type checks that are on under test cannot be traced."""
    code = """
import torch
real = torch.compile
torch.compile = lambda f, **options: real(f, backend="aot_eager", fullgraph=True, **options)
from test_training_step import losses
expected = losses(TINY, 2)
for kind in ("whole", "block"):
    assert max(abs(a - b) for a, b in zip(losses(TINY.changed(compile=kind), 2), expected)) < 1e-6
"""
    process = in_a_process(code)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 0, error


def test_clipping_bounds_the_gradient():
    step = begin(TINY.changed(clip=1e-3))
    step(0)
    norm = torch.stack([p.grad.norm() for p in step.parameters if p.grad is not None]).norm()
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


def test_evaluation_is_against_the_noise_free_truth_and_the_tasks_own_baselines():
    task = TINY.make_task()
    evaluation = Evaluation(task, 0, 64, CPU)
    assert {"zero", "ols", "ridge", "gd", "knn"} == set(evaluation.baselines)

    class Oracle(Learner):
        def states(self, embedded, window=None):
            raise NotImplementedError

        def forward(self, tokens):
            said = torch.zeros(*tokens.shape[:2], 1)
            said[:, 0::2] = evaluation.prompts.truth
            return said

    assert evaluation.curve(Oracle(4, 1, 9, BlockShape(2, 1))).max() == 0


def test_an_evaluation_drops_nothing_out_and_training_goes_on_as_it_was():
    config = TINY.changed(dropout=0.5)
    task = config.make_task()
    learner, evaluation = config.make_learner(task), Evaluation(task, 0, 16, CPU)
    expected = evaluation.curve(learner.eval())
    assert torch.equal(evaluation.curve(learner.train()), expected) and learner.training
    assert not torch.equal(learner(evaluation.prompts.tokens), learner(evaluation.prompts.tokens))


@pytest.mark.parametrize("name", ["trackio", "wandb"])
def test_trackers_are_given_every_number(tmp_path, monkeypatch, name):
    logged, ended = [], []

    def init(project, name, config):
        assert (project, name) == ("emulon", "run") and config["steps"] == TINY.schedule.steps
        run = {"log": lambda numbers, step: logged.append((step, numbers)), "finish": lambda: ended.append(True)}
        return SimpleNamespace(**run)

    monkeypatch.setitem(sys.modules, name, SimpleNamespace(init=init))
    train(TINY.changed(tracker=name), tmp_path / "run")
    assert ended == [True] and any("evaluation/error" in numbers for _, numbers in logged)
    assert logged[-1][0] == TINY.schedule.steps
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=f"pip install {name}"):
        train(TINY.changed(tracker=name), tmp_path / "other")


class Stream:
    def wait_stream(self, other):
        pass


class Graph:
    """Stands for a CUDA graph where there is no GPU: replaying it does the step's work on the bucket it was made on."""

    def register_generator_state(self, generator):
        self.generator = generator

    def pool(self):
        return "the first one's"

    def replay(self):
        assert self.step.bucket == self.bucket
        self.step._work()


def test_every_size_of_prompts_has_a_graph_of_its_own_and_building_changes_nothing(corpora, monkeypatch):
    task = f"translation:data={corpora['translation']},longest=24"
    config = TINY.changed(task=task, noise=None, features=20, points=41)
    eager, graphed = begin(config), begin(config)
    pools = []

    @contextlib.contextmanager
    def captured(graph, pool, stream):
        graph.step, graph.bucket = graphed, graphed.bucket
        pools.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    graphed._stream = Stream()
    for k in range(6):
        assert eager(k).item() == graphed(k).item()
    assert (
        pools == [None, "the first one's", "the first one's"]
        and len({eager.task.bucket_at(0, k) for k in range(6)}) > 1
    )
    for name, tensor in eager.state().items():
        assert torch.equal(tensor, graphed.state()[name])
