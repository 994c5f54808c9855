"""One training step: sample, forward, backward, optimiser; eager, or the whole of it as one CUDA graph.

Adam for everything, or Muon for the blocks' matrices and Adam for the rest. What changes from step to step
(`rate_factor`, `live_features`) is a pure function of the step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.models import Affine, Block, Decoder, Learner
from emulon.tasks import Task, at_step, stream_seed
from emulon.training.configuration import TrainConfig
from emulon.training.run_folder import copy_into, weights_of

# Five rounds of x ↦ ax + bx³ + cx⁵ take every singular value in (0, 1] to about 1 (between 0.7 and 1.2).
ROUNDS, QUINTIC = 5, (3.4445, -4.7750, 2.0315)


def orthogonalised(
    matrices: Float[Tensor, "*count rows columns"], dtype: torch.dtype
) -> Float[Tensor, "*count rows columns"]:
    """Claim: with U S Vᵀ each matrix, U·p(S/‖S‖_F)·Vᵀ, p five rounds of the quintic: the nearest orthogonal matrix,
    roughly, by matrix products alone (Newton–Schulz), for all the matrices at once."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x: Tensor = (matrices.mT if tall else matrices).to(dtype)
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon:
    """Momentum whose direction is orthogonalised (Jordan et al. 2024): every direction of a matrix moves alike.

    A matrix may be so many matrices one below the other, each orthogonalised by itself, as those of all heads' queries,
    keys and values are. Matrices of one shape are one batch. Products run in `dtype`; momentum and weights stay
    float32. An update is scaled by √max(1, rows/columns). Updates have the same size however small the gradient, so
    that matrices grow for as long as the rate is high; `decay` times the rate is what they shrink by at every step.
    `lr` is a tensor, so that a CUDA graph can replay the step.
    """

    def __init__(
        self,
        matrices: Mapping[Tensor, int],
        lr: Tensor,
        *,
        momentum: float,
        dtype: torch.dtype,
        compiled: bool,
        decay: float = 0.0,
    ) -> None:
        self.lr, self.momentum, self.dtype, self.decay = lr, momentum, dtype, decay
        self.groups: dict[tuple[torch.Size, int], list[Tensor]] = {}
        for matrix, parts in matrices.items():
            self.groups.setdefault((matrix.shape, parts), []).append(matrix)
        self.buffers = {kind: torch.zeros_like(torch.stack(group)) for kind, group in self.groups.items()}
        update = torch.compile(self._update, dynamic=False) if compiled else self._update
        self._updates: Callable[[Tensor, Tensor, int], Tensor] = update

    @property
    def state(self) -> dict[Tensor, Tensor]:
        """The momentum of each matrix, the very memory."""
        groups = ((group, self.buffers[kind]) for kind, group in self.groups.items())
        return {matrix: momentum for group, buffer in groups for matrix, momentum in zip(group, buffer, strict=True)}

    @torch.no_grad()
    def step(self) -> None:
        for kind, group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            updates = self._updates(gradients, self.buffers[kind], kind[1])
            if self.decay:
                updates = updates - self.lr * self.decay * torch.stack(group)
            torch._foreach_add_(group, updates.unbind(0))

    def _update(self, gradients: Tensor, buffer: Tensor, parts: int) -> Tensor:
        """Nesterov's momentum, orthogonalised; the buffer is updated on the way."""
        buffer.lerp_(gradients, 1 - self.momentum)
        split = torch.lerp(gradients, buffer, self.momentum).unflatten(-2, (parts, -1))
        rows, columns = split.shape[-2:]
        return orthogonalised(split, self.dtype).flatten(-3, -2).mul(-self.lr * max(1.0, rows / columns) ** 0.5)


