"""Which precision the matrix products run in; weights, norms, residual stream and optimiser stay float32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from emulon.models import Affine, Decoder, Learner


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
