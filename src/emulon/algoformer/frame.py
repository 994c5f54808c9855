"""Eq. 2: pre ∘ loop^T ∘ post, with T an argument of the call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from emulon.algoformer.layer import Layer
from emulon.errors import OutOfDomain


@dataclass(frozen=True)
class Size:
    """Layers of one of the three transformers, and the heads of its widest layer."""

    layers: int
    heads: int

    def __str__(self) -> str:
        return f"{self.layers} layer{'s' * (self.layers != 1)} of ≤ {self.heads} head{'s' * (self.heads != 1)}"


class Frame(nn.Module):
    """The three stacks of layers; `stated` is what the theorem says they take, where there is one."""

    def __init__(
        self, pre: Sequence[Layer], loop: Sequence[Layer], post: Sequence[Layer], stated: Mapping[str, Size]
    ) -> None:
        super().__init__()
        self.pre, self.loop, self.post = nn.ModuleList(pre), nn.ModuleList(loop), nn.ModuleList(post)
        self.stated = dict(stated)

    @property
    def heads(self) -> dict[str, list[int]]:
        """The heads of every layer of the three stacks."""
        stacks = {"pre": self.pre, "loop": self.loop, "post": self.post}
        return {name: [layer.heads for layer in stack if isinstance(layer, Layer)] for name, stack in stacks.items()}

    @property
    def sizes(self) -> dict[str, Size]:
        return {name: Size(len(heads), max(heads, default=0)) for name, heads in self.heads.items()}

    def extra_repr(self) -> str:
        stated = {name: f" (theorem: {size})" for name, size in self.stated.items()}
        return "\n".join(f"{name}: {size}{stated.get(name, '')}" for name, size in self.sizes.items())

    def forward(self, tokens: Float[Tensor, "... tokens features"], loops: int) -> Float[Tensor, "... tokens features"]:
        *_, looped = self.iterates(tokens, loops)
        return self.finish(looped)

    def iterates(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        """The token matrices after pre and 0, 1, …, `loops` loops."""
        if loops < 0:
            raise OutOfDomain(f"loops must not be negative, got {loops}")
        for layer in self.pre:
            tokens = layer(tokens)
        yield tokens
        for _ in range(loops):
            for layer in self.loop:
                tokens = layer(tokens)
            yield tokens

    def finish(self, tokens: Tensor) -> Tensor:
        for layer in self.post:
            tokens = layer(tokens)
        return tokens
