"""The tokens of a prompt, the head that the interpreter emulates on them, and how far one application may be off.

The tokens are those of Theorem 3.1 and its corollaries (Hu et al. 2025): n samples × K grid points, and n of them ask.
Token (i, j) is the key (slope_j·x_i, slope_j·y_i, intercept_j, C·code_i) with value_j·x_i beside it; query c is
(w, −1, 1, code_c). Their product is score_j(w·x_i − y_i) + C·code_i·code_c: the grid's score, raised for one's own
sample. A phase is that layout, balanced: what the interpreter reproduces with a small error is small numbers. The head
it emulates reads its rows with weights that are part of the prompt: W_K and W_Q select, W_V holds −η, the shrinkage and
the momentum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.attention import Slots
from emulon.attention.codes import Codes
from emulon.certify import Band, Domain, rounding
from emulon.interpreter.identity_grid import INNER, IdentityGrid
from emulon.interpreter.module import Capacity
from emulon.softmax import Grid

HALF = ("x", "y", "bias", "code")
# Of what f may err, the part that may leak to other samples' tokens; the rest is for interpolation and rounding.
LEAK_SHARE = 0.02
# What the codes' strength has to spare, in log weight: it outweighs the rounding of codes and scores many times over.
SPARE = 0.1
# Rows of W_V are read at magnitudes up to this, where that matters: the line's error is the same for all below.
READ_AT = INNER / 2
# What a penalty is given to shrink may be so many times larger than it ever is, and is read so much larger.
RAISED = 4.0
# By which rows are scaled at most: float32 holds it and its inverse.
MOST_DOUBLINGS = 120


@dataclass(frozen=True)
class Scales:
    """What key rows are multiplied by, and query rows divided by: powers of two, so that nothing is rounded."""

    x: float = 1.0
    y: float = 1.0
    bias: float = 1.0

    @classmethod
    def balancing(cls, grid: Grid, domain: Domain) -> Scales:
        """Both factors of every product about equally large."""
        slope, bias = grid.steepest, grid.highest
        return cls(
            balancing_power(domain.w, slope * domain.x),
            balancing_power(1.0, slope * domain.y),
            balancing_power(1.0, bias),
        )


def balancing_power(query: float, key: float) -> float:
    """The power of two nearest to √(query/key): then key·p and query/p are about equal."""
    return 2.0 ** round(math.log2(query / key) / 2) if query > 0 and key > 0 else 1.0


@dataclass(frozen=True)
class TokenLayout:
    """The token matrix of Theorem 3.1 for a grid and a domain.

    Attributes:
        grid: Softmax for the scalar function on the domain's residuals.
        domain: Bounds on data and weights.
        codes: A code for every sample, by which a query asks its own sample's tokens.
        strength: The routing constant C.
        carried: Names of further rows of d numbers in every token: "fixed" is the data's, others are states.
        balanced: Whether every factor, C among them, is shared between key and query, as suits a module that is best
            at small numbers.
    """

    grid: Grid
    domain: Domain
    codes: Codes
    strength: float
    carried: tuple[str, ...] = ()
    balanced: bool = False

    @cached_property
    def scales(self) -> Scales:
        return Scales.balancing(self.grid, self.domain) if self.balanced else Scales()

    @cached_property
    def code_factors(self) -> tuple[float, float]:
        """What multiplies the codes of keys, and of queries."""
        root = math.sqrt(self.strength)
        return (root, root) if self.balanced else (self.strength, 1.0)

    @cached_property
    def slots(self) -> Slots:
        d = self.domain.features
        half = {"x": d, "y": 1, "bias": 1, "code": self.codes.width}
        return Slots(
            **{f"key_{name}": half[name] for name in HALF},
            value=d,
            **dict.fromkeys(self.carried, d),
            **{f"query_{name}": half[name] for name in HALF},
        )

    @property
    def tokens(self) -> int:
        return self.domain.samples * len(self.grid)

    def selectors(
        self, device: torch.device | str = "cpu"
    ) -> tuple[Float[Tensor, "half width"], Float[Tensor, "half width"]]:
        """W_K and W_Q: they select the key half, and the query half."""
        key, query = (
            self.slots.select(*(f"{side}_{name}" for name in HALF), dtype=self.grid.dtype, device=device)
            for side in ("key", "query")
        )
        return key, query

    def data_rows(
        self,
        x: Float[Tensor, "*batch n d"],
        y: Float[Tensor, "*batch n"],
        fixed: Float[Tensor, "*batch n d"] | None = None,
    ) -> dict[str, Tensor]:
        """The rows that the data decide, (..., samples, keys, ·): they do not change from step to step."""
        grid, scales = self.grid, self.scales
        slopes, values, intercepts = (part.to(x.device) for part in (grid.slopes, grid.values, grid.intercepts))
        slopes, values = slopes[:, None], values[:, None]
        spread = (*x.shape[:-1], len(grid))
        code = (self.code_factors[0] * self.codes.vectors.to(x.device)).unsqueeze(-2)
        rows = {
            "key_x": slopes * (scales.x * x).unsqueeze(-2),
            "key_y": slopes * (scales.y * y)[..., None, None],
            "key_bias": (scales.bias * intercepts)[:, None].expand(*spread, 1),
            "key_code": code.expand(*spread, self.codes.width),
            "value": values * x.unsqueeze(-2),
        }
        if "fixed" in self.carried:
            part = torch.zeros_like(x) if fixed is None else fixed
            rows["fixed"] = part.unsqueeze(-2).expand(*spread, x.shape[-1])
        return rows

    def query_rows(self, w: Float[Tensor, "*batch d"]) -> dict[str, Tensor]:
        """The query half of the first n tokens, (..., samples, ·)."""
        scales, spread = self.scales, (*w.shape[:-1], self.domain.samples)
        ones = w.new_ones(*spread, 1)
        code = self.code_factors[1] * self.codes.vectors.to(w.device)
        return {
            "query_x": (w / scales.x).unsqueeze(-2).expand(*spread, w.shape[-1]),
            "query_y": -ones / scales.y,
            "query_bias": ones / scales.bias,
            "query_code": code.expand(*spread, -1),
        }

    def prompt(
        self, rows: dict[str, Tensor], w: Float[Tensor, "*batch d"], **states: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch tokens width"]:
        """The token matrix: the data's rows and the states in every token, the query half in the first n."""
        flat = {name: part.flatten(-3, -2) for name, part in rows.items()}
        wide = (*flat["value"].shape[:-1], w.shape[-1])
        tokens = self.slots.pack(**flat, **{name: part.unsqueeze(-2).expand(wide) for name, part in states.items()})
        for name, part in self.query_rows(w).items():
            tokens[..., : self.domain.samples, self.slots[name]] = part
        return tokens


