"""Gao et al. 2024, Theorems 3.2 and 3.3: regression on a time series, and the next state of a chain of thought."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify import Certificate, Domain
from emulon.certify.domain import require_shape, require_within
from emulon.certify.rounding import unit
from emulon.core.arrays import accepts_arraylike, eye, zeros
from emulon.core.errors import BadShape, OutOfDomain
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.gradient_descent import LoopedDescent, RepresentationNetwork
from emulon.looped.heads import GAP, code_length, copy_head, position_codes
from emulon.looped.layer import Circuit, Frame, Layer, TokenSlots, join, no_heads, read, write
from emulon.looped.transformer import HORIZON, LoopedRun, descent, leaky

SERIES_KINDS = ("sink", "train", "query")


class LoopedAutoRegression(LoopedDescent):
    """Claim: `predict` returns A_T·Φ(x_{N+1−q}, …, x_N), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ_t‖x_t − A·Φ(x_{t−q}, …, x_{t−1})‖², t = 1, …, N, with x_t = 0 for t < 1, up to `certificate_after(T)`.

    Assumes: the windows' Φ in `domain` (samples = N, |x_t| ≤ y); η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`.
    Cost: pre one layer of q heads (Lemma A.3) and L for Φ, one fewer than the theorem, because a token holds its own
    label; loop one layer of 2·pairs heads; no post, because the prediction already is on the last token.

    Args:
        domain: Bounds on the features Φ of windows and on the series.
        representation: Φ, of `order` vectors in a row.
        order: q, the vectors that the next one depends on.
        step_size: η; by default 1/largest.
        tolerance, horizon, dtype: As in `LoopedGradientDescent`.
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
        super().__init__(
            domain,
            tokens=domain.samples + 2,
            step_size=step_size,
            dtype=dtype,
            horizon=horizon,
            feature_error=representation.error(dtype),
        )
        self.representation, self.order = representation, order
        if representation.inputs % order:
            raise BadShape(f"the representation reads {representation.inputs} numbers, not {order} vectors of one size")
        representation.require(self.domain.features)
        self.outputs = representation.inputs // order
        self.pairs = self.fewest_pairs(tolerance)
        sizes = {"x": self.domain.features, **dict.fromkeys(("now", "y", "res", "step"), self.outputs)}
        codes = dict.fromkeys(("code", *(f"before_{lag}" for lag in range(1, order + 1))), code_length(self.tokens))
        self.slots = TokenSlots(SERIES_KINDS, **sizes, **codes, **representation.slots)
        lift = representation.layers(self.slots, "x", ("train", "query"), dtype)
        self.frame = Frame([self._window(), *lift], [self.step_layer()], [])

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
        circuit = Circuit(self.slots).move(read(self.slots, now=-1.0), "res", on=("train",), bound=self.domain.y)
        return Layer(join(*heads), circuit.matrices, dtype=self.dtype, name="window")

    def windows(self, series: Float[Tensor, "... time outputs"]) -> Float[Tensor, "... windows inputs"]:
        """(x_{t−q}, …, x_{t−1}) for t = 1, …, N+1, zero before the start: what the pre-transformer assembles."""
        padded = torch.nn.functional.pad(series, (0, 0, self.order, 0))
        return padded.unfold(-2, self.order, 1).transpose(-1, -2).flatten(-2)

    def prompt(self, series: Tensor) -> Tensor:
        """Tokens sink, x_1, …, x_N, query, each with the codes of its own place and of the q places before."""
        tokens = series.new_zeros(*series.shape[:-2], self.tokens, self.slots.width)
        tokens[..., 0, self.slots["sink"]] = 1.0
        tokens[..., 1:-1, self.slots["train"]] = 1.0
        tokens[..., -1, self.slots["query"]] = 1.0
        tokens[..., 1:-1, self.slots["now"]] = series
        codes, places = position_codes(self.tokens).to(series.dtype), torch.arange(self.tokens, device="cpu")
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
        return list((last * descent(features, arb_matrix(series), self.step_size, loops)).entries())


