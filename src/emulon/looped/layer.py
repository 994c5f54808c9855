"""Layers as Eq. 1 of Gao et al. 2024 writes them, matrices by names of slots, and pre ∘ loop^T ∘ post (Eq. 2)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Slots, attend
from emulon.core.arrays import eye, zeros
from emulon.core.errors import OutOfDomain


class Layer(nn.Module):
    """A(X) = X + Σ_h W_V X·softmax((W_K X)ᵀ W_Q X), then A + W_2·ReLU(W_1 A + b_1) + b_2, tokens as rows.

    The matrices are buffers: w_k and w_q (heads, width, features), w_v (heads, features, features), w_1 (hidden,
    features), w_2 (features, hidden). No heads is the paper's identity attention (W_V = 0), no hidden units no MLP.
    """

    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    w_1: Tensor
    b_1: Tensor
    w_2: Tensor
    b_2: Tensor

    def __init__(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        mlp: tuple[Tensor, Tensor, Tensor, Tensor],
        *,
        dtype: torch.dtype,
        causal: bool = False,
        name: str = "layer",
    ) -> None:
        super().__init__()
        self.name = name
        self.causal = causal
        for key, matrix in zip(("w_k", "w_q", "w_v", "w_1", "b_1", "w_2", "b_2"), (*heads, *mlp), strict=True):
            self.register_buffer(key, matrix.to(dtype).contiguous())

    @property
    def heads(self) -> int:
        return self.w_v.shape[0]

    @property
    def hidden(self) -> int:
        return self.w_1.shape[0]

    def extra_repr(self) -> str:
        mask = ", causal" if self.causal else ""
        return f"{self.name}: heads={self.heads}, hidden={self.hidden}, features={self.w_2.shape[0]}{mask}"

    def forward(self, tokens: Float[Tensor, "... tokens features"]) -> Float[Tensor, "... tokens features"]:
        attended = tokens
        if self.heads:
            read = tokens.unsqueeze(-3)
            queries, keys, values = read @ self.w_q.mT, read @ self.w_k.mT, read @ self.w_v.mT
            attended = tokens + attend(queries, keys, values, causal=self.causal, name=self.name).sum(dim=-3)
        if not self.hidden:
            return attended
        return attended + (torch.relu(attended @ self.w_1.mT + self.b_1) @ self.w_2.mT + self.b_2)


class Frame(nn.Module):
    """The three stacks of layers."""

    def __init__(self, pre: Sequence[Layer], loop: Sequence[Layer], post: Sequence[Layer]) -> None:
        super().__init__()
        self.pre, self.loop, self.post = nn.ModuleList(pre), nn.ModuleList(loop), nn.ModuleList(post)

    @property
    def heads(self) -> dict[str, list[int]]:
        """The heads of every layer of the three stacks."""
        stacks = {"pre": self.pre, "loop": self.loop, "post": self.post}
        return {name: [layer.heads for layer in stack if isinstance(layer, Layer)] for name, stack in stacks.items()}

    def extra_repr(self) -> str:
        return "\n".join(f"{name}: heads {heads}" for name, heads in self.heads.items())

    def iterates(self, tokens: Tensor, loops: int) -> Iterator[Tensor]:
        """The token matrices after pre and 0, 1, …, `loops` loops."""
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


# Of numbers that a gate shuts out: their sum with the gate is still a float64.
HIGHEST = 1e300


def read(slots: Slots, **terms: float | Tensor) -> Tensor:
    """The matrix (rows, width) of a sum of slots, each times a number or a matrix: read(s, x=1.0) is 'x' itself.

    >>> read(Slots(x=2, y=1), x=2.0)
    tensor([[2., 0., 0.],
            [0., 2., 0.]], dtype=torch.float64)
    """
    blocks = []
    for name, factor in terms.items():
        matrix = factor if isinstance(factor, Tensor) else factor * eye(slots.size(name))
        block = zeros(matrix.shape[0], slots.width)
        block[:, slots[name]] = matrix
        blocks.append(block)
    return torch.stack(blocks).sum(dim=0)


def write(slots: Slots, into: str, rows: Tensor) -> Tensor:
    """The matrix (width, columns) that puts `rows` into one slot and zero everywhere else."""
    out = zeros(slots.width, rows.shape[-1])
    out[slots[into]] = rows
    return out


Heads = tuple[Tensor, Tensor, Tensor]


def no_heads(slots: Slots) -> Heads:
    """Identity attention."""
    empty = zeros(0, 1, slots.width)
    return empty, empty, zeros(0, slots.width, slots.width)


def join(*groups: Heads) -> Heads:
    """Heads side by side; shorter queries and keys are padded with zero rows, which changes no score."""
    depth = max(group[0].shape[1] for group in groups)
    keys = [torch.nn.functional.pad(group[0], (0, 0, 0, depth - group[0].shape[1])) for group in groups]
    queries = [torch.nn.functional.pad(group[1], (0, 0, 0, depth - group[1].shape[1])) for group in groups]
    return torch.cat(keys), torch.cat(queries), torch.cat([group[2] for group in groups])


class TokenSlots(Slots):
    """Slots of a token, with one indicator for each kind of token: exactly one of these is 1 on a token.

    Args:
        kinds: The kinds of tokens.
        **sizes: Of all other slots.
    """

    def __init__(self, kinds: tuple[str, ...], **sizes: int) -> None:
        super().__init__(**sizes, **dict.fromkeys(kinds, 1))
        self.kinds = kinds

    @property
    def one(self) -> Tensor:
        """The row that reads 1 on every token."""
        return self.elsewhere()

    def elsewhere(self, *kinds: str) -> Tensor:
        """The row that reads 0 on tokens of these kinds and 1 on all others."""
        return read(self, **{kind: 1.0 for kind in self.kinds if kind not in kinds})


def gate_height(bound: float) -> float:
    """A power of two safely above every number a gate has to shut out."""
    if not bound < HIGHEST:
        raise OutOfDomain(f"numbers on this domain may grow to {bound:.1e}, which no gate shuts out; rescale the data")
    return 2.0 ** math.ceil(math.log2(max(bound, 1e-300)) + 2)


class Circuit:
    """Collects ReLU units; `matrices` are W_1, b_1, W_2, b_2 of Eq. 1.

    Products of an entry by a 0-1 indicator are exact where the *other* indicators are read: z·1[on] =
    ReLU(z − B·off) − ReLU(−z − B·off) for |z| ≤ B, and off = 0 leaves z untouched by any rounding.
    """

    def __init__(self, slots: TokenSlots) -> None:
        self.slots = slots
        self._reads: list[Tensor] = []
        self._biases: list[Tensor] = []
        self._writes: list[Tensor] = []

    def unit(self, rows: Tensor, bias: Tensor | float, writes: Tensor) -> Circuit:
        """Hidden units ReLU(rows·token + bias), written back through `writes` (width, units)."""
        self._reads.append(rows)
        self._biases.append(torch.as_tensor(bias, dtype=torch.float64, device="cpu").expand(rows.shape[0]))
        self._writes.append(writes)
        return self

    def move(
        self,
        rows: Tensor,
        into: str,
        *,
        on: tuple[str, ...] = (),
        bound: float = 1.0,
        bias: Tensor | float = 0.0,
        slope: float = 1.0,
        scale: float = 1.0,
    ) -> Circuit:
        """Add scale·(ReLU(z) − slope·ReLU(−z)), z = rows·token + bias, to a slot; by default that is z itself.

        With kinds `on` nothing is added on tokens of other kinds, if |z| ≤ bound there.
        """
        shut = gate_height(bound) * self.slots.elsewhere(*on) if on else zeros(1, self.slots.width)
        one, offset = scale * eye(rows.shape[0]), bias + zeros(rows.shape[0])
        self.unit(rows - shut, offset, write(self.slots, into, one))
        return self.unit(-rows - shut, -offset, write(self.slots, into, -slope * one))

    def clear(self, name: str, *, on: tuple[str, ...] = (), bound: float = 1.0) -> Circuit:
        """Set a slot to zero."""
        return self.move(read(self.slots, **{name: -1.0}), name, on=on, bound=bound)

    @property
    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        width = self.slots.width
        if not self._reads:
            return zeros(0, width), zeros(0), zeros(width, 0), zeros(width)
        return torch.cat(self._reads), torch.cat(self._biases), torch.cat(self._writes, dim=1), zeros(width)
