"""What Theorems 4.1 and 4.2 share: from emulated K, Q and V to the head's output, and how errors pass through it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Head
from emulon.certify import Certificate, rounding
from emulon.certify.certificate import CertifiedModule
from emulon.certify.rounding import shifted_average
from emulon.constructions.accuracy import Accuracy, Inputs, Rows, Way, aligned, best, checked_to, rounded_up
from emulon.constructions.linear_layer import CANCELLATION, LinearLayer, require_products, require_sizes, with_room
from emulon.constructions.truncated_linear import RowHeads, SharpGrid
from emulon.core.errors import EmulonError, ToleranceTooTight
from emulon.softmax import Approximation, Grid


class EmulatedHead(CertifiedModule):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, the three matrices being part of the prompt.

    A construction supplies `layer`, which applies the 3·width stacked rows to every token and so computes [K Q V], and
    passes to `assembled` how exact its entries are.
    """

    layer: nn.Module

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
        out: Tensor = self.assemble(self.layer(x, torch.cat([w_k, w_q, w_v], dim=-2)))
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


class HeadInTokens(EmulatedHead):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ, the three matrices being tokens of the prompt.

    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    How: 3·width frozen heads compute the rows of K, Q and V (`LinearLayer`); one frozen head assembles them.

    `tolerance` says how exact the output should be in exact arithmetic, for the worst head of the domain. There a
    softmax amplifies every entry's error by width·bound², its last place too, so for wide heads with large entries the
    dtype may not allow it: K, Q and V are then made as exact as it allows, and `certificate` has the bound.
    `audit` gives the bound for particular data, which is usually far smaller.

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of each of the three matrices.
        bound: Bound on the entries of W_K x, W_Q x and W_V x.
        tolerance: Largest error of an entry in exact arithmetic. Exactly one of tolerance, points.
        points: Number of grid points.
        grid: Kind of grid.
        beta: Factor of the scores.
        grid_beta: Sharpness of the grid; None chooses it.
        dtype: Of everything.

    Example:
        >>> HeadInTokens(8, 4, 4, 3.0, 1e-6)(x, w_k, w_q, w_v)
    """

    layer: LinearLayer

    def __init__(
        self,
        tokens: int,
        features: int,
        width: int,
        bound: float,
        tolerance: float | None = None,
        *,
        points: int | None = None,
        grid: Way = "auto",
        beta: float = 1.0,
        grid_beta: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__((tokens, features, width), bound, beta, dtype)
        require_one(tolerance=tolerance, points=points)
        if tolerance is not None:
            tolerance = entry_tolerance(tolerance, bound, width, beta, dtype)

        def build(asked: Accuracy) -> LinearLayer:
            options: dict[str, Any] = {"points": points, "grid": grid, "beta": grid_beta, "dtype": dtype}
            return LinearLayer(tokens, features, 3 * width, bound, asked.tolerance, **options)

        self.layer = best(build, Accuracy(tolerance, points, grid, dtype))
        self.assembled(self.layer.certificate)

    def extra_repr(self) -> str:
        return f"heads={3 * self.width}+1, keys={self.layer.f.keys}, error {self.certificate}"


class HeadInEmbedding(EmulatedHead):
    """(x, W_K, W_Q, W_V) ↦ softmax(β·(x W_Qᵀ)(x W_Kᵀ)ᵀ) x W_Vᵀ; token j of the prompt is (x_j, j·v, v, e_j).

    v is the vector of all three matrices, row by row.
    Claim: within `certificate.bound` of the exact head in every entry, when |W_K x|, |W_Q x|, |W_V x| ≤ bound.
    The default pads the prompt to as many tokens as the soft grid has keys: then one head for each of the 3·width rows
    suffices (`RowHeads`). With grid="paper" the prompt keeps its n tokens, and each row takes `heads` sharp heads of
    n − 2 points (Theorem D.1). `tolerance`, `certificate` and `audit` are as in `HeadInTokens`.
    `layer.matrices(row, head)` are the plain matrices of the first layer, `assemble` the second.
    Corrected: the offset (h − 1)(n − 2) − 1 is applied once; (D.34) shows Q in the K block; selectors are as in D.38.

    Args:
        tokens: Number of tokens of x.
        features: Features of a token.
        width: Rows of each of the three matrices.
        bound: Bound on the entries of W_K x, W_Q x and W_V x.
        tolerance: Largest error of an entry in exact arithmetic. Exactly one of tolerance, points, heads.
        heads: Sharp heads for each row, with grid="paper".
        points: Number of grid points.
        grid: Kind of grid.
        beta: Factor of the scores.
        dtype: Of everything.

    Example:
        >>> HeadInEmbedding(8, 4, 4, 3.0, 1e-6)(x, w_k, w_q, w_v)
    """

    layer: RowHeads

    def __init__(
        self,
        tokens: int,
        features: int,
        width: int,
        bound: float,
        tolerance: float | None = None,
        *,
        heads: int | None = None,
        points: int | None = None,
        grid: Way = "auto",
        beta: float = 1.0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__((tokens, features, width), bound, beta, dtype)
        require_one(tolerance=tolerance, points=points, heads=heads)
        if (grid == "paper") != (heads is not None):
            raise EmulonError(
                "heads=… is the number of sharp heads per row: grid='paper' needs it, no other grid has it"
            )
        sizes = (tokens, features, 3 * width)
        if heads is not None:
            sharp = SharpGrid(tokens, heads, -self.bound, self.bound)
            self.layer = RowHeads.sharp(sizes, sharp, dtype)
            self.assembled(sharp.certificate(features, dtype))
        else:
            if tolerance is not None:
                tolerance = entry_tolerance(tolerance, bound, width, beta, dtype)
            self.f = self._soft(Accuracy(tolerance, points, grid, dtype))
            self.layer = RowHeads.soft(sizes, self.f.grid)
            self.assembled(self.f.certificate)

    def extra_repr(self) -> str:
        layer = self.layer
        size = f"heads={layer.heads * layer.rows}+1, tokens={layer.length}, width={layer.slots.width}"
        return f"{size}, error {self.certificate}"

    def _soft(self, accuracy: Accuracy) -> Approximation:
        if accuracy.grid == "piecewise":
            raise EmulonError("j·row needs evenly spaced slopes, which a piecewise grid has not; use grid='spectral'")
        reach = self.bound + checked_to(self.features, CANCELLATION * self.bound)

        def build(asked: Accuracy) -> Approximation:
            return asked.approximate("t", reach, self._rounding_error)

        made = best(build, accuracy)
        if made.grid.way == "spectral":
            return made
        # Rarely a linear function is cut into pieces, too.
        return self._soft(Accuracy(accuracy.tolerance, accuracy.points, "spectral", accuracy.dtype))

    def _rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        slope, intercept = grid.steepest, grid.highest
        # γ + α·j is formed in the head: |γ| + |α|·j ≤ 3·max|slope|, and a few more roundings.
        error = rounding.dot(self.features + 7, 3 * slope * CANCELLATION * self.bound + intercept, grid.dtype)
        return grid.rounding_error(deviation, size, error)