class Optimiser:
    """Adam with a rate of its own for what Muon does not take; its state by name, for checkpoints."""

    def __init__(self, learner: Learner, device: torch.device, config: TrainConfig) -> None:
        chosen, dtype = config.optimiser, torch.bfloat16 if config.device.precision == "bf16" else torch.float32
        self.lr, self.muon_lr = torch.tensor(0.0, device=device), torch.tensor(0.0, device=device)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in learner.named_parameters()}
        blocks = [part for part in learner.modules() if isinstance(part, Block)]
        matrices: dict[Tensor, int] = {}
        if chosen.optimiser == "muon":
            matrices = {matrix: 1 for block in blocks for matrix in block.matrices}
            if chosen.per_head:
                matrices |= {block.attention.to_qkv.weight: 3 * block.attention.heads for block in blocks}
        rest = [p for p in self.names if p not in matrices]
        self.muon: Muon | None = None
        if matrices:
            options = {"momentum": chosen.momentum, "decay": chosen.decay}
            compiled = config.device.compile != "off"
            self.muon = Muon(matrices, self.muon_lr, dtype=dtype, compiled=compiled, **options)
        capturable = device.type == "cuda"
        self.adam = torch.optim.Adam(rest, lr=self.lr, betas=(0.9, chosen.beta2), fused=True, capturable=capturable)
        self.adam.param_groups[0]["lr"] = self.lr  # the very tensor: Adam may have kept a copy
        for parameter in rest:  # made now, so that a checkpoint can be read into it
            self.adam.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def state(self) -> dict[str, Tensor]:
        named = {
            f"optimiser/{key}/{self.names[parameter]}": value
            for parameter, values in self.adam.state.items()
            for key, value in values.items()
        }
        if self.muon is not None:
            named |= {f"optimiser/momentum/{self.names[matrix]}": b for matrix, b in self.muon.state.items()}
        return named

    def step(self) -> None:
        self.adam.step()
        if self.muon is not None:
            self.muon.step()


class Worker:
    """The learner that runs forward and backward for a master learner in float32.

    In fp32 and tf32 it is the master itself. In bf16 it is a copy whose inner matrices are bf16 while everything else
    is shared: one copy a step instead of a cast at every use, and nothing for autocast to decide.
    """

    def __init__(self, master: Learner, precision: str) -> None:
        self.master = self.learner = master
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        if precision == "bf16":
            self._copy()

    def _copy(self) -> None:
        self.learner = copy.deepcopy(self.master)
        theirs = dict(self.master.named_modules())
        for name, module in self.learner.named_modules():
            inner = isinstance(module, Affine) and name not in ("read_in", "read_out")
            for key, parameter in list(module.named_parameters(recurse=False)):
                original: nn.Parameter = getattr(theirs[name], key)
                if inner:
                    parameter.data = original.detach().bfloat16()
                    self._pairs.append((original, parameter))
                    original.grad = torch.zeros_like(original)
                else:
                    setattr(module, key, original)

    def compile_blocks(self) -> None:
        """All blocks of one shape share one compilation, so a deep learner builds as fast as a shallow one."""
        for module in self.learner.modules():
            if isinstance(module, Decoder):
                for part in module.blocks if len(module.blocks) > 1 else [module]:
                    part.compile(dynamic=False)

    @torch.no_grad()
    def refresh(self) -> None:
        """Master → worker, after the weights changed."""
        if self._pairs:
            torch._foreach_copy_([work for _, work in self._pairs], [master for master, _ in self._pairs])

    @torch.no_grad()
    def collect(self) -> None:
        """The worker's gradients → the master's."""
        if self._pairs:
            grads: list[Tensor] = [work.grad for _, work in self._pairs]  # type: ignore[misc]  # set by backward
            torch._foreach_copy_([master.grad for master, _ in self._pairs], grads)  # type: ignore[misc]  # as above

    def forget_gradients(self) -> None:
        """Backward then writes gradients instead of adding to them. The master's copies are overwritten anyway."""
        for parameter in self.learner.parameters():
            parameter.grad = None


