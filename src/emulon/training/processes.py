"""Several processes training one model, by torchrun's environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Processes:
    """This process's rank among `world`; rank 0 writes the run folder."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Every tensor becomes its mean over the processes, in one exchange."""
        if self.world == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        parts = (flat / self.world).split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def agree(self, stop: bool) -> bool:
        """Whether the leading process says stop: all must leave the loop at the same step."""
        if self.world == 1:
            return stop
        said = torch.tensor([float(stop)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.broadcast(said, src=0)
        return bool(said.item())


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """The processes torchrun started; alone where it started none."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes()
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield Processes(dist.get_rank(), world, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()
