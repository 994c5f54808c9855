"""Gao et al. 2024, Theorem 3.1 and Lemma A.2: regression by gradient descent in the loop, and its errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from emulon.certify import Certificate, Domain
from emulon.certify.domain import SLACK, require_within
from emulon.certify.rounding import gamma, unit
from emulon.core.errors import BadShape, OutOfDomain
from emulon.expressions.evaluation import arb_matrix
from emulon.looped.heads import KINDS, Stencil, code_length, exchange_layer, pair_tokens, readout_heads
from emulon.looped.layer import Circuit, Frame, Layer, TokenSlots, no_heads, read
from emulon.looped.transformer import HORIZON, LoopedRegression, LoopedTransformer, Query, affine, descent, leaky, share


class LoopedDescent(LoopedTransformer):
    """Gradient descent in the loop: res_i ← res_i − (η/N)Σ_j (x_i·x_j)·res_j on train tokens, and the query's
    prediction in y likewise.

    With res_i = A_k x_i − y_i that is A_{k+1} = A_k − η∇L(A_k), L(A) = (1/2N)Σ‖A x_j − y_j‖².
    Assumes: in front of the loop res is −y_i on train tokens and zero on all others, so that only they are summed (the
    paper's extra row x/N is not needed); features are off by `feature_error` in norm, labels by `label_error`;
    η ≤ 2/largest.
    """

    def __init__(
        self,
        domain: Domain,
        *,
        tokens: int,
        step_size: float | None,
        dtype: torch.dtype,
        horizon: int,
        feature_error: float = 0.0,
        label_error: float = 0.0,
    ) -> None:
        super().__init__(domain, dtype=dtype, horizon=horizon)
        self.step_size = 1 / self.domain.largest if step_size is None else step_size
        if not 0 < self.step_size * self.domain.largest <= 2 * (1 + 1e-12):
            raise OutOfDomain(f"step size {self.step_size:.6g} is not in (0, {2 / self.domain.largest:.6g}] = (0, 2/L]")
        self.tokens, self.feature_error, self.label_error = tokens, feature_error, label_error

    def stencil(self, pairs: int) -> Stencil:
        """Scores x_i·x_j ≤ norm²; at most N values are not zero."""
        domain, reach = self.domain, (self.domain.norm + self.feature_error) ** 2 * (1 + 3 * SLACK)
        sizes = {"tokens": self.tokens, "summed": domain.samples, "width": domain.features + 1}
        return Stencil(pairs, reach=reach, **sizes, dtype=self.dtype).balanced()

    def step_layer(self) -> Layer:
        """One step. Bound: `Stencil.error`. Cost: one layer, 2·pairs heads."""
        domain, slots, stencil, x = self.domain, self.slots, self.stencil(self.pairs), read(self.slots, x=1.0)
        heads = readout_heads(slots, stencil, query=x, key=x, value=read(slots, res=-self.step_size / domain.samples))
        bound = 2 * self.step_size * stencil.reach * math.sqrt(domain.samples) * domain.y * (1 + stencil.relative)
        circuit = Circuit(slots)
        for name, into in (("train", "res"), ("query", "y")):
            circuit.move(read(slots, step=1.0), into, on=(name,), bound=bound)
        return Layer(heads, circuit.clear("step").matrices, dtype=self.dtype, name="gradient step")

    def promise(self, pairs: int, loops: int) -> Certificate:
        """Features off by e make x_i·x_j off by at most 2·norm·e + e²: relative to norm², one more term of the step."""
        off = self.feature_error / self.domain.norm
        # The stencil's reach is (1 + off)²·norm².
        terms = {name: part * (1 + off) ** 2 for name, part in self.stencil(pairs).terms.items()}
        terms["representation"] = off * (2 + off)
        exact = (self.domain, self.step_size, sum(terms.values()), loops, self.dtype)
        loop = descent_error(*exact)
        labels = descent_error(*exact, label_error=self.label_error) - loop if self.label_error else 0.0
        return Certificate(share(loop, terms) | {"labels": labels}, self.dtype)

    def largest_prediction(self) -> float:
        """Above every |prediction| the loop can hold, exact (norm·gain·y) or computed with one pair or more."""
        most = self.domain.norm * gain(self.domain, self.step_size, self.horizon) * self.domain.y
        return most + LoopedDescent.promise(self, 1, self.horizon).bound


def gain(domain: Domain, step_size: float, steps: int) -> float:
    """Claim: max over σ² in the spectrum of |1 − (1 − ησ²)^M|/σ ≤ this, for ησ² ≤ 2.

    Proof. With t = ησ², |1 − (1−t)^M| = t·|Σ(1−t)^i| ≤ min(cap, Mt), cap = 1 if t ≤ 1, else 2. Divide by σ. QED
    It is how far M gradient steps carry a unit of residual into w.
    """
    cap = 1.0 if step_size * domain.largest <= 1 else 2.0
    choices = [math.sqrt(cap * step_size * steps), step_size * math.sqrt(domain.largest) * steps]
    if domain.smallest > 0:
        choices.append(cap / math.sqrt(domain.smallest))
    return min(choices)


def descent_error(
    domain: Domain, step_size: float, relative: float, loops: int, dtype: torch.dtype, label_error: float = 0.0
) -> float:
    """Claim: |prediction − exact prediction after `loops` steps| ≤ this in every entry, when the sum Σ_j (x_i·x_j)res_j
    of each step is off by at most norm²·Σ|res_j|·relative and the labels by label_error.

    Assumes: η·largest ≤ 2, A_0 = 0. Proof. The exact residuals obey r ← (I − ηG)r, G = XXᵀ/N, which does not expand,
    so ‖r_k‖₂ ≤ √N·y. Let δ_k be the entrywise error made in step k, e_k the error of the residuals: e_{k+1} = (I−ηG)e_k
    + δ_k, so ‖e_k‖₂ ≤ √N·Σ|δ|. The query's prediction gets δ_k itself and −(η/N)x_qᵀXᵀe_k; the latter, summed over the
    M = T−1−j steps after j, gives (1/N)x_qᵀXᵀG⁺(I − (I−ηG)^M)δ_j ≤ ‖x_q‖·gain(M)·max|δ_j|. QED
    δ_k = (η/N)·norm²·Σ|res|·relative with Σ|res| ≤ √N·‖res‖₂, plus the rounding of res + step and y + step.
    """
    root = math.sqrt(domain.samples)
    gains = [domain.norm * gain(domain, step_size, steps) for steps in range(loops + 1)]
    drift, total = root * label_error, 0.0
    shocks: list[float] = []
    for step in range(loops):
        size = root * domain.y + drift
        magnitude = size + gains[step + 1] * domain.y + total
        shocks.append(step_size * domain.norm**2 * size / root * relative + 4 * unit(dtype) * magnitude)
        drift += root * shocks[-1]
        # Above the sum below, and needed only for what the additions round.
        total = (1 + gains[step + 1]) * drift / root
    total = gains[loops] * label_error + sum(shock * (1 + gains[loops - 1 - j]) for j, shock in enumerate(shocks))
    # The domain's check of norms and eigenvalues has a slack of 1e-9 per step.
    return total * (1 + 1e-6)


class LoopedGradientDescent(LoopedDescent, LoopedRegression):
    """Claim: `predict` returns A_T·Φ(x_query), A_T after T exact gradient steps of size η from A_0 = 0 on
    (1/2N)Σ‖A·Φ(x_i) − y_i‖², up to `certificate_after(T)`; Φ is the identity unless a representation is given.

    Assumes: the data (Φ(x) where there is a representation) in `domain`; η ≤ 2/largest (default 1/largest).
    Bound: `descent_error`.
    Cost: pre L+1 layers, loop 1, post 1 as in the theorem; 2·pairs heads in the loop, where the theorem's two are one
    pair, whose error is O(c²); width d + 3·outputs + ⌈log₂(N+1)⌉ + 4, and two buffers for a representation.

    Args:
        domain: Bounds on the data, or on Φ(x).
        tolerance: Largest error of a prediction for up to `horizon` loops; the fewest heads that keep it are used. None
            takes the most exact.
        step_size: η; by default 1/largest.
        outputs: Numbers in a label.
        representation: Φ, run by the pre-transformer.
        horizon: Most loops.
        dtype: float64 or float32.
    """

    def __init__(
        self,
        domain: Domain,
        tolerance: float | None = None,
        *,
        step_size: float | None = None,
        outputs: int = 1,
        representation: RepresentationNetwork | None = None,
        horizon: int = HORIZON,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        phi = representation
        super().__init__(
            domain,
            tokens=2 * domain.samples + 2,
            step_size=step_size,
            dtype=dtype,
            horizon=horizon,
            feature_error=phi.error(dtype) if phi else 0.0,
        )
        if phi is not None:
            phi.require(self.domain.features)
        self.outputs, self.representation = outputs, phi
        self.pairs = self.fewest_pairs(tolerance)
        sizes = {"x": self.domain.features, "y": outputs, "res": outputs, "step": outputs}
        code, buffers = code_length(self.domain.samples + 1), phi.slots if phi else {}
        self.slots = slots = TokenSlots(KINDS, **sizes, code=code, **buffers)
        lift = phi.layers(slots, "x", ("train", "query"), dtype) if phi else []
        labels = exchange_layer(
            slots, "y", "res", on="train", sign=-1.0, bound=self.domain.y, dtype=dtype, name="label exchange"
        )
        most = self.domain.y + self.largest_prediction()
        answer = exchange_layer(slots, "y", "y", on="sink", bound=most, dtype=dtype, name="answer")
        self.frame = Frame([*lift, labels], [self.step_layer()], [answer])

    def prompt(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> Tensor:
        return pair_tokens(self.slots, xs, labels, x_query, "x" if self.representation is None else "ping")

    def answers(self, tokens: Tensor) -> Tensor:
        return tokens[..., -1, self.slots["y"]]

    def require_problem(self, xs: Tensor, labels: Tensor, x_query: Tensor) -> None:
        if self.representation is not None:
            self.representation.require(self.domain.features, xs=xs, x_query=x_query)
            xs, x_query = self.representation(xs.double()), self.representation(x_query.double())
        super().require_problem(xs, labels, x_query)

    def exact(self, xs: Tensor, labels: Tensor, x_query: Tensor, *, loops: int) -> list[Any]:
        rows, query = arb_matrix(xs), arb_matrix(x_query.unsqueeze(0))
        if self.representation is not None:
            rows, query = self.representation.exact(rows), self.representation.exact(query)
        return list((query * descent(rows, arb_matrix(labels), self.step_size, loops)).entries())


class RepresentationNetwork(nn.Module):
    """Φ(x) = σ(W_L … σ(W_1 x + b_1) … + b_L), σ a leaky ReLU, for inputs |x| ≤ bound.

    Args:
        weights: W_1, …, W_L.
        biases: b_1, …, b_L; zero by default.
        slope: Of σ below zero, in [0, 1].
        bound: Largest |x|.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, *, slope: float = 0.01, bound: float
    ) -> None:
        super().__init__()
        if not 0 <= slope <= 1:
            raise OutOfDomain(f"slope must be in [0, 1] so that errors do not grow in the activation, got {slope}")
        biases = [weight.new_zeros(weight.shape[0]) for weight in weights] if biases is None else biases
        self.slope, self.bound, self.depth = slope, bound, len(weights)
        for level, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if level and weight.shape[1] != weights[level - 1].shape[0]:
                raise BadShape(
                    f"weight {level} reads {weight.shape[1]} features, {weights[level - 1].shape[0]} come in"
                )
            self.register_buffer(f"weight_{level}", weight.double())
            self.register_buffer(f"bias_{level}", bias.double())

    def level(self, level: int) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"weight_{level}"), self.get_buffer(f"bias_{level}")

    @property
    def inputs(self) -> int:
        return self.level(0)[0].shape[1]

    @property
    def outputs(self) -> int:
        return self.level(self.depth - 1)[0].shape[0]

    def require(self, features: int, **inputs: Tensor) -> None:
        """Refuse a regression of another size, and inputs above the bound."""
        if self.outputs != features:
            raise BadShape(f"the representation returns {self.outputs} features, the domain has {features}")
        for name, tensor in inputs.items():
            if tensor.shape[-1] != self.inputs:
                raise BadShape(f"{name} has {tensor.shape[-1]} features, the representation reads {self.inputs}")
        require_within(self.bound, **inputs)

    def forward(self, x: Query) -> Float[Tensor, "... outputs"]:
        for level in range(self.depth):
            weight, bias = self.level(level)
            z = x @ weight.to(x.dtype).mT + bias.to(x.dtype)
            x = torch.relu(z) - self.slope * torch.relu(-z)
        return x

    def exact(self, x: Any) -> Any:
        """Φ of the rows of an Arb matrix."""
        for level in range(self.depth):
            x = leaky(affine(x, *self.level(level)), self.slope)
        return x

    @property
    def slots(self) -> dict[str, int]:
        """Two buffers that take turns; the input is in `ping`."""
        sizes = [self.inputs, *(self.level(level)[0].shape[0] for level in range(self.depth - 1))]
        return {"ping": max(sizes[::2]), "pong": max(sizes[1::2], default=0)}

    def layers(self, slots: TokenSlots, into: str, on: tuple[str, ...], dtype: torch.dtype) -> list[Layer]:
        """Claim: L layers of identity attention that put Φ(ping) into a slot, and clear the buffers behind them.

        Tokens of other kinds than `on` are left alone, biases included. Bound: `error` (rounding only; ReLU does the
        rest).
        """
        out = []
        for level, (size, _) in enumerate(self.bounds(dtype)[1:]):
            weight, bias = self.level(level)
            source, target = ("ping", "pong")[level % 2], ("pong", "ping")[level % 2]
            target = into if level == self.depth - 1 else target
            more = slots.size(target) - len(weight)
            weight = pad(weight, (0, slots.size(source) - weight.shape[1], 0, more))
            circuit = Circuit(slots).move(
                read(slots, **{source: weight}), target, on=on, bound=size, bias=pad(bias, (0, more)), slope=self.slope
            )
            circuit.clear(source)
            out.append(Layer(no_heads(slots), circuit.matrices, dtype=dtype, name=f"representation {level + 1}"))
        return out

    def bounds(self, dtype: torch.dtype) -> list[tuple[float, float]]:
        """(size, error) after 0, 1, …, L levels: ‖·‖₂ of the exact values, and of what computed ones are off by.

        Proof. A level rounds by γ·(|W||h| + |b|) ≤ γ·(‖|W|‖₂‖h‖₂ + ‖b‖₂), and passes on ‖W‖₂ times the error that comes
        in, σ being 1-Lipschitz; ‖h‖₂ ≤ ‖W‖₂‖h'‖₂ + ‖b‖₂ likewise. QED
        """
        size, error = self.bound * self.inputs**0.5, 0.0
        out = [(size, error)]
        for level in range(self.depth):
            weight, bias = self.level(level)
            spread, norm = (torch.linalg.matrix_norm(matrix, 2).item() for matrix in (weight.abs(), weight))
            shift = bias.norm().item()
            error = norm * error + gamma(weight.shape[1] + 6, dtype) * (spread * (size + error) + shift)
            size = norm * size + shift
            out.append((size, error))
        return out

    def error(self, dtype: torch.dtype) -> float:
        """‖computed Φ(x) − Φ(x)‖₂ ≤ this, for all inputs within the bound."""
        return self.bounds(dtype)[-1][1] * (1 + 1e-9)
