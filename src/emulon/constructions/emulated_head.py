"""What Theorems 4.1 and 4.2 share: from emulated K, Q and V to the head's output, and how errors pass through it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Head
from emulon.certify import Certificate, rounding
from emulon.certify.certificate import CertifiedModule
from emulon.certify.rounding import shifted_average
from emulon.constructions.accuracy import Inputs, Rows, aligned, rounded_up
from emulon.constructions.linear_layer import require_products, require_sizes, with_room
from emulon.core.errors import EmulonError, ToleranceTooTight


class EmulatedHead(CertifiedModule):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, the three matrices being part of the prompt.

    A construction supplies `rows`, which computes [K Q V], and passes to `assembled` how exact its entries are.
    """

    def __init__(self, sizes: tuple[int, int, int], bound: float, beta: float, dtype: torch.dtype) -> None:
        super().__init__()
        require_sizes(*sizes, bound)
        self.tokens, self.features, self.width = sizes
        self.bound, self.beta = with_room(bound, self.features, dtype), float(beta)

    def assembled(self, entries: Certificate) -> None:
        """The second layer: W_K = β·[I 0 0], W_Q = [0 I 0], W_V = [0 0 I], as in D.38 (A.1's sketch permutes them)."""
        width, identity = self.width, torch.eye(3 * self.width, dtype=entries.dtype, device="cpu")
        self.assemble = Head(
            self.beta * identity[:width], identity[width : 2 * width], identity[2 * width :], name="assemble"
        )
        self.entries = entries
        whole = width * self.bound
        self.certificate = self._certificate(whole, whole, self.bound)

    @abstractmethod
    def rows(self, x: Float[Tensor, "*b n d"], stacked: Float[Tensor, "*b rows d"]) -> Float[Tensor, "*b n rows"]:
        """[K Q V]: the 3·width rows of the stacked matrices, applied to every token."""

    def forward(self, x: Inputs, w_k: Rows, w_q: Rows, w_v: Rows) -> Float[Tensor, "... n width"]:
        matrix = (self.width, self.features)
        parts = {
            "x": (x, (self.tokens, self.features)),
            "W_K": (w_k, matrix),
            "W_Q": (w_q, matrix),
            "W_V": (w_v, matrix),
        }
        x, w_k, w_q, w_v = aligned(self.assemble.w_k.dtype, **parts)
        require_products(self.bound, x, W_K=w_k, W_Q=w_q, W_V=w_v)
        out: Tensor = self.assemble(self.rows(x, torch.cat([w_k, w_q, w_v], dim=-2)))
        return out

    def audit(self, x: Inputs, w_k: Rows, w_q: Rows, w_v: Rows) -> Certificate:
        """The bound for this head on this data: with the norms of its own K and Q, and its own largest |V|."""
        k, q, v = (x.double() @ w.double().mT for w in (w_k, w_q, w_v))
        # A last-place lift, for the rounding of these very products.
        keys, queries = (part.abs().sum(dim=-1).max().item() * (1 + 1e-12) for part in (k, q))
        own = self._certificate(keys, queries, v.abs().max().item() * (1 + 1e-12))
        return replace(own, scope="run")

    def _certificate(self, keys: float, queries: float, values: float) -> Certificate:
        """Terms of V'·softmax(β·K'Q'ᵀ), given how far entries of K', Q', V' are off.

        `keys` and `queries` bound the 1-norms of the rows of K and Q (at most width·bound), `values` the entries of V.
        Claim: with every entry off by ε a score is off by δ ≤ β·ε·(keys + queries + width·ε), the output by
        ε + tanh(δ/2)·2·values (Theorem 4.2's last step, with the sharp constant). "interpolation" is that with ε the
        entries' error in exact arithmetic; "rounding" is all that the dtype adds, the assembling softmax included.
        """

        def output(entry: float, score: float) -> float:
            delta = self.beta * entry * (keys + queries + self.width * entry) + score
            return entry + shifted_average(delta, 2 * (values + entry))

        entries, dtype = self.entries, self.entries.dtype
        exact = output(sum(value for name, value in entries.terms.items() if name != "rounding"), 0.0)
        # Of one score: width products, β rounded and folded in. Hölder: Σ|k_i q_i| ≤ ‖k‖₁·‖q‖∞, and the other way.
        most = [norm + self.width * entries.bound for norm in sorted((keys, queries))]
        products = self.beta * most[0] * min(most[1], self.bound + entries.bound)
        score = rounding.dot(self.width + 2, products, dtype)
        score = rounding.softmax_weights(score, min(2 * products, 64.0), dtype)
        total = output(entries.bound, score) + rounding.average(self.tokens, values + entries.bound, dtype)
        return Certificate({"interpolation": exact, "rounding": total - exact}, dtype, entries.proved)


def entry_tolerance(tolerance: float, bound: float, width: int, beta: float, dtype: torch.dtype) -> float:
    """How exact K, Q and V must be so that the output is within the tolerance, in exact arithmetic.

    A score moves by up to β·2·width·bound·ε and the output by ε + bound·δ. A tolerance that asks for entries finer than
    the spacing of numbers near `bound` is refused: not even the head itself, evaluated in this dtype, is that exact.
    """
    amplification = 1 + 2 * beta * width * bound**2
    finest = amplification * rounding.unit(dtype) * bound
    if tolerance < finest:
        what = f"a head of width {width} with entries up to {bound:g} in {str(dtype).removeprefix('torch.')}"
        raise ToleranceTooTight(
            what, tolerance, rounded_up(finest), "" if dtype == torch.float64 else ", or use float64"
        )
    return tolerance / amplification / 1.05


def require_one(**options: int | float | None) -> None:
    """Exactly one of these says how exact a construction is."""
    if sum(value is not None for value in options.values()) != 1:
        names = " or ".join(f"{name}=…" for name in options)
        raise EmulonError(f"give exactly one of {names}")
