"""The trained-then-frozen multi-head module of Hu et al. 2025, sections 5.2 and C.1."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from emulon.attention import attend
from emulon.errors import BadShape
from emulon.models.block import Affine, BlockShape
from emulon.models.learner import Learner


class MultiHead(nn.Module):
    """Linear in, `heads` softmax heads over all tokens, linear out. Nothing else: no norm, no MLP, no residual."""

    def __init__(self, width_in: int, width_out: int, hidden: int, heads: int, name: str = "multi_head") -> None:
        super().__init__()
        if hidden % heads:
            raise BadShape(f"{heads} heads do not divide a hidden width of {hidden}; choose a multiple")
        self.heads, self.name = heads, name
        self.lift = Affine(width_in, hidden)
        self.to_qkv = Affine(hidden, 3 * hidden)
        self.out = Affine(hidden, width_out)

    def forward(self, tokens: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch tokens out"]:
        q, k, v = self.to_qkv(self.lift(tokens)).unflatten(-1, (3, self.heads, -1)).movedim(-2, -4).unbind(dim=-2)
        mixed = attend(q * q.shape[-1] ** -0.5, k, v, name=self.name)
        out: Tensor = self.out(mixed.movedim(-3, -2).flatten(-2))
        return out


class FrozenAttention(Learner, name="frozen"):
    """One multi-head layer, or with `assemble` the two of section 5.2: three multi-head modules make K, Q and V, and
    one single softmax head puts them together.

    It is trained like any learner; `freeze` then turns its weights into buffers, which no optimiser can see.
    """

    causal = False

    def __init__(
        self,
        width_in: int,
        width_out: int,
        tokens: int,
        *,
        width: int = 48,
        heads: int = 6,
        assemble: bool = False,
    ) -> None:
        super().__init__(width_in, width_out, tokens, BlockShape(width, heads))
        self.assemble = assemble
        names = ("make_keys", "make_queries", "make_values") if assemble else ("make_values",)
        self.parts = nn.ModuleDict({name: MultiHead(width, width, width, heads, name) for name in names})

    def states(
        self,
        embedded: Float[Tensor, "batch tokens width"],
        window: int | None = None,
        visible: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "1 batch tokens width"]:
        made: dict[str, Tensor] = {name: part(embedded) for name, part in self.parts.items()}
        if not self.assemble:
            return made["make_values"].unsqueeze(0)
        queries = made["make_queries"] * made["make_keys"].shape[-1] ** -0.5
        return attend(queries, made["make_keys"], made["make_values"], name="assemble").unsqueeze(0)

    @torch.no_grad()
    def freeze(self) -> FrozenAttention:
        """From here on the weights are buffers: only the prompt can change what the module does."""
        for module in self.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, parameter.detach().clone())
        return self
