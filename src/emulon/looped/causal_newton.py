"""Beyond Gao et al. 2024: a decoder in which every position runs Newton–Schulz for ridge regression on its prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.certify.domain import SLACK
from emulon.certify.rounding import unit
from emulon.core.errors import OutOfDomain
from emulon.looped.causal import CausalLoopedRegression, self_product_heads, self_stencil
from emulon.looped.exact import causal_answers, newton
from emulon.looped.heads import CAUSAL_KINDS, Stencil, causal_code_length, elsewhere, readout_heads, recall_layer
from emulon.looped.layer import Circuit, Frame, Heads, Layer, constant, eye, join, read, zeros
from emulon.looped.transformer import HORIZON, fewest_pairs

# How far computed products may exceed the bounds of the exact ones.
ROOM = 2.0**-6


class CausalLoopedNewton(CausalLoopedRegression):
    """Claim: position i predicts x_i·M_T·mean_{j<i} y_j x_j, M_0 = αH, M ← 2M − MHM, H = mean_{j<i} x_j x_jᵀ + λI,
    up to `certificate_after(T)`: Newton's method in a decoder, converging to ridge regression on every prefix.

    Assumes: data in `domain`; λ > 0. α = 1/(norm² + λ)². The error grows with ((norm² + λ)/λ)².
    Bound: `CausalNewtonLoop.drifts`.
    Cost: pre 2 layers, loop 2, post 2; the loop's layers have 2·pairs·d² heads and tokens are 4d² + O(d) wide, against
    two heads and O(d) for the encoder, because each of N positions iterates another matrix: meant for small d.

    Args:
        domain: Bounds on the data.
        ridge: λ.
        tolerance: Largest error of a prediction for up to `horizon` loops; the fewest heads that keep it are used. None
            takes the most exact.
        horizon: Most loops.
        dtype: float64 or float32.
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
        super().__init__(domain, dtype=dtype, horizon=horizon)
        if not ridge > 0:
            raise OutOfDomain(f"ridge must be positive: prefixes shorter than the features are singular, got {ridge}")
        self.ridge = ridge
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

    def _solver(self, pairs: int) -> CausalNewtonLoop:
        return CausalNewtonLoop(self.domain, self.ridge, pairs, self.dtype)

    def promise_after(self, loops: int) -> Certificate:
        return Certificate(self.solver.terms(self.solver.drifts(loops)[-1]), self.dtype)

    @property
    def worst_loops(self) -> int:
        """Errors shrink as Newton converges: the last loop need not be the worst."""
        drifts = self.solver.drifts(self.horizon)
        return drifts.index(max(drifts))

    def _bound(self, pairs: int, horizon: int) -> float:
        solver = self._solver(pairs)
        return sum(solver.terms(max(solver.drifts(horizon))).values())

    def exact(self, xs: Tensor, labels: Tensor, x_query: Tensor, *, loops: int) -> list[Any]:
        def fit(rows: Any, ys: Any) -> Any:
            return newton(rows, ys, self.solver.scale, loops, ridge=self.ridge)

        return causal_answers(xs, labels, x_query, fit)


