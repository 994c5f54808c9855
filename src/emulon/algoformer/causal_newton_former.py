"""Beyond the paper: a decoder in which every position runs Newton–Schulz for ridge regression on its own prefix."""

from __future__ import annotations

import torch

from emulon.algoformer.causal_former import CausalFormer
from emulon.algoformer.causal_newton_step import CausalNewton
from emulon.algoformer.causal_tokens import CAUSAL_KINDS, causal_code_length, recall_layer
from emulon.algoformer.former import HORIZON, fewest_pairs
from emulon.algoformer.frame import Frame
from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.errors import OutOfDomain


class CausalNewtonFormer(CausalFormer):
    """Claim: position i predicts x_i·M_T·mean_{j<i} y_j x_j, M_0 = αH, M ← 2M − MHM, H = mean_{j<i} x_j x_jᵀ + λI,
    up to `certificate(T)`: Newton's method in a decoder, converging to ridge regression on every prefix.

    Assumes: data in `domain`; λ > 0. α = 1/(norm² + λ)². The error grows with ((norm² + λ)/λ)².
    Bound: `CausalNewton.drifts`; the fewest heads that keep `tolerance` for T ≤ horizon (None: the most exact).
    Cost: pre 2 layers, loop 2, post 2; the loop's layers have 2·pairs·d² heads and tokens are 4d² + O(d) wide, against
    two heads and O(d) for the encoder, because each of N positions iterates another matrix: meant for small d.
    """

    def __init__(
        self,
        domain: Domain,
        ridge: float,
        tolerance: float | None = None,
        *,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(dtype=dtype, horizon=horizon)
        if not ridge > 0:
            raise OutOfDomain(f"ridge must be positive: prefixes shorter than the features are singular, got {ridge}")
        self.domain, self.ridge = domain, ridge
        self.pairs = fewest_pairs(self._bound, tolerance, horizon)
        d = self.domain.features
        squares = dict.fromkeys(("gram", "inverse", "product", "step"), d * d)
        self.slots = Slots(
            **dict.fromkeys(("x", "past", "moment", "w"), d),
            **squares,
            y=1,
            log_count=1,
            code=causal_code_length(self.domain.samples),
            **dict.fromkeys(CAUSAL_KINDS, 1),
        )
        self.solver = self._solver(self.pairs)
        recall = recall_layer(self.slots, "w", self.domain.x, dtype)
        self.frame = Frame(
            [recall, self.solver.collect_layer(self.slots)],
            self.solver.loop_layers(self.slots),
            self.solver.answer_layers(self.slots),
            {},
        )

    def _solver(self, pairs: int) -> CausalNewton:
        return CausalNewton(self.domain, self.ridge, pairs, self.dtype)

    def certificate(self, loops: int | None = None) -> Certificate:
        drift = self.solver.drifts(self.horizon if loops is None else loops)[-1]
        return Certificate(self.solver.terms(drift), self.dtype)

    def _bound(self, pairs: int, horizon: int) -> float:
        """The largest bound of any loop count up to the horizon: Newton forgets, so the last need not be the worst."""
        solver = self._solver(pairs)
        return sum(solver.terms(max(solver.drifts(horizon))).values())