@dataclass(frozen=True)
class Routing:
    """How strongly a query must ask for its own sample: the constant C of Theorem 3.1, for any grid.

    `allowed` is how much of F may leak to other samples.
    """

    domain: Domain
    codes: Codes
    paper: bool
    allowed: float

    def advantage(self, grid: Grid) -> float:
        """How much, in log weight, another sample's tokens can be ahead before routing.

        For the paper's grid its own M = 2·L*·(2dB² + 2B), corrected and with β folded in: max|slope|·2·residual. Ours
        is the range of the log-normaliser, which is far smaller.
        """
        return grid.steepest * 2 * grid.range if self.paper else grid.log_normaliser_range

    def leak(self, grid: Grid) -> float:
        """ε₀: leaking that much of the largest value, twice, stays within what is allowed and below a rounding."""
        largest = 2 * max(grid.largest, 1e-300)
        return max(min(self.allowed / largest, rounding.unit(grid.dtype) / 2), 1e-300)

    def strength(self, grid: Grid) -> float:
        """C·gap ≥ M + ln((n − 1)/ε₀): then all other samples together weigh at most ε₀."""
        others = max(self.domain.samples - 1, 1)
        return (self.advantage(grid) + math.log(others / self.leak(grid)) + SPARE) / self.codes.gap

    def score_error(self, grid: Grid) -> float:
        """Rounding of one score: a sum of d + 2 + width products, keys rounded once themselves."""
        slope, intercept = grid.steepest, grid.highest
        magnitude = slope * self.domain.absolute + intercept + self.strength(grid) * 1.001
        return rounding.dot(self.domain.features + 3 + self.codes.width, magnitude, grid.dtype)

    def rounding_error(self, grid: Grid, deviation: float, size: float) -> float:
        return grid.rounding_error(deviation, size, self.score_error(grid))


