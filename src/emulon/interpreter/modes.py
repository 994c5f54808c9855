"""The modes of running a program on an interpreter: how a step is computed. One answer, to within the certificate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.algorithms.losses import TemplateData
from emulon.certify import rounding
from emulon.certify.domain import require_within
from emulon.core import Progress, silent
from emulon.core.arrays import at_a_time
from emulon.core.errors import EmulonError
from emulon.interpreter.module import Interpreter
from emulon.interpreter.phase import Phase, certified_lazily
from emulon.interpreter.plan import Plan

# Scores (datasets × keys × samples) that are computed together: they stay in cache.
SCORES = 1 << 17
# In log weight: such weights, and what float32 makes of their products, are still no denormal numbers, which take long.
FAINT = -80.0
# Bytes of a number and of a difference; how often a run holds the data, checks included; what it has in hand.
WIDE, NARROW, COPIES, IN_HAND = 8, 4, 9, 1 << 27
# What reading the data changes in an answer is computed anew where a state has moved by this part of itself: it then
# changes by less than this part of itself, or about, and is itself some tens of roundings large.
NEAR = 2.0**-6
# Rounds after which libraries have allocated what they need, so that a CUDA graph can be recorded.
WARM = 3


class Reference:
    """Every token, head and score of both layers, at every step."""

    @staticmethod
    def needed_bytes(phase: Phase, x: Tensor) -> int:
        """Every sample's query meets every token, twice: as a score, and as a weight."""
        datasets, tokens = x.shape[:-2].numel(), x.shape[-2] * len(phase.grid)
        return datasets * tokens * (2 * x.shape[-2] + 8 * phase.slots.width) * x.element_size()

    def __init__(
        self,
        interpreter: Interpreter,
        plan: Plan,
        phases: tuple[Phase, Phase | None],
        data: TemplateData,
        report_progress: Progress = silent,
    ) -> None:
        self.interpreter, self.data = interpreter, data
        self.gradient, self.proximal = phases

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        """The state after w, `before` being the one before it."""
        w = self._apply(self.gradient, self.data, w, before)
        if self.proximal is not None:
            require_within(self.proximal.domain.w, w=w)
            w = self._apply(self.proximal, unit_vectors(w), w, w)
        return w

    def _apply(self, phase: Phase, data: TemplateData, w: Tensor, before: Tensor) -> Tensor:
        lead = torch.broadcast_shapes(data.x.shape[:-2], w.shape[:-1])
        rows = {name: part.expand(*lead, *part.shape[-3:]) for name, part in phase.data_rows(*data).items()}
        prompt = phase.prompt(rows, w, state=w, before=before)
        return phase.read_out(self.interpreter(prompt, *phase.weights(w.device), queries=phase.domain.samples))


class Fast:
    """Keys and values of the data once (`CachedPhase`); per step only the w-columns, and only a sample's own tokens."""

    lazy = True

    @staticmethod
    def needed_bytes(phase: Phase, x: Tensor) -> int:
        """About what a cached phase takes for such data, with what a run has of them besides, and what is in hand."""
        features = x.shape[-1]
        keys, values = (len(torch.unique(part.abs())) for part in (phase.grid.slopes, phase.grid.values))
        rows = keys * (features + 1) + values * features
        return x.shape[:-1].numel() * (rows * NARROW + COPIES * (features + 1) * WIDE) + IN_HAND

    def __init__(
        self,
        interpreter: Interpreter,
        plan: Plan,
        phases: tuple[Phase, Phase | None],
        data: TemplateData,
        report_progress: Progress = silent,
    ) -> None:
        self.momentum, self.shrink = plan.descent.momentum, plan.shrink
        gradient, proximal = phases
        self.gradient = CachedPhase(interpreter, gradient, data, report_progress, self.lazy and not data.x.is_cuda)
        self.proximal = None
        if proximal is not None:
            self.proximal = CachedPhase(interpreter, proximal, unit_vectors(data.x.new_ones(1)))

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        w = self._descended(w, before)
        self._require_reached(w)
        return self._shrunk(w)

    def _descended(self, w: Tensor, before: Tensor) -> Tensor:
        return self.gradient.apply(w, (self.shrink + self.momentum) * w - self.momentum * before)

    def _require_reached(self, w: Tensor) -> None:
        if self.proximal is not None:
            require_within(self.proximal.phase.domain.w, w=w)

    def _shrunk(self, w: Tensor) -> Tensor:
        """The proximal phase, number by number: as a state of one number, on one sample with x = 1, y = 0.

        Claim: it is as certified as with all of x = e_k. Proof. What is 0 in e_k is read as 0, which is within the
        identity grid's error of any reading. The tokens of sample k then see and change number k alone. QED
        """
        if self.proximal is None:
            return w
        each = w.unsqueeze(-1)
        return self.proximal.apply(each, self.proximal.phase.values.shrink * each).squeeze(-1)


