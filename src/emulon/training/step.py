"""One training step: sample, forward, backward, optimiser; eager, or the whole of it as one CUDA graph.

What changes from step to step (`rate_factor`, `live_features`, `live_points`) is a pure function of the step.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.models import Learner
from emulon.tasks import Task, at_step, stream_seed
from emulon.training.checkpoint import copy_into, weights_of
from emulon.training.configuration import TrainConfig
from emulon.training.optimiser import Optimiser
from emulon.training.precision import Worker, matrix_precision
from emulon.training.processes import Processes


class GraphedStep(ABC):
    """`step(k)` performs step k and returns its loss, a tensor on the device that the next step overwrites.

    What depends on k is put into device tensors first (the generators' seeds, the learning rates, the curriculum's
    masks); the rest is always the same work on the same memory, so a graph can replay it.
    """

    loss: Tensor

    def __init__(self, task: Task, config: TrainConfig, device: torch.device, models: int = 1) -> None:
        self.config, self.device = config, device
        self.generators = [torch.Generator(device=device) for _ in range(models)]
        asked = len(task.asked(torch.zeros(task.tokens, 1, device="cpu")))
        curriculum = config.schedule.start_features is not None and task.features
        self.live = torch.ones(config.task.features, device=device) if curriculum else None
        weighted = config.schedule.start_points is not None or config.schedule.early_weight != 1
        self.weight = torch.ones(asked, device=device) if weighted else None
        self.task, self.bucket = task, 0
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and config.device.graph else None

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs, by name. The random stream is not in it: it is a function of seed and step."""

    @abstractmethod
    def load(self, state: dict[str, Tensor], where: Path | str = "memory") -> None:
        """What `state` gave, back into it."""

    @abstractmethod
    def _prepare(self, step: int) -> None:
        """What depends on the step."""

    @abstractmethod
    def _sample_and_descend(self) -> None:
        """What does not."""

    def __call__(self, step: int) -> Float[Tensor, "*models"]:
        if self._stream is None:
            self._prepare(step)
            self._work()
            return self.loss
        self.build()
        with torch.cuda.stream(self._stream):
            self._prepare(step)
            self._graphs[self.bucket].replay()
        return self.loss

    def build(self) -> None:
        """What the first step would do before it: on a GPU, compile and capture, a graph for each size of prompts. The
        weights stay as they are."""
        if self._stream is not None and not self._graphs:
            for bucket in range(len(self.task.buckets)):
                self.bucket = bucket
                self._capture()

    def synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _set_masks(self, step: int) -> None:
        """The curriculum's."""
        features = live_features(self.config, step)
        if self.live is not None:
            self.live.fill_(1.0)[features:] = 0.0
        if self.weight is not None:
            self.weight.fill_(1.0)[:features] = self.config.schedule.early_weight
            self.weight[live_points(self.config, step, len(self.weight)) :] = 0.0

    def _work(self) -> None:
        with matrix_precision(self.config.device.precision):
            self._sample_and_descend()

    def _capture(self) -> None:
        """Warm up on the side, undo what that did to the state, and record one step."""
        assert self._stream is not None
        saved = {name: tensor.clone() for name, tensor in self.state().items()}
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            for _ in range(3):
                self._work()
        self.synchronise()
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # replayed one at a time, so that the graphs may share their memory
        pool = next((other.pool() for other in self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            self._work()
        self.synchronise()
        self._graphs[self.bucket] = graph
        self.load(saved)
        self.synchronise()


class TrainStep(GraphedStep):
    """The step of one learner; see `GraphedStep`.

    Args:
        learner: Trained in place; it is moved to the device.
        task: Where batches are drawn from.
        config: Batch, optimiser, schedule, precision.
        device: Where to train.
        processes: Those that share each batch; alone by default.
    """

    def __init__(
        self,
        learner: Learner,
        task: Task,
        config: TrainConfig,
        device: torch.device,
        processes: Processes | None = None,
    ) -> None:
        config = config.on(device)
        super().__init__(task, config, device)
        self.learner = learner.to(device)
        self.dropout = _default_generator(device) if config.model.dropout else None
        self.processes = processes or Processes()
        self.worker = Worker(learner, config.device.precision)
        self.parameters = list(learner.parameters())
        self.optimiser = Optimiser(
            learner,
            device,
            muon=config.optimiser.optimiser == "muon",
            beta2=config.optimiser.beta2,
            momentum=config.optimiser.momentum,
            decay=config.optimiser.decay,
            dtype=torch.bfloat16 if config.device.precision == "bf16" else torch.float32,
            compiled=config.device.compile != "off",
        )
        self.loss = torch.zeros((), device=device)
        self._total, self._counted = torch.zeros((), device=device), 0
        self._loss_of = self._plain_loss
        if config.device.compile == "whole":
            self._loss_of = torch.compile(self._plain_loss, dynamic=False)
        elif config.device.compile == "autotune":
            self._loss_of = torch.compile(self._plain_loss, dynamic=False, mode="max-autotune-no-cudagraphs")
        elif config.device.compile == "block":
            self.worker.compile_blocks()

    def __call__(self, step: int) -> Float[Tensor, ""]:
        self._counted += 1
        return super().__call__(step)

    def mean_loss(self) -> float:
        """The mean loss of the steps since this was last asked. Waits for them."""
        self.synchronise()
        mean = self._total.item() / max(self._counted, 1)
        self._total.zero_()
        self.synchronise()
        self._counted = 0
        return mean

    def state(self) -> dict[str, Tensor]:
        return weights_of(self.learner) | self.optimiser.state()

    def load(self, state: dict[str, Tensor], where: Path | str = "memory") -> None:
        copy_into(self.state(), state, where)
        self.worker.refresh()

    def _prepare(self, step: int) -> None:
        at_step(self.generators[0], self.config.seed, step)
        if self.dropout is not None:
            # PyTorch drops out by the device's own generator; every process another part
            at_step(self.dropout, stream_seed(self.config.seed, self.processes.rank), step)
        self.bucket = self.task.bucket_at(self.config.seed, step)
        factor = rate_factor(self.config, step)
        self.optimiser.lr.fill_(self.config.optimiser.lr * factor)
        self.optimiser.muon_lr.fill_(self.config.optimiser.muon_lr * factor)
        self._set_masks(step)

    def _sample_and_descend(self) -> None:
        batch, rank = self.config.schedule.batch, self.processes.rank
        # every process draws the whole batch and takes its rows: the data do not depend on how many share the work
        drawn_from = self.task.buckets[self.bucket]
        prompts = drawn_from.sample(self.generators[0], batch * self.processes.world, self.live)
        prompts = prompts.rows(rank * batch, (rank + 1) * batch)
        self.worker.forget_gradients()
        loss = self._loss_of(prompts.tokens, prompts.targets)
        loss.backward()
        self.worker.collect()
        self.loss.copy_(loss.detach())
        self.processes.average([self.loss, *(p.grad for p in self.parameters if p.grad is not None)])
        if self.config.optimiser.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimiser.clip)
        self._total.add_(self.loss)
        self.optimiser.step()
        self.worker.refresh()

    def _plain_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.worker.learner.loss(tokens, targets, self.task.asked, self.weight)

    def _capture(self) -> None:
        super()._capture()
        self._total.zero_()
        self.synchronise()


class Together:
    """Advances several `TrainStep`s in turn: seeds of one configuration, or different models.

    On a GPU each replays its graph on a stream of its own, so that one learner's small kernels run in the gaps of
    another's. Nothing is shared: every learner ends with the weights it would have had alone.

    Args:
        steps: Each with its own learner.
    """

    def __init__(self, steps: Sequence[TrainStep]) -> None:
        self.steps = list(steps)

    def __call__(self, step: int) -> list[Float[Tensor, ""]]:
        return [one(step) for one in self.steps]

    def synchronise(self) -> None:
        for one in self.steps:
            one.synchronise()


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def rate_factor(config: TrainConfig, step: int) -> float:
    """What multiplies every learning rate: a linear warm-up, then 1; or half a cosine down to zero at the last step; or
    1 for the share `hold` of the run and a straight line to zero."""
    plan = config.schedule
    warm = min(1.0, (step + 1) / plan.warmup) if plan.warmup else 1.0
    if plan.schedule == "constant" or (plan.schedule == "cosine" and step < plan.warmup):
        return warm
    if plan.schedule == "cosine":
        done = (step - plan.warmup) / max(plan.steps - plan.warmup, 1)
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2
    left = max(plan.steps - step, 0) / max(plan.steps, 1)
    return warm * min(1.0, left / (1 - plan.hold))


def live_features(config: TrainConfig, step: int) -> int:
    """How many features are not zero at this step."""
    plan, features = config.schedule, config.task.features
    if plan.start_features is not None and plan.curriculum:
        grown = step / (plan.curriculum * plan.steps) * (features - plan.start_features + 1)
        return min(features, plan.start_features + int(grown))
    return _grown(plan.start_features, plan.feature_every, features, step)


def live_points(config: TrainConfig, step: int, points: int) -> int:
    """How many of the asked positions count in the loss at this step."""
    return _grown(config.schedule.start_points, config.schedule.point_every, points, step)


def _grown(start: int | None, every: int, full: int, step: int) -> int:
    return full if start is None else min(full, start + step // every)