@contextmanager
def matrix_precision(precision: str) -> Iterator[None]:
    """tf32 for float32 matrix products inside, where asked for; as before outside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class TrainStep:
    """`step(k)` performs step k and returns its loss, a tensor on the device that the next step overwrites.

    What depends on k is put into device tensors first (the generators' seeds, the learning rates, the curriculum's
    masks); the rest is always the same work on the same memory, so a graph can replay it.

    Args:
        learner: Trained in place; it is moved to the device.
        task: Where batches are drawn from.
        config: Batch, optimiser, schedule, precision.
        device: Where to train.
    """

    def __init__(self, learner: Learner, task: Task, config: TrainConfig, device: torch.device) -> None:
        self.config = config = config.on(device)
        self.device, self.task, self.bucket = device, task, 0
        self.learner = learner.to(device)
        self.generator = torch.Generator(device=device)
        self.dropout = _default_generator(device) if config.model.dropout else None
        self._make_masks()
        self.worker = Worker(learner, config.device.precision)
        self.parameters = list(learner.parameters())
        self.optimiser = Optimiser(learner, device, config)
        self.loss = torch.zeros((), device=device)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" and config.device.graph else None
        self._loss_of = self._plain_loss
        if config.device.compile == "whole":
            self._loss_of = torch.compile(self._plain_loss, dynamic=False)
        elif config.device.compile == "block":
            self.worker.compile_blocks()

    def _make_masks(self) -> None:
        """The curriculum's; None where everything counts fully from the beginning."""
        config, asked = self.config, len(self.task.asked(torch.zeros(self.task.tokens, 1, device="cpu")))
        curriculum = config.schedule.start_features is not None and self.task.features
        self.live = torch.ones(config.task.features, device=self.device) if curriculum else None
        self.weight = torch.ones(asked, device=self.device) if config.schedule.early_weight != 1 else None

    def __call__(self, step: int) -> Float[Tensor, ""]:
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

    def state(self) -> dict[str, Tensor]:
        """Everything a checkpoint needs, by name. The random stream is not in it: it is a function of seed and step."""
        return weights_of(self.learner) | self.optimiser.state()

    def load(self, state: dict[str, Tensor], where: Path | str = "memory") -> None:
        """What `state` gave, back into it."""
        copy_into(self.state(), state, where)
        self.worker.refresh()

    def _prepare(self, step: int) -> None:
        """What depends on the step."""
        at_step(self.generator, self.config.seed, step)
        if self.dropout is not None:
            # PyTorch drops out by the device's own generator
            at_step(self.dropout, stream_seed(self.config.seed, 0), step)
        self.bucket = self.task.bucket_at(self.config.seed, step)
        factor = rate_factor(self.config, step)
        self.optimiser.lr.fill_(self.config.optimiser.lr * factor)
        self.optimiser.muon_lr.fill_(self.config.optimiser.muon_lr * factor)
        features = live_features(self.config, step)
        if self.live is not None:
            self.live.fill_(1.0)[features:] = 0.0
        if self.weight is not None:
            self.weight.fill_(1.0)[:features] = self.config.schedule.early_weight

    def _work(self) -> None:
        """What does not depend on the step."""
        with matrix_precision(self.config.device.precision):
            self._sample_and_descend()

    def _sample_and_descend(self) -> None:
        prompts = self.task.buckets[self.bucket].sample(self.generator, self.config.schedule.batch, self.live)
        self.worker.forget_gradients()
        loss = self._loss_of(prompts.tokens, prompts.targets)
        loss.backward()
        self.worker.collect()
        self.loss.copy_(loss.detach())
        if self.config.optimiser.clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.config.optimiser.clip)
        self.optimiser.step()
        self.worker.refresh()

    def _plain_loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self.worker.learner.loss(tokens, targets, self.task.asked, self.weight)

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
        graph.register_generator_state(self.generator)
        # replayed one at a time, so that the graphs may share their memory
        pool = next((other.pool() for other in self._graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            self._work()
        self.synchronise()
        self._graphs[self.bucket] = graph
        self.load(saved)
        self.synchronise()


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
    if plan.start_features is None:
        return features
    return min(features, plan.start_features + step // plan.feature_every)