class CudaGraph(Fast):
    """The fast mode on a GPU, its step recorded once as a CUDA graph: one launch a step instead of fifty."""

    graph: torch.cuda.CUDAGraph | None = None
    lazy = False

    def step(self, w: Tensor, before: Tensor) -> Tensor:
        if self.graph is None:
            self._capture(w, before)
            assert self.graph is not None
        self.given[0].copy_(w)
        self.given[1].copy_(before)
        self.graph.replay()
        self._require_reached(self.descended)
        return self.out.clone()

    def _capture(self, w: Tensor, before: Tensor) -> None:
        """Record a step that has run before, on a stream of its own; it must not synchronise with the host."""
        if w.device.type != "cuda":
            raise EmulonError("a step is recorded on a GPU; give device='cuda', or take mode fast")
        self.given = w.clone(), before.clone()
        aside = torch.cuda.Stream(w.device)
        aside.wait_stream(torch.cuda.current_stream(w.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self._shrunk(self._descended(*self.given))
        torch.cuda.current_stream(w.device).wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.descended = self._descended(*self.given)
            self.out = self._shrunk(self.descended)


MODES: dict[str, type[Reference] | type[Fast]] = {"fast": Fast, "reference": Reference, "cuda_graph": CudaGraph}


def unit_vectors(w: Tensor) -> TemplateData:
    """The proximal phase's data: x = e_k, y = 0."""
    eye = torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
    return TemplateData(eye, eye.new_zeros(len(eye)), None)


def shared(factors: Tensor) -> tuple[Tensor, Tensor]:
    """(sizes, signs) with factors = signs @ sizes, and one 1 or −1 in each row of signs.

    The identity grid is odd, F(−s) = −F(s), so that what is read for a factor is known for its negative.
    """
    sizes, places = torch.unique(factors.abs(), return_inverse=True)
    signs = torch.nn.functional.one_hot(places, len(sizes)).to(factors.dtype)
    return sizes, torch.where(factors < 0, -1.0, 1.0)[:, None].to(factors.dtype) * signs


@dataclass(frozen=True)
class Block:
    """Some samples: x (datasets, samples, features), y as it is added to w·x, and what reading added to their rows.

    The latter are (datasets, features, rows·samples).
    """

    x: Tensor
    y: Tensor
    keys: Tensor
    values: Tensor


class CachedPhase:
    """w ↦ −step·mean_i(F(w·x_i − y_i)·x_i − fixed_i) + the state's part, for data whose keys and values are kept.

    Of a number s that layer 1 made F(s) of, F(s) − s is kept next to the data. Scores are then those of the numbers
    plus those of the differences, and so are averages; differences, 10¹³ times smaller, may be kept in float32. Only
    the tokens of a query's own sample are asked: all others together weigh no more than the routing leak.

    A `lazy` phase evaluates the softmax of the numbers alone at every step, and what reading the data changes in the
    answer only where the state has moved by a part NEAR since that was done (`certified_lazily` has the proof).
    """

    def __init__(
        self,
        interpreter: Interpreter,
        phase: Phase,
        data: TemplateData,
        report_progress: Progress = silent,
        lazy: bool = False,
    ) -> None:
        self.interpreter, self.phase, grid, step = interpreter, phase, phase.grid, phase.values.step
        self.value_scale, self.state_scale = phase.reading_scales
        x, y, fixed = (None if part is None else _flat(part, tail) for part, tail in zip(data, (2, 1, 2), strict=True))
        assert x is not None and y is not None
        self.dtype = x.dtype
        slopes, values = (part.to(x.device) for part in (grid.slopes, grid.values))
        self.slopes = slopes
        # Rows of values and of ones: what weights add up to, times values and as they are.
        self.sums = torch.stack([-step * values, torch.ones_like(values)])
        self.key_sizes, self.key_signs = shared(slopes)
        # What a sample brings along has no sign in common with its value.
        self.value_sizes, self.value_signs = (
            shared(values) if fixed is None else (values, torch.diag(torch.ones_like(values)))
        )
        read, scales = interpreter.read_quickly, phase.scales
        self.asks = read(x.new_tensor([-1 / scales.y, 1 / scales.bias]))
        bias = read(scales.bias * grid.intercepts.to(x.device))
        self.bias = (bias * self.asks[1]).unsqueeze(-1)
        self.intercepts = grid.intercepts.to(x.device).unsqueeze(-1)
        # Whether weights may become denormal numbers, which take long.
        self.steep = 2 * grid.score_size > -math.log(torch.finfo(self.dtype).tiny)
        self.lazy = lazy and certified_lazily(phase, interpreter.identity)
        self.corrected: tuple[Tensor, Tensor] | None = None
        # Scores are these times (w·x − y, what reading added to each row).
        self.mix = torch.cat([slopes[:, None], self.key_signs], dim=1)
        self.fixed = None if fixed is None else step * fixed.mean(dim=-2)
        self.narrow = torch.float32
        self.blocks = list(self._blocks(x, y, fixed, report_progress))
        if self.dtype != self.narrow and not self._narrow_enough():
            self.narrow = self.dtype
            self.blocks = list(self._blocks(x, y, fixed, report_progress))

    def _blocks(self, x: Tensor, y: Tensor, fixed: Tensor | None, report_progress: Progress) -> Iterator[Block]:
        count, n = max(len(x), len(y)), x.shape[-2]
        size = max(1, at_a_time(SCORES, x.device) // (count * max(len(self.slopes), x.shape[-1] // 2)))
        for start in range(0, n, size):
            report_progress("reading the data", start / n)
            own = slice(start, start + size)
            more = None if fixed is None else fixed[:, own]
            yield self._block(x[:, own], y[:, own], more)

    def _block(self, x: Tensor, y: Tensor, fixed: Tensor | None) -> Block:
        scales, step, across = self.phase.scales, self.phase.values.step, x.mT.contiguous()
        keys = self._added(self.key_sizes, scales.x * across)
        # y is one more feature, that is asked for −1; where it is nothing, there is nothing to add.
        about_y = self._added(self.key_sizes, (scales.y * y).unsqueeze(-2))
        keys = torch.cat([keys.expand(len(about_y), *keys.shape[1:]), about_y], dim=1) if self._has_y else keys
        more = None if fixed is None else self.value_scale * step * fixed.mT
        values = self._added(-step * self.value_sizes, self.value_scale * across, more) / self.value_scale
        return Block(x, (scales.y * self.asks[0]) * y, keys.flatten(-2), values.flatten(-2))

    @property
    def _has_y(self) -> bool:
        return self.phase.domain.y > 0

    def _added(self, sizes: Tensor, numbers: Tensor, more: Tensor | None = None) -> Tensor:
        """What reading adds to size·number + more, (datasets, features, sizes, samples): size by size, as they are read
        fastest together that are about as large."""
        out = numbers.new_empty((*numbers.shape[:-1], len(sizes), numbers.shape[-1]), dtype=self.narrow)
        for place, size in enumerate(sizes):
            asked = size * numbers if more is None else size * numbers + more
            out[..., place, :] = self.interpreter.read_quickly(asked).sub_(asked)
        return out

    def _narrow_enough(self) -> bool:
        """Whether the differences, with all that float32 may add in a sum, are within the identity grid's error.

        Claim: a sum of n products whose one factor is a difference is off by γ_{n+2}·Σ|products| in float32. So it is
        as if differences were larger by a part γ, which the comparison includes. QED
        """
        line, phase = self.interpreter.identity, self.phase
        sizes = phase.magnitudes
        for block in self.blocks:
            d, terms = block.keys.shape[-2], block.values.shape[-1]
            parts = ((block.keys[:, : block.x.shape[-1]], "key_x", d), (block.values, "value", terms))
            for part, name, count in parts:
                most = part.abs().max().item() * (1 + rounding.gamma(count + 2, torch.float32))
                if not most <= line.error(sizes[name]):
                    return False
        return True

    def apply(self, w: Tensor, state: Tensor) -> Tensor:
        """One step from w; `state` is its part of the values."""
        lead, phase = w.shape[:-1], self.phase
        asked_and_carried = torch.stack([w / phase.scales.x, self.state_scale * state])
        query, read_state = self.interpreter.read_quickly(asked_and_carried).unbind()
        query = query.reshape(-1, w.shape[-1])
        total = self._lazily(query) if self.lazy else self._summed(self._answer, query)
        if phase.readout == "sum":
            return total.reshape(*lead, -1)
        answer = total / phase.domain.samples if phase.readout == "mean" else total
        return (answer if self.fixed is None else answer + self.fixed).reshape(
            *lead, -1
        ) + read_state / self.state_scale

    def _summed(self, answer: Callable[[Block, Tensor], Tensor], query: Tensor) -> Tensor:
        """Sum over all blocks, (datasets, features)."""
        total = query.new_zeros(query.shape)
        for block in self.blocks:
            total = total + answer(block, query)
        return total

    def _lazily(self, query: Tensor) -> Tensor:
        """Answers of all samples, plus the correction for reading, computed at a state near this one."""
        if self.corrected is None or not (query - self.corrected[0]).abs().amax() <= NEAR * query.abs().amax():
            self.corrected = query, self._summed(self._correction, query)
        return self._summed(self._plain, query) + self.corrected[1]

    def _residuals(self, block: Block, query: Tensor) -> Tensor:
        """w·x − y, (datasets, samples); what rounding and reading take out of the domain is put on its edge."""
        w = query * self.phase.scales.x
        if self._has_y and len(block.x) == len(block.y) == len(w) == 1:
            t = torch.addmv(block.y[0], block.x[0], w[0]).unsqueeze(0)
        else:
            t = products(block.x, w) + block.y if self._has_y else products(block.x, w)
        return t.clamp_(-self.phase.domain.residual, self.phase.domain.residual)

    def _weights(self, block: Block, query: Tensor) -> Tensor:
        """Of the keys at w·x − y as it is, but for what their sum is: (datasets, keys, samples)."""
        t = self._residuals(block, query)
        return exponentials_((self.slopes[:, None] * t.unsqueeze(-2)).add_(self.intercepts), self.steep)

    def _plain(self, block: Block, query: Tensor) -> Tensor:
        """Σ_i of what the samples of a block answer where nothing is off that the identity grid reads."""
        over, under = (self.sums @ self._weights(block, query)).unbind(-2)
        return weighted_sum(over.div_(under), block.x)

    def _added_to_rows(self, block: Block, query: Tensor) -> Tensor:
        """Error of the products of rows that reading the data causes, (datasets, rows, samples)."""
        asked = torch.cat([query, self.asks[:1].expand(len(query), 1)], dim=-1) if self._has_y else query
        return (asked.to(self.narrow).unsqueeze(-2) @ block.keys).view(len(asked), -1, block.x.shape[-2])

    def _added_values(self, block: Block, weights: Tensor) -> Tensor:
        shares = (self.value_signs.mT @ weights).to(self.narrow)
        return (block.values @ shares.flatten(-2).unsqueeze(-1)).squeeze(-1).to(self.dtype)

    def _answer(self, block: Block, query: Tensor) -> Tensor:
        """Σ_i of what the samples of a block answer, (datasets, features)."""
        t = self._residuals(block, query)
        parts = t.new_empty(len(t), self.mix.shape[1], t.shape[-1])
        parts[:, 0] = t
        parts[:, 1:] = self._added_to_rows(block, query)
        weights = exponentials_(torch.add(self.mix @ parts, self.bias))
        over, under = (self.sums @ weights).unbind(-2)
        return weighted_sum(over / under, block.x) + self._added_values(block, weights.div_(under.unsqueeze(-2)))

    def _correction(self, block: Block, query: Tensor) -> Tensor:
        """Σ_i of what reading the data changes in the answers of a block.

        Where it adds m_r to scores of weights w_r, the average F moves by Σ w_r(e^{m_r} − 1)(v_r − F)/Σ w_r e^{m_r}.
        """
        weights = self._weights(block, query)
        over, under = (self.sums @ weights).unbind(-2)
        weights /= under.unsqueeze(-2)
        moved = self.key_signs @ self._added_to_rows(block, query).to(self.dtype)
        moved += self.bias - self.intercepts
        moved = moved.expm1_().mul_(weights)
        more, size = (self.sums @ moved).unbind(-2)
        weights += moved
        weights /= (1 + size).unsqueeze(-2)
        change = (more - over / under * size) / (1 + size)
        return weighted_sum(change, block.x) + self._added_values(block, weights)


def exponentials_(scores: Tensor, clamped: bool = True) -> Tensor:
    """Of scores (…, keys, samples) less the largest, in place. Clamped, what is below e⁻⁸⁰ comes out as that."""
    scores.sub_(scores.amax(dim=-2, keepdim=True))
    return (scores.clamp_(min=FAINT) if clamped else scores).exp_()


def products(x: Tensor, w: Tensor) -> Tensor:
    """x·w, (datasets, samples), where all datasets may share one x."""
    if len(x) > 1:
        return (x @ w.unsqueeze(-1)).squeeze(-1)
    return (x[0] @ w[0]).unsqueeze(0) if len(w) == 1 else w @ x[0].mT


def weighted_sum(weights: Tensor, x: Tensor) -> Tensor:
    """Σ_i weight_i·x_i, (datasets, features)."""
    if len(x) > 1:
        return (weights.unsqueeze(-2) @ x).squeeze(-2)
    return (weights[0] @ x[0]).unsqueeze(0) if len(weights) == 1 else weights @ x[0]


def _flat(part: Tensor, tail: int) -> Tensor:
    """One dimension of datasets; one dataset that all share is one, however often it was expanded."""
    lead = part.shape[: part.ndim - tail]
    if all(stride == 0 or size == 1 for stride, size in zip(part.stride(), lead, strict=False)):
        return part[(0,) * len(lead)].unsqueeze(0)
    return part.reshape(-1, *part.shape[part.ndim - tail :])