CHAIN_KINDS = ("sink", "train", "query", "other")


class LoopedChainOfThought(LoopedDescent):
    """Claim: given N chains x, s¹, …, s^L with s^{ℓ+1} = σ(W_ℓ s^ℓ) and the start x̂, …, ŝ^ℓ of another, `predict`
    returns σ(A_T ŝ^ℓ), A_T after T exact gradient steps of size η from 0 on (1/2N)Σ‖A s^ℓ_i − σ⁻¹(s^{ℓ+1}_i)‖².

    Assumes: the states s^ℓ and the labels σ⁻¹(s^{ℓ+1}) of the step that is asked for in `domain`, every other state
    within its x; η ≤ 2/largest (default 1/largest); slope in (0, 1].
    Bound: `descent_error`, σ being 1-Lipschitz.
    Cost: pre 2 layers of 2 heads (the theorem has 7 of two), loop one of 2·pairs, post one without heads.

    Args:
        domain: Bounds on states and labels.
        depth: L, the steps of a chain.
        slope: Of the leaky ReLU σ below zero.
        step_size: η; by default 1/largest.
        tolerance, horizon, dtype: As in `LoopedGradientDescent`.
    """

    dimensions = (3, 2)

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        depth: int = 6,
        slope: float = 0.1,
        step_size: float | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if not 0 < slope <= 1:
            raise OutOfDomain(f"the leaky ReLU's slope must be in (0, 1] to be inverted, got {slope}")
        super().__init__(
            domain,
            tokens=(domain.samples + 1) * (depth + 1) + 1,
            step_size=step_size,
            dtype=dtype,
            horizon=horizon,
            label_error=4 * unit(dtype) * domain.y,
        )
        self.depth, self.slope = depth, slope
        self.pairs = self.fewest_pairs(tolerance)
        self.slots = TokenSlots(
            CHAIN_KINDS,
            **dict.fromkeys(("state", "following", "x", "y", "res", "step"), self.domain.features),
            **dict.fromkeys(("stage", "next_stage", "wanted"), depth + 1),
            code=code_length(self.domain.samples + 1),
            sample=1,
        )
        self.frame = Frame([self._find(), self._filter()], [self.step_layer()], [self._activate()])

    def promise(self, pairs: int, loops: int) -> Certificate:
        """σ is 1-Lipschitz, and rounds."""
        loop = super().promise(pairs, loops)
        return replace(loop, terms=dict(loop.terms) | {"activation": 2 * unit(self.dtype) * self.largest_prediction()})

    def _find(self) -> Layer:
        """One head tells every token the stage ℓ of the last one; one fetches the next state of the same chain.

        The MLP turns `other` into `train` where a sample's token is at stage ℓ: Σ_k ReLU(2·wanted_k + 2·stage_k +
        2·sample − 5) is exactly 1 there and 0 elsewhere.
        """
        slots = self.slots
        stage = copy_head(slots, slots.one, GAP * read(slots, query=1.0), read(slots, stage=1.0), "wanted")
        following = copy_head(
            slots,
            torch.cat([read(slots, code=1.0), read(slots, next_stage=1.0)]),
            torch.cat([read(slots, code=1.0), GAP * read(slots, stage=1.0)]),
            read(slots, state=1.0),
            "following",
        )
        stages = self.depth + 1
        sample = read(slots, sample=torch.full((stages, 1), 2.0, dtype=torch.float64, device="cpu"))
        rows = read(slots, wanted=2.0, stage=2.0) + sample
        ones = torch.ones(1, stages, dtype=torch.float64, device="cpu")
        circuit = Circuit(slots).unit(rows, -5.0, write(slots, "train", ones) - write(slots, "other", ones))
        return Layer(join(stage, following), circuit.matrices, dtype=self.dtype, name="find the stage")

    def _filter(self) -> Layer:
        """x = s^ℓ on train and query tokens, res = −σ⁻¹(s^{ℓ+1}) on train tokens, zero on all others (Eq. 7)."""
        slots, bound = self.slots, self.domain.x
        circuit = Circuit(slots).move(read(slots, state=1.0), "x", on=("train", "query"), bound=bound)
        labels = {"slope": 1 / self.slope, "scale": -1.0, "bound": bound}
        circuit.move(read(slots, following=1.0), "res", on=("train",), **labels)
        return Layer(no_heads(slots), circuit.matrices, dtype=self.dtype, name="filter")

    def _activate(self) -> Layer:
        circuit = Circuit(self.slots).move(read(self.slots, y=1.0), "step", slope=self.slope)
        return Layer(no_heads(self.slots), circuit.matrices, dtype=self.dtype, name="activation")

    def prompt(self, chains: Tensor, start: Tensor) -> Tensor:
        """Tokens of all chains in order, of the new chain, and a sink; each knows its chain's code and its stage."""
        slots, stages = self.slots, self.depth + 1
        batch = torch.broadcast_shapes(chains.shape[:-3], start.shape[:-2])
        samples, known = chains.shape[-3], start.shape[-2]
        end = samples * stages
        tokens = chains.new_zeros(*batch, end + known + 1, slots.width)
        tokens[..., :end, slots["state"]] = chains.flatten(-3, -2)
        tokens[..., end:-1, slots["state"]] = start
        tokens[..., :end, slots["sample"]] = 1.0
        tokens[..., : end + known - 1, slots["other"]] = 1.0
        tokens[..., -2, slots["query"]] = 1.0
        tokens[..., -1, slots["sink"]] = 1.0
        stage = torch.cat([torch.arange(stages, device="cpu").repeat(samples), torch.arange(known, device="cpu")])
        one_hot = torch.eye(stages + 1, dtype=chains.dtype, device="cpu")
        tokens[..., :-1, slots["stage"]] = one_hot[stage, :stages]
        tokens[..., :-1, slots["next_stage"]] = one_hot[stage + 1, :stages]
        codes = position_codes(samples + 1).to(chains.dtype)
        tokens[..., :-1, slots["code"]] = torch.cat(
            [codes[:-1].repeat_interleave(stages, dim=0), codes[-1:].expand(known, -1)]
        )
        return tokens

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., -2, self.slots["step"]]

    @accepts_arraylike("chains", "start", like="start")
    def run(
        self,
        chains: Float[Tensor, "... samples stages features"],
        start: Float[Tensor, "... known features"],
        *,
        loops: int,
    ) -> LoopedRun:
        self.require(loops, chains=chains, start=start)
        require_shape(chains, "chains", self.domain.samples, self.depth + 1, self.domain.features)
        known = start.shape[-2]
        require_shape(start, "start", known, self.domain.features)
        if not 1 <= known <= self.depth:
            raise BadShape(f"start has {known} states; a chain of depth {self.depth} goes on from 1 to {self.depth}")
        require_within(self.domain.x, chains=chains, start=start)
        self.domain.check_problem(chains[..., known - 1, :], self._labels(chains, known), start[..., -1, :])
        return LoopedRun(self, (chains, start), self.prompt(chains, start), loops)

    @accepts_arraylike("chains", "start", like="start", side="columns")
    def predict(
        self,
        chains: Float[Tensor, "... samples stages features"],
        start: Float[Tensor, "... known features"],
        *,
        loops: int,
    ) -> Float[Tensor, "... features"]:
        """The state after the last of `start`, learned from the chains in `loops` steps."""
        return self.run(chains, start, loops=loops).prediction

    def exact(self, chains: Tensor, start: Tensor, *, loops: int) -> list[Any]:
        known = len(start)
        following = leaky(arb_matrix(chains[:, known]), self.slope, inverse=True)
        fitted = descent(arb_matrix(chains[:, known - 1]), following, self.step_size, loops)
        answers: list[Any] = leaky(arb_matrix(start[-1:]) * fitted, self.slope).entries()
        return answers

    def _labels(self, chains: Tensor, known: int) -> Tensor:
        """σ⁻¹ of the state after the last known one, in float64."""
        following = chains[..., known, :].double()
        return following.clamp(min=0) + following.clamp(max=0) / self.slope