def stored(domain: Domain, dtype: torch.dtype) -> Domain:
    """The domain of its data once a dtype holds them: what lies on an edge may be rounded over it.

    float64 takes data as they come. Rounding of the checks needs no slack here: `checks.require_in_domain` is exact.
    """
    if dtype == torch.float64:
        return domain
    last = 4 * rounding.unit(dtype)
    edges = {name: getattr(domain, name) * (1 + last) for name in ("x", "y", "w")}
    # A residual moves with the sum of what it is made of, not with itself; what only follows is left to follow again.
    residual, absolute = (
        bound + last * domain.absolute if bound < domain.widest else 0.0 for bound in (domain.residual, domain.absolute)
    )
    return replace(
        domain, **edges, residual=residual, absolute=absolute, spectrum=domain.spectrum.widened(1 + 2 * last)
    )


def reading_scale(size: float, dtype: torch.dtype) -> float:
    """A power of two that rows of W_V up to this size are multiplied by, and answers divided by.

    For float32 alone: 32 keys leave a number of 0.4 as uncertain as one of 16, in the fourth last of its digits.
    float64 has digits to spare.
    """
    if dtype != torch.float32 or size == 0:
        return 1.0
    return 2.0 ** min(math.floor(math.log2(READ_AT) - math.log2(size)), MOST_DOUBLINGS)


@dataclass(frozen=True)
class ValueCoefficients:
    """Entries of W_V: −step for values, shrink for the state, momentum for its last change.

    `fixed` bounds the entries of the data's fixed part, y_i·x_i for Poisson.
    """

    step: float
    shrink: float = 0.0
    momentum: float = 0.0
    fixed: float = 0.0

    @classmethod
    def of_penalty(cls, readout: str) -> ValueCoefficients:
        """Of a proximal phase: f of the state alone, or the state less f of it."""
        return cls(-1.0) if readout == "sum" else cls(1.0, shrink=1.0)


def penalty_function(readout: str, threshold: float) -> str:
    """The soft threshold as it is read out by the "sum", or what it takes off the state, which then is the "rest"."""
    if readout == "rest":
        return f"Max(-{threshold!r}, Min({threshold!r}, t))"
    return f"sign(t)*Max(Abs(t) - {threshold!r}, 0)"


@dataclass(frozen=True)
class ProvedBounds:
    """What was proved about a phase's scalar function, and the leak its routing allows."""

    interpolation: float = math.inf
    deviation: float = math.inf
    size: float = math.inf
    leak: float = math.inf
    proved: bool = False
    bands: tuple[Band, ...] = ()


UNPROVED = ProvedBounds()


