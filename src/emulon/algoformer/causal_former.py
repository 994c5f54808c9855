"""What decoders share: every position predicts its own label from the pairs before it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.algoformer.causal_tokens import causal_tokens
from emulon.algoformer.former import Former
from emulon.certify import Domain


class CausalFormer(Former):
    """Supplies frame, slots and certificate; position i of the prompt predicts y_i, the query's is N+1."""

    domain: Domain

    def predict(
        self,
        xs: Float[Tensor, "... samples features"],
        ys: Float[Tensor, "... samples"],
        x_query: Float[Tensor, "... features"],
        *,
        loops: int,
    ) -> Float[Tensor, "*batch"]:
        """w_T·x_query, w_T from all the samples."""
        return self.predict_prefixes(xs, ys, x_query, loops=loops)[..., -1]

    def predict_prefixes(
        self,
        xs: Float[Tensor, "... samples features"],
        ys: Float[Tensor, "... samples"],
        x_query: Float[Tensor, "... features"],
        *,
        loops: int,
    ) -> Float[Tensor, "... positions"]:
        """w^i_T·x_i at every position i = 1, …, N+1, each from the pairs before it (the first predicts 0)."""
        return self.predictions(xs, ys, x_query, loops=loops)[-1]

    def predictions(self, xs: Tensor, ys: Tensor, x_query: Tensor, *, loops: int) -> Tensor:
        """The predictions of all positions after 0, 1, …, loops steps, along a new first dimension."""
        return torch.stack([self._answers(state) for state in self._states(xs, ys, x_query, loops)])

    def _answers(self, state: Tensor) -> Tensor:
        return self.frame.finish(state)[..., 1::2, self.slots["y"]].squeeze(-1)

    def _states(self, xs: Tensor, ys: Tensor, x_query: Tensor, loops: int) -> Iterator[Tensor]:
        self.require_loops(loops)
        self.require_dtype(xs=xs, ys=ys, x_query=x_query)
        self.domain.check_problem(xs, ys.unsqueeze(-1), x_query, spectrum=False)
        return self.frame.iterates(causal_tokens(self.slots, xs, ys, x_query), loops)
