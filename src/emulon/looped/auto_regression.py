"""Gao et al. 2024, Theorem 3.2: x_{t+1} = A·Φ(x_{t+1−q}, …, x_t), with A found in context by gradient descent."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Slots
from emulon.certify import Certificate, Domain
from emulon.certify.domain import require_shape
from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadShape
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.gradient_descent import DescentLoop, RepresentationNetwork
from emulon.looped.heads import code_length, copy_head, position_codes
from emulon.looped.layer import Circuit, Frame, Layer, Size, eye, join, others, read, zeros
from emulon.looped.transformer import HORIZON, LoopedRun, LoopedTransformer, descent, fewest_pairs, product

SERIES_KINDS = ("sink", "train", "query")


class LoopedAutoRegression(LoopedTransformer):
    """Claim: `predict` returns A_T·Φ(x_{N+1−q}, …, x_N), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ_t‖x_t − A·Φ(x_{t−q}, …, x_{t−1})‖², t = 1, …, N, with x_t = 0 for t < 1, up to `certificate_after(T)`.

    Assumes: the windows' Φ in `domain` (samples = N, |x_t| ≤ y); η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`.
    Cost: pre one layer of q heads (Lemma A.3) and L for Φ, one fewer than the theorem, because a token holds its own
    label; loop one layer of 2·pairs heads; no post, because the prediction already is on the last token.

    Args:
        domain: Bounds on the features Φ of windows and on the series.
        representation: Φ, of `order` vectors in a row.
        tolerance: Largest error of a prediction for up to `horizon` loops; the fewest heads that keep it are used. None
            takes the most exact.
        order: q, the vectors that the next one depends on.
        step_size: η; by default 1/largest.
        horizon: Most loops.
        dtype: float64 or float32.
    """

    dimensions = (2,)

    def __init__(
        self,
        domain: Domain,
        representation: RepresentationNetwork,
        tolerance: float | None = None,
        *,
        order: int = 3,
        step_size: float | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(domain, dtype=dtype, horizon=horizon)
        self.representation, self.order = representation, order
        if representation.inputs % order:
            raise BadShape(f"the representation reads {representation.inputs} numbers, not {order} vectors of one size")
        representation.require(self.domain.features)
        self.outputs = representation.inputs // order
        self.step_size = 1 / self.domain.largest if step_size is None else step_size
        tokens = self.domain.samples + 2
        self.descent = DescentLoop(self.domain, self.step_size, tokens, dtype, representation.error(dtype))
        self.pairs = fewest_pairs(self.descent.bound, tolerance, horizon)
        length = code_length(tokens)
        sizes = {"x": self.domain.features, **dict.fromkeys(("now", "y", "res", "step"), self.outputs)}
        codes = {"code": length} | {f"before_{lag}": length for lag in range(1, order + 1)}
        self.slots = Slots(**sizes, **codes, **dict.fromkeys(SERIES_KINDS, 1), **representation.slots)
        off = others(self.slots, "train", "query", kinds=SERIES_KINDS)
        self.frame = Frame(
            [self._window(), *representation.layers(self.slots, "x", off, dtype)],
            [self.descent.layer(self.slots, self.pairs, SERIES_KINDS)],
            [],
            {"pre": Size(representation.depth + 2, order), "loop": Size(1, 2), "post": Size(1, 1)},
        )

    def _window(self) -> Layer:
        """Lemma A.3: head h copies from the token h places before; what lies before the start is the sink's zero.

        Claim: exact, and without the paper's MLP filter, because p_{t−h} for t ≤ h is the sink's own code.
        """
        key = read(self.slots, code=1.0)
        heads = []
        for lag in range(1, self.order + 1):
            place = zeros(self.slots.size("ping"), self.outputs)
            start = (self.order - lag) * self.outputs
            place[start : start + self.outputs] = eye(self.outputs)
            query = read(self.slots, **{f"before_{lag}": 1.0})
            heads.append(copy_head(self.slots, query, key, read(self.slots, now=place), "ping"))
        off = others(self.slots, "train", kinds=SERIES_KINDS)
        circuit = Circuit(self.slots).move(read(self.slots, now=-1.0), "res", off=off, bound=self.domain.y)
        return Layer(join(*heads), circuit.matrices, dtype=self.dtype, name="window")

    def promise_after(self, loops: int) -> Certificate:
        return self.descent.certificate(self.pairs, loops)

    def windows(self, series: Float[Tensor, "... time outputs"]) -> Float[Tensor, "... windows inputs"]:
        """(x_{t−q}, …, x_{t−1}) for t = 1, …, N+1, zero before the start: what the pre-transformer assembles."""
        padded = torch.nn.functional.pad(series, (0, 0, self.order, 0))
        return padded.unfold(-2, self.order, 1).transpose(-1, -2).flatten(-2)

    def prompt(self, series: Tensor) -> Tensor:
        """Tokens sink, x_1, …, x_N, query, each with the codes of its own place and of the q places before."""
        count = self.domain.samples + 2
        tokens = series.new_zeros(*series.shape[:-2], count, self.slots.width)
        tokens[..., 0, self.slots["sink"]] = 1.0
        tokens[..., 1:-1, self.slots["train"]] = 1.0
        tokens[..., -1, self.slots["query"]] = 1.0
        tokens[..., 1:-1, self.slots["now"]] = series
        codes, places = position_codes(count).to(series.dtype), torch.arange(count, device="cpu")
        tokens[..., self.slots["code"]] = codes
        for lag in range(1, self.order + 1):
            tokens[..., self.slots[f"before_{lag}"]] = codes[(places - lag).clamp(min=0)]
        return tokens

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., -1, self.slots["y"]]

    @accepts_arraylike("series", like="series")
    def run(self, series: Float[Tensor, "... time outputs"], *, loops: int) -> LoopedRun:
        self.require(loops, series=series)
        require_shape(series, "series", self.domain.samples, self.outputs)
        self.representation.require(self.domain.features, **{"series windows": self.windows(series)})
        features = self.representation(self.windows(series.double()))
        self.domain.check_problem(features[..., :-1, :], series, features[..., -1, :])
        return LoopedRun(self, (series,), self.prompt(series), loops)

    @accepts_arraylike("series", like="series", side="columns")
    def predict(self, series: Float[Tensor, "... time outputs"], *, loops: int) -> Float[Tensor, "... outputs"]:
        """x_{N+1} predicted from x_1, …, x_N after `loops` steps."""
        return self.run(series, loops=loops).prediction

    def exact(self, series: Tensor, *, loops: int) -> list[Any]:
        windows = self.windows(series)
        features, last = (self.representation.exact(arb_matrix(part)) for part in (windows[:-1], windows[-1:]))
        return product(last, descent(features, arb_matrix(series), self.step_size, loops))