@dataclass(frozen=True, kw_only=True)
class Phase(TokenLayout):
    """A balanced layout with a name, the coefficients of its W_V, and what is proved of its scalar function.

    `readout` is the "mean" or the "sum" over samples, or the "rest" that a sum leaves of the state.
    """

    name: str
    readout: str
    values: ValueCoefficients
    proved: ProvedBounds = UNPROVED
    carried: tuple[str, ...] = ("fixed", "state", "before")
    balanced: bool = True

    @property
    def width(self) -> int:
        """Rows of the emulated head: keys and queries need d + 2 + code, values d for gradient and state each."""
        d = self.domain.features
        return max(d + 2 + self.codes.width, 2 * d)

    @cached_property
    def sizes(self) -> tuple[float, float]:
        """Bounds on the entries of value rows and of state rows."""
        values, domain = self.values, self.domain
        value = abs(values.step) * (self.grid.largest * domain.x + values.fixed)
        return value, (abs(values.shrink) + 2 * values.momentum) * domain.w

    @cached_property
    def reading_scales(self) -> tuple[float, float]:
        """What the rows of both are multiplied by, and answers divided by."""
        value, state = (reading_scale(size, self.grid.dtype) for size in self.sizes)
        raised = RAISED if self.readout == "rest" else 1.0
        return value, raised * state

    @cached_property
    def magnitudes(self) -> dict[str, float]:
        """The largest |θ·x| of every kind of row."""
        grid, domain, scales = self.grid, self.domain, self.scales
        slope = grid.steepest
        value, state = (size * scale for size, scale in zip(self.sizes, self.reading_scales, strict=True))
        return {
            "key_x": slope * domain.x * scales.x,
            "key_y": slope * domain.y * scales.y,
            "key_bias": grid.highest * scales.bias,
            "key_code": self.code_factors[0] * self.codes.largest,
            "query_x": domain.w / scales.x,
            "query_y": 1 / scales.y,
            "query_bias": 1 / scales.bias,
            "value": value,
            "state": state,
        }

    @property
    def capacity(self) -> Capacity:
        """What an interpreter must have to run this phase."""
        return Capacity(self.slots.width, self.tokens, self.width, max(self.magnitudes.values()))

    def weights(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
        """W_K, W_Q, W_V of the head to emulate, as they stand in the prompt."""
        dtype, held, (value_scale, state_scale) = self.grid.dtype, self.values, self.reading_scales
        pick = {name: self.slots.select(name, dtype=dtype, device=device) for name in ("value", *self.carried)}
        w_k, w_q = self.selectors(device)
        step, shrink = (torch.tensor(number, dtype=dtype, device=device) for number in (held.step, held.shrink))
        gradient = -step * pick["value"] + step * pick["fixed"]
        state = (shrink + held.momentum) * pick["state"] - held.momentum * pick["before"]
        return w_k, w_q, torch.cat([value_scale * gradient, state_scale * state], dim=-2)

    def read_out(self, output: Tensor) -> Tensor:
        """(..., samples, 2d) ↦ (..., d): over samples, then gradient rows plus state rows, where there is a state."""
        d, (value_scale, state_scale) = self.domain.features, self.reading_scales
        gradient, state = output[..., :d], output[..., d : 2 * d]
        answer = (gradient.mean(dim=-2) if self.readout == "mean" else gradient.sum(dim=-2)) / value_scale
        return answer if self.readout == "sum" else answer + state.mean(dim=-2) / state_scale


def certified_lazily(phase: Phase, line: IdentityGrid) -> bool:
    """Whether a step may be the softmax F of the numbers w·x_i − y_i, and what reading adds to it at a state nearby.

    Claim: its error is then within `function_error`. Proof. Three parts are added: the number is off by what reading w
    and rounding a sum of d + 1 products make of it; log weights of F by the rounding of their scores; and what reading
    adds, F′ − F, is what reading keys makes of log weights at a number of the domain. Each moves log weights at such a
    number by a δ, and so F by at most g(δ)·deviation, g(δ) = e^{2δ} − e^δ, and by at most tanh(δ/2)·spread
    (`shifted_average`). Σ g(δ_i) ≤ g(Σ δ_i), as g is convex with g(0) = 0, and tanh(δ/2) ≤ δ/2. The two δ of emulation
    add up to `emulated_scores`; its factor is for the rounding of F′ − F, which is computed as a product. QED
    """
    grid, proved, domain = phase.grid, phase.proved, phase.domain
    scores = grid.steepest * domain.residual + grid.highest
    moved = emulated_scores(phase, line) * (1 + rounding.gamma(len(grid) + 32, grid.dtype))
    moved += rounding.dot(domain.features + 3, grid.steepest * domain.absolute, grid.dtype)
    moved += rounding.softmax_weights(rounding.dot(4, scores, grid.dtype), min(2 * scores, 64.0), grid.dtype)
    if not moved < 1:
        return False
    error = min(moved * grid.largest, math.exp(moved) * math.expm1(moved) * proved.deviation)
    size = min(proved.size + proved.deviation, grid.largest)
    error += rounding.average(len(grid), size, grid.dtype) + rounding.unit(grid.dtype) * size
    error += 2 * len(grid) * grid.largest * math.exp(-64)  # smaller weights may come out as anything below
    return error <= function_error(phase, line, proved.deviation, proved.size)


def score_error(phase: Phase, line: IdentityGrid) -> float:
    """How far the interpreter's score of one's own token may be from the template's: emulation, and a rounded sum."""
    slope, intercept = phase.grid.steepest, phase.grid.highest
    magnitude = slope * phase.domain.absolute + intercept + phase.strength * 1.001
    return emulated_scores(phase, line) + rounding.dot(phase.width + 1, magnitude, phase.grid.dtype)


def emulated_scores(phase: Phase, line: IdentityGrid) -> float:
    """Bound on the change of a score of the query's own sample when layer 1 reads keys and queries.

    Layer 1 gets every entry of K and Q to within line.error(its size). The code rows are the same numbers for all keys
    of a sample, so layer 1 makes the same numbers of them and their error is common to those keys; so are the rows that
    are zero everywhere (y where there is none, and the rows that pad the head).
    """
    m = phase.magnitudes
    emulated = product_error(line, m["key_x"], m["query_x"], phase.domain.features)
    emulated += product_error(line, m["key_bias"], m["query_bias"], 1)
    if phase.domain.y:
        emulated += product_error(line, m["key_y"], m["query_y"], 1)
    return emulated


def code_error(phase: Phase, line: IdentityGrid) -> float:
    """Bound on the error of the codes' part of a score; it matters between samples, not within one."""
    size = phase.magnitudes["key_code"]
    return product_error(line, size, size, phase.codes.width)


def product_error(line: IdentityGrid, key: float, query: float, count: int) -> float:
    """Bound on the error of a sum of `count` products of emulated numbers up to these sizes."""
    off_key, off_query = line.error(key), line.error(query)
    return count * (off_key * (query + off_query) + off_query * key)


def leaked(phase: Phase, line: IdentityGrid) -> float:
    """The weight of all other samples' tokens, when every score may be off.

    Claim: at most e^{2δ − SPARE} of the weight that exact scores leave them, δ bounding the error of every score: the
    odds of a set of tokens change by a factor within e^{±2δ}. The codes' strength already has SPARE to spare.
    """
    moved = 2 * (score_error(phase, line) + code_error(phase, line)) - SPARE
    return min(1.0, phase.proved.leak * math.exp(min(max(0.0, moved), 700.0)))


def function_error(phase: Phase, line: IdentityGrid, deviation: float, size: float) -> float:
    """Bound on what emulation and rounding add to F(residual)."""
    return phase.grid.rounding_error(deviation, size, score_error(phase, line))


def phase_terms(phase: Phase, line: IdentityGrid) -> dict[str, float]:
    """Named terms of the sup-norm error that one application of a phase adds to the state."""
    domain, dtype, step, fixed = phase.domain, phase.grid.dtype, abs(phase.values.step), phase.values.fixed
    proved, m, (value_scale, state_scale) = phase.proved, phase.magnitudes, phase.reading_scales
    entry = step * domain.x
    largest = phase.grid.largest + proved.size
    _, carried = phase.sizes
    copies = 1 if phase.readout == "mean" else domain.samples
    # Scores move once, by emulation and rounding together: what a move does grows faster than in proportion.
    rounded = phase.grid.rounding_error(proved.deviation, proved.size, 0.0)
    emulated = max(0.0, function_error(phase, line, proved.deviation, proved.size) - rounded)
    state = line.error(m["state"]) / state_scale if phase.readout != "sum" else 0.0
    terms = {
        "interpolation": entry * proved.interpolation,
        "routing leak": copies * leaked(phase, line) * (entry * largest + 2 * step * fixed),
        "emulated scores": entry * emulated,
        "emulated values": copies * line.error(m["value"]) / value_scale + state,
        "rounding": entry * rounded
        + rounding.average(len(phase.grid), carried + step * fixed, dtype)
        + rounding.gamma(domain.samples + 2, dtype) * (carried + entry * proved.size + step * fixed),
    }
    # The readout rounds what is added, errors included.
    return {name: value * (1 + rounding.gamma(domain.samples + 2, dtype)) for name, value in terms.items()}
