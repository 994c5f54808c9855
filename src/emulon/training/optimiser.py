"""What turns gradients into steps: Adam for everything, or Muon for the blocks' matrices and Adam for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.models import Block, Learner

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

    The matrices of one shape are one batch. Products run in `dtype`; momentum and weights stay float32. An update is
    scaled by √max(1, rows/columns). Updates have the same size however small the gradient, so that matrices grow for as
    long as the rate is high; `decay` times the rate is what they shrink by at every step. `lr` is a tensor, so that a
    CUDA graph can replay the step.
    """

    def __init__(
        self,
        matrices: Sequence[Tensor],
        lr: Tensor,
        *,
        momentum: float,
        dtype: torch.dtype,
        compiled: bool,
        decay: float = 0.0,
    ) -> None:
        self.lr, self.momentum, self.dtype, self.decay = lr, momentum, dtype, decay
        self.groups: dict[torch.Size, list[Tensor]] = {}
        for matrix in matrices:
            self.groups.setdefault(matrix.shape, []).append(matrix)
        self.buffers = {shape: torch.zeros_like(torch.stack(group)) for shape, group in self.groups.items()}
        update = torch.compile(self._update, dynamic=False) if compiled else self._update
        self._updates: Callable[[Tensor, Tensor], Tensor] = update

    @property
    def state(self) -> dict[Tensor, Tensor]:
        """The momentum of each matrix, the very memory."""
        groups = ((group, self.buffers[shape]) for shape, group in self.groups.items())
        return {matrix: momentum for group, buffer in groups for matrix, momentum in zip(group, buffer, strict=True)}

    @torch.no_grad()
    def step(self) -> None:
        for shape, group in self.groups.items():
            gradients = torch.stack([matrix.grad for matrix in group if matrix.grad is not None])
            updates = self._updates(gradients, self.buffers[shape])
            if self.decay:
                updates = updates - self.lr * self.decay * torch.stack(group)
            torch._foreach_add_(group, updates.unbind(0))

    def _update(self, gradients: Tensor, buffer: Tensor) -> Tensor:
        """Nesterov's momentum, orthogonalised; the buffer is updated on the way."""
        buffer.lerp_(gradients, 1 - self.momentum)
        direction = orthogonalised(torch.lerp(gradients, buffer, self.momentum), self.dtype)
        rows, columns = gradients.shape[-2:]
        return direction.mul(-self.lr * max(1.0, rows / columns) ** 0.5)


class Optimiser:
    """Adam with a rate of its own for what Muon does not take; its state by name, for checkpoints."""

    def __init__(
        self,
        learner: Learner,
        device: torch.device,
        *,
        muon: bool,
        beta2: float = 0.999,
        momentum: float = 0.95,
        decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
        compiled: bool = False,
    ) -> None:
        self.lr, self.muon_lr = torch.tensor(0.0, device=device), torch.tensor(0.0, device=device)
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in learner.named_parameters()}
        blocks = [part for part in learner.modules() if isinstance(part, Block)]
        matrices = [matrix for block in blocks for matrix in block.matrices] if muon else []
        rest = [p for p in self.names if not any(p is matrix for matrix in matrices)]
        self.muon: Muon | None = None
        if matrices:
            self.muon = Muon(matrices, self.muon_lr, momentum=momentum, dtype=dtype, compiled=compiled, decay=decay)
        capturable = device.type == "cuda"
        self.adam = torch.optim.Adam(rest, lr=self.lr, betas=(0.9, beta2), fused=True, capturable=capturable)
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
