"""Many learners of one shape on one device: stacked along a leading axis, every step of all of them is one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from emulon.core.errors import BadConfig
from emulon.models import Affine, Block, Learner
from emulon.tasks import Task, at_step
from emulon.training.configuration import TrainConfig
from emulon.training.optimiser import Muon
from emulon.training.run_folder import copy_into, weights_of
from emulon.training.step import GraphedStep, rate_factor

# What the learners of a stack may differ in: none of these changes the shape of the work.
MAY_DIFFER = ("seed", "lr", "muon_lr", "noise", "prior")
BETA1, EPSILON = 0.9, 1e-8


def require_stackable(configs: Sequence[TrainConfig]) -> None:
    """Refuse configurations that differ in more than a stack can hold, or end at different steps."""
    first = configs[0]
    for config in configs:
        for name, value in first.options().items():
            if name not in MAY_DIFFER and config.options()[name] != value:
                raise BadConfig(f"a stack's runs differ in {', '.join(MAY_DIFFER)} alone, and here in {name}")
    if first.evaluation.patience:
        raise BadConfig("a stack's runs end together: leave patience at 0, or train them one by one")
    if first.model.dropout or first.make_task().reads_words:
        raise BadConfig("a stack's runs read vectors and drop nothing out: train these one by one")
    if first.device.compile == "block":
        raise BadConfig("a stack is compiled as a whole or not at all; use compile whole, auto or off")


class Stack(GraphedStep):
    """Claim: after any number of steps learner k has the weights that its configuration would give it alone, up to
    float32 rounding. `loss` has one entry a learner.

    Weights are stacked tensors, and the parameters of `learners` are views of them. torch.func maps the loss of one
    learner over the stack, which turns its matrix products into batched ones. Clipping, both optimisers and the random
    streams are per learner.

    Args:
        configs: They differ in `MAY_DIFFER` alone.
        device: Where all of them train.
    Raises:
        BadConfig: The configurations cannot be stacked.
    """

    def __init__(self, configs: Sequence[TrainConfig], device: torch.device) -> None:
        require_stackable(configs)
        self.configs, self.tasks = list(configs), [config.make_task() for config in configs]
        config = configs[0].on(device)
        super().__init__(self.tasks[0], config, device, models=len(configs))
        pairs = zip(configs, self.tasks, strict=True)
        self.learners = [config.make_learner(task).to(device) for config, task in pairs]
        stacked, _ = stack_module_state(self.learners)
        self.weights: dict[str, Tensor] = {name: each.detach().requires_grad_() for name, each in stacked.items()}
        for k, learner in enumerate(self.learners):
            for name, parameter in learner.named_parameters():
                parameter.data = self.weights[name].detach()[k]
        self.one = _OneLoss(_mapped(config, self.tasks[0], device), self.tasks[0])
        self.inner = _inner(self.learners[0]) if config.device.precision == "bf16" else frozenset()
        self.loss = torch.zeros(len(configs), device=device)
        self._make_optimisers()
        compiled = config.device.compile != "off"
        self._losses: Callable[..., Tensor] = torch.compile(self._map, dynamic=False) if compiled else self._map
        self._adam: Callable[[], None] = torch.compile(self._adam_step, dynamic=False) if compiled else self._adam_step

    def _make_optimisers(self) -> None:
        models, device, config = len(self.configs), self.device, self.config
        self.lr, self.muon_lr = torch.zeros(models, device=device), torch.zeros(models, 1, 1, device=device)
        self.steps_taken = torch.zeros((), device=device)
        matrices = _block_matrices(self.learners[0]) if config.optimiser.optimiser == "muon" else []
        rest = [name for name in self.weights if name not in matrices]
        self.averages = {name: torch.zeros_like(self.weights[name]).detach() for name in rest}
        self.squares = {name: torch.zeros_like(self.weights[name]).detach() for name in rest}
        self.muon: Muon | None = None
        if matrices:
            self.muon = Muon(
                [self.weights[name] for name in matrices],
                self.muon_lr,
                momentum=config.optimiser.momentum,
                decay=config.optimiser.decay,
                dtype=torch.bfloat16 if config.device.precision == "bf16" else torch.float32,
                compiled=config.device.compile != "off",
            )
            names = {self.weights[name]: name for name in matrices}
            self.momenta = {names[matrix]: buffer for matrix, buffer in self.muon.state.items()}

    def state_of(self, k: int) -> dict[str, Tensor]:
        """Learner k's part, by the names that its own TrainStep would give: views, but for the count of steps."""
        adam = {f"optimiser/exp_avg/{name}": each[k] for name, each in self.averages.items()}
        adam |= {f"optimiser/exp_avg_sq/{name}": each[k] for name, each in self.squares.items()}
        adam |= {f"optimiser/step/{name}": self.steps_taken for name in self.averages}
        momenta = {f"optimiser/momentum/{name}": each[k] for name, each in self.momenta.items()} if self.muon else {}
        return weights_of(self.learners[k]) | adam | momenta

    def state(self) -> dict[str, Tensor]:
        return {f"{k}/{name}": each for k in range(len(self.configs)) for name, each in self.state_of(k).items()}

    def load(self, state: dict[str, Tensor], where: Path | str = "memory") -> None:
        copy_into(self.state(), state, where)

    def load_one(self, k: int, state: dict[str, Tensor], where: Path | str) -> None:
        """Learner k's from a checkpoint of its run; all must be loaded from the same step."""
        copy_into(self.state_of(k), state, where)

    def _prepare(self, step: int) -> None:
        for generator, config in zip(self.generators, self.configs, strict=True):
            at_step(generator, config.seed, step)
        factor = rate_factor(self.config, step)
        for k, config in enumerate(self.configs):
            self.lr[k] = config.optimiser.lr * factor
            self.muon_lr[k] = config.optimiser.muon_lr * factor
        self._set_masks(step)

    def _sample_and_descend(self) -> None:
        drawn = zip(self.tasks, self.generators, strict=True)
        prompts = [task.sample(generator, self.config.schedule.batch, self.live) for task, generator in drawn]
        for weight in self.weights.values():
            weight.grad = None
        tokens, targets = (torch.stack([getattr(each, part) for each in prompts]) for part in ("tokens", "targets"))
        losses = self._losses(self.weights, tokens, targets)
        losses.sum().backward()
        self.loss.copy_(losses.detach())
        if self.config.optimiser.clip:
            self._clip()
        self._adam()
        if self.muon is not None:
            self.muon.step()

    def _map(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Float[Tensor, " models"]:
        def loss_of(weights: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
            named = {
                f"learner.{name}": each.bfloat16() if name in self.inner else each for name, each in weights.items()
            }
            loss: Tensor = functional_call(self.one, named, (tokens, targets, self.weight))
            return loss

        losses: Tensor = torch.vmap(loss_of)(weights, tokens, targets)
        return losses

    @torch.no_grad()
    def _clip(self) -> None:
        """As `clip_grad_norm_`, for each learner by its own norm."""
        gradients = [weight.grad for weight in self.weights.values() if weight.grad is not None]
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
        factor = (self.config.optimiser.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(_along(factor, gradient))

    @torch.no_grad()
    def _adam_step(self) -> None:
        self.steps_taken.add_(1)
        beta2 = self.config.optimiser.beta2
        done = self.steps_taken.double()  # 1 − β₂ᵗ cancels: float32 would keep five digits
        rate, scale = (self.lr / (1 - BETA1**done)).float(), (1 - beta2**done).sqrt().float()
        for name, average in self.averages.items():
            gradient, square = self.weights[name].grad, self.squares[name]
            assert gradient is not None
            average.lerp_(gradient, 1 - BETA1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            self.weights[name].sub_(_along(rate, average) * average / (square.sqrt() / scale + EPSILON))


class _OneLoss(nn.Module):
    """A learner's loss as a module's forward, which is what torch.func calls."""

    def __init__(self, learner: Learner, task: Task) -> None:
        super().__init__()
        self.learner, self.task = learner, task

    def forward(self, tokens: Tensor, targets: Tensor, weight: Tensor | None) -> Tensor:
        return self.learner.loss(tokens, targets, self.task.asked, weight)


def _mapped(config: TrainConfig, task: Task, device: torch.device) -> Learner:
    """The learner without weights that is mapped over the stack. The CPU's fused attention cannot be mapped."""
    fused = config.model.fused and device.type == "cuda"
    return config.changed(fused=fused).make_learner(task).to("meta")


def _block_matrices(learner: Learner) -> list[str]:
    blocks = [part for part in learner.modules() if isinstance(part, Block)]
    names: dict[Tensor, str] = {parameter: name for name, parameter in learner.named_parameters()}
    return [names[matrix] for block in blocks for matrix in block.matrices]


def _inner(learner: Learner) -> frozenset[str]:
    """What computes in bf16, as in `Worker`: all matrices but the reading in and out."""
    affine = [name for name, part in learner.named_modules() if isinstance(part, Affine)]
    outer = ("read_in", "read_out")
    return frozenset(
        name
        for name, _ in learner.named_parameters()
        if (part := name.rpartition(".")[0]) in affine and part not in outer
    )


def _along(per_model: Float[Tensor, " models"], like: Tensor) -> Tensor:
    """One number a learner, shaped to multiply a stacked tensor."""
    return per_model.view(-1, *[1] * (like.ndim - 1))