@dataclass(frozen=True)
class CausalNewtonLoop:
    """M ← 2M − MHM at every position i, H = mean_{j<i} x_j x_jᵀ + λI, from M_0 = αH; w = M·mean_{j<i} y_j x_j.

    λ > 0 keeps every prefix regular, also those shorter than d, where without it each rounding error would double at
    every loop. A position needs its own M, so a token holds d² numbers instead of the d of M x_i; the products of
    matrices in one token are `self_product` heads, one pair (or more) for every entry.
    """

    domain: Domain
    ridge: float
    pairs: int
    dtype: torch.dtype

    @property
    def top(self) -> float:
        """H_i ≤ norm² + λ."""
        return self.domain.norm**2 * (1 + 3 * SLACK) + self.ridge

    @property
    def scale(self) -> float:
        return 1 / self.top**2

    @property
    def weight_norm(self) -> float:
        """‖w^i_k‖₂ ≤ max σ/(σ²+λ)·y ≤ y/(2√λ), because 0 ≤ M_k ≤ H⁻¹."""
        return self.domain.y / (2 * math.sqrt(self.ridge)) * (1 + ROOM)

    @cached_property
    def stencils(self) -> dict[str, Stencil]:
        d, tokens = self.domain.features, 2 * self.domain.samples + 2
        code, room, inverse = causal_code_length(self.domain.samples), 1 + ROOM, 1 / self.ridge

        def collect(reach: float) -> Stencil:
            samples, lift = self.domain.samples, math.log(self.domain.samples)
            made = Stencil(self.pairs, reach=reach, tokens=tokens, summed=samples, width=3, dtype=self.dtype, lift=lift)
            return made.balanced()

        def inside(reach: float, lengths: float) -> Stencil:
            """`lengths` bounds ‖q‖·‖k‖."""
            ratio = max(1.0, lengths / reach)
            return self_stencil(
                self.pairs, reach=reach, tokens=tokens, width=d, code=code, dtype=self.dtype, cauchy=ratio
            )

        moment, longest = self.domain.norm * self.domain.y * room, self.weight_norm * self.domain.norm * room
        return {
            "gram": collect(self.domain.x),
            "moment": collect(self.domain.y),
            "product": inside(room, self.top * inverse * room**2),
            "step": inside(inverse * room, inverse * room**3 * self.top * inverse),
            "weights": inside(self.weight_norm, inverse * room * moment),
            "answer": inside(longest, longest),
        }

    def collect_layer(self, slots: Slots) -> Layer:
        """Means of x_j x_jᵀ and y_j x_j over the prefix, the former row by row; then + λI, and M_0 = αH."""
        d, one = self.domain.features, constant(slots, *CAUSAL_KINDS)
        mean = (read(slots, log_count=1.0), read(slots, sink=1.0))

        def heads(stencil: Stencil, key: Tensor, value: Tensor, into: str) -> Heads:
            sink = read(slots, sink=1.0)
            return readout_heads(
                slots, stencil, query=one, key=key, value=value, into=into, one=one, sink=sink, extra=mean
            )

        past, groups = read(slots, past=1.0), []
        for row in range(d):
            place = zeros(d * d, d)
            place[row * d : (row + 1) * d] = eye(d)
            groups.append(heads(self.stencils["gram"], past[row : row + 1], read(slots, past=place), "step"))
        groups.append(heads(self.stencils["moment"], read(slots, y=1.0), past, "w"))
        here, diagonal = elsewhere(slots, "point"), eye(d).reshape(-1, 1)
        gram = read(slots, step=1.0, point=self.ridge * diagonal)
        # A label's token, shut out here, sums over its prefix without dividing.
        most = 2 * self.domain.samples
        circuit = Circuit(slots).move(gram, "gram", off=here, bound=most * self.top)
        circuit.move(self.scale * gram, "inverse", off=here, bound=most * self.scale * self.top)
        circuit.move(read(slots, w=1.0), "moment", off=here, bound=most * self.domain.norm * self.domain.y)
        circuit.clear("step").clear("w")
        return Layer(join(*groups), circuit.matrices, dtype=self.dtype, causal=True, name="collect")

    def loop_layers(self, slots: Slots) -> list[Layer]:
        """T = HM, then M ← 2M − MT."""
        d = self.domain.features
        multiply = self._matrix_product(slots, "gram", "inverse", "product")
        tidy = Circuit(slots).clear("product", off=read(slots, point=1.0), bound=4.0)
        step = self._matrix_product(slots, "inverse", "product", "step")
        update = Circuit(slots).move(
            read(slots, inverse=1.0, step=-1.0), "inverse", off=elsewhere(slots, "point"), bound=4 * d / self.ridge
        )
        update.clear("product").clear("step")
        return [
            Layer(multiply, tidy.matrices, dtype=self.dtype, causal=True, name="product"),
            Layer(step, update.matrices, dtype=self.dtype, causal=True, name="newton step"),
        ]

    def answer_layers(self, slots: Slots) -> list[Layer]:
        """w = M·moment, then y = w·x."""
        d, stencils = self.domain.features, self.stencils
        rows = [
            self_product_heads(
                slots, stencils["weights"], _row(slots, "inverse", d, i), read(slots, moment=1.0), "w", i
            )
            for i in range(d)
        ]
        last = self_product_heads(slots, stencils["answer"], read(slots, w=1.0), read(slots, x=1.0), "y")
        nothing = Circuit(slots).matrices
        return [
            Layer(join(*rows), nothing, dtype=self.dtype, causal=True, name="weights"),
            Layer(last, nothing, dtype=self.dtype, causal=True, name="answer"),
        ]

    def _matrix_product(self, slots: Slots, left: str, right: str, into: str) -> Heads:
        d = self.domain.features
        return join(
            *(
                self_product_heads(
                    slots, self.stencils[into], _row(slots, left, d, i), _column(slots, right, d, j), into, i * d + j
                )
                for i in range(d)
                for j in range(d)
            )
        )

    def drifts(self, loops: int) -> list[float]:
        """Claim: ‖M̂_T − M_T‖_F ≤ the T-th of these, at every position; infinite where nothing holds.

        Proof. Entries of the collected H are off by x·reach·relative. T = HM errs by d·reach·relative in Frobenius
        norm, the step by as much of its own reach, so Δ ≤ ‖M̂‖·… + … + ‖M̂‖²·‖Ĥ − H‖ and, as in `newton_errors` but
        with M square and H regular, e ← (2 − 2p_min)e + top·e² + Δ. Scores must stay in reach for that: with Ĥ off by
        g and M̂ = M + E, ‖ĤM̂‖ ≤ 1 + top·e + ‖M̂‖g, and as ‖MHM‖ ≤ 1/λ, ‖M̂ĤM̂‖ ≤ 1/λ + 2e + top·e² + ‖M̂‖²g. QED
        """
        d, small, inverse, stencils = self.domain.features, unit(self.dtype), 1 / self.ridge, self.stencils
        gram = d * (stencils["gram"].error(self.domain.x) + 4 * small * self.top)
        error, least = self.scale * (gram + 4 * small * d * self.top), (self.ridge / self.top) ** 2
        errors = [error]
        for step in range(loops):
            size = inverse + error
            product = size**2 * gram + d * size * stencils["product"].error(1.0)
            if self.top * error + size * gram > ROOM or (2 + self.top * error) * error + product > ROOM * inverse:
                return errors + [math.inf] * (loops - step)
            shock = product + d * stencils["step"].error(1.0) + 8 * small * math.sqrt(d) * size * (2 + ROOM)
            error = (2 - 2 * least + self.top * error) * error + shock
            least = least * (2 - least)
            errors.append(error)
        return errors

    def terms(self, drift: float) -> dict[str, float]:
        """The prediction's error from ‖M̂ − M‖ ≤ drift: w errs by drift·‖moment‖ + ‖M̂‖·(moment's) + its readout."""
        d, stencils, size = self.domain.features, self.stencils, 1 / self.ridge + drift
        moment_norm, length = self.domain.norm * self.domain.y, self.domain.norm * (1 + SLACK)
        moment = math.sqrt(d) * (stencils["moment"].error(self.domain.x) + 2 * unit(self.dtype) * moment_norm)
        readout = math.sqrt(d) * stencils["weights"].error(1.0)
        if drift * moment_norm + size * moment + readout > ROOM * self.weight_norm / 2:
            return {"loop": math.inf}
        return {
            "loop": drift * moment_norm * length,
            "collected means": size * moment * length,
            "weights": readout * length,
            "answer": stencils["answer"].error(1.0),
        }


def _row(slots: Slots, name: str, size: int, index: int) -> Tensor:
    return read(slots, **{name: 1.0})[index * size : (index + 1) * size]


def _column(slots: Slots, name: str, size: int, index: int) -> Tensor:
    return read(slots, **{name: 1.0})[index::size]
