"""Layers of a network, and phases of the interpreter that compute them.

A `Layer` is an exact map. Register 0 is the input, and layer i writes register i + 1; a layer that reads several sees
their features side by side. States are (rows, positions, features). A `Composite` is a map that is computed in several
parts: its own registers are first those that it reads, then what its parts write.

A `NetworkPhase` is a layer planned for the numbers that it will meet: prompts, what is written back, and a bound on the
error. Inside the interpreter's attention is everything that a layer computes. Outside are, at every phase: putting
registers into the slots of tokens, times constants (grid slopes, grid values, powers of two); writing answers back into
a register, times a power of two; putting heads side by side.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from emulon.certify.domain import require_within
from emulon.core.errors import OutOfDomain
from emulon.interpreter.identity_grid import IdentityGrid
from emulon.interpreter.module import Capacity, Interpreter, Mode
from emulon.networks.arithmetic import FLOAT64, Arithmetic

# Bounds are computed in float64, with sums of a few thousand terms: this factor outweighs their rounding.
LIFT = 1 + 1e-9


@dataclass(frozen=True)
class Box:
    """lo ≤ number ≤ hi, feature by feature.

    Attributes:
        lo: Lower ends (features,).
        hi: Upper ends (features,).

    Example:
        >>> compile_network(module, Box(torch.zeros(3).double(), torch.ones(3).double()))
    """

    lo: Float64[Tensor, " features"]
    hi: Float64[Tensor, " features"]

    @property
    def most(self) -> Float64[Tensor, " features"]:
        """The largest magnitude of every feature."""
        return torch.maximum(self.lo.abs(), self.hi.abs())

    @property
    def size(self) -> float:
        """The largest magnitude of all."""
        return self.most.max().item() if len(self.lo) else 0.0

    @property
    def ends(self) -> tuple[float, float]:
        """One interval for all features."""
        return self.lo.min().item(), self.hi.max().item()

    def inner(self, void: float) -> float:
        """Least distance from the edges: `void` of the width, at most a tenth of positive numbers (variances)."""
        tenth = torch.where(self.lo > 0, self.lo / 10, math.inf)
        return torch.minimum(void * (self.hi - self.lo), tenth).min().item() if len(self.lo) else 0.0

    @staticmethod
    def beside(boxes: Sequence[Box]) -> Box:
        empty = torch.zeros(0, dtype=torch.float64, device="cpu")
        return Box(torch.cat([empty, *(box.lo for box in boxes)]), torch.cat([empty, *(box.hi for box in boxes)]))

    def split(self, size: int) -> tuple[Box, Box]:
        """The first `size` features, and the others."""
        return Box(self.lo[:size], self.hi[:size]), Box(self.lo[size:], self.hi[size:])

    def widened(self, by: float) -> Box:
        """Wider by this part of the width on both sides."""
        more = by * (self.hi - self.lo) + by * 1e-3 * self.most
        return Box(self.lo - more, self.hi + more)

    def scaled_up(self, by: float) -> Box:
        """Wider by a factor 1 + by on both sides, for positive numbers."""
        return Box(self.lo / (1 + by), self.hi * (1 + by))


@dataclass(frozen=True)
class AttentionRanges:
    """The largest |q|, |k|, |v| and |q·k| of all heads."""

    q: float
    k: float
    v: float
    score: float


@dataclass(frozen=True)
class ValueRanges:
    """Ranges of what a layer reads and writes; of an attention's numbers inside, and of the parts of a composite."""

    inputs: Box
    output: Box
    attention: AttentionRanges | None = None
    parts: tuple[ValueRanges, ...] = ()


@dataclass(frozen=True)
class ErrorBound:
    """Errors of one register, a row a case: of every number, and the 2-norm of a position's error vector."""

    each: Float64[Tensor, "cases features"]
    length: Float64[Tensor, " cases"]

    @classmethod
    def of(cls, each: Tensor, length: Tensor | None = None) -> ErrorBound:
        """Each tightened by the other; NaN becomes infinity."""
        each = each.nan_to_num(nan=math.inf, posinf=math.inf)
        whole = each.norm(dim=-1) * LIFT
        length = whole if length is None else torch.minimum(length.nan_to_num(nan=math.inf, posinf=math.inf), whole)
        return cls(torch.minimum(each, length.unsqueeze(-1)), length)

    def where(self, cases: Bool[Tensor, " cases"], otherwise: float = math.inf) -> ErrorBound:
        """This bound in some cases, `otherwise` in the others."""
        each = torch.where(cases.unsqueeze(-1), self.each, otherwise)
        return ErrorBound(each, torch.where(cases, self.length, otherwise))

    def least(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.of(torch.minimum(self.each, other.each), torch.minimum(self.length, other.length))

    def plus(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.of((self.each + other.each) * LIFT, (self.length + other.length) * LIFT)


f64 = torch.float64
# Most numbers of layer 1 in memory, over all prompts of a batch.
AT_ONCE = 1 << 23


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer(ABC):
    """`name` says where in the network it came from; `reads` are its registers."""

    name: str
    reads: tuple[int, ...]
    kind: ClassVar[str]

    @abstractmethod
    def evaluate(self, x: Any, a: Arithmetic) -> Any:
        """The exact map, over any arithmetic."""

    def exact(self, x: Float64[Tensor, "rows positions features"]) -> Float64[Tensor, "rows positions out"]:
        """In plain float64, as PyTorch would."""
        out: Tensor = self.evaluate(x, FLOAT64)
        return out

    @abstractmethod
    def interval(self, inputs: Box) -> Box:
        """A box of the outputs for inputs in this box."""

    def attention_ranges(self, x: Tensor | Box) -> AttentionRanges | None:
        """Ranges inside an attention, on these inputs or on all of this box."""
        return None

    def planned(self, inputs: Sequence[Box]) -> Layer:
        """The same map, with parameters chosen for these ranges of its registers."""
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class SimpleLayer(Layer):
    """A map that one phase computes."""

    is_affine: ClassVar[bool] = False

    @abstractmethod
    def propagated(self, errors: Sequence[ErrorBound], ranges: ValueRanges) -> ErrorBound:
        """Bound on the distance of outputs whose inputs differ by `errors`, one for each register; all in range."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Composite(Layer):
    """A map that its `parts` compute together, and whose own Lipschitz constant is better than theirs multiplied."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Layer, ...]: ...

    def split(self, x: Any) -> list[Any]:
        """The registers that it reads."""
        return [x]

    def with_parts(self, parts: Sequence[Layer]) -> Composite:
        """With the parameters of these planned parts."""
        return self

    def part_ranges(self, inputs: Sequence[Box]) -> tuple[Box, ...] | None:
        """Boxes of the parts' outputs by formulas, if there are any."""
        return None

    @abstractmethod
    def map_error(self, errors: Sequence[ErrorBound], ranges: ValueRanges, own: Sequence[ErrorBound]) -> ErrorBound:
        """By the Lipschitz constant of the map; `own` are the errors of its registers from exact inputs."""

    def largest_error(self, ranges: ValueRanges) -> ErrorBound | None:
        """A bound for any inputs, however wrong."""
        return None


def beside(reads: Sequence[int], registers: Sequence[Any], a: Arithmetic = FLOAT64) -> Any:
    """The input of a layer: its registers side by side; of one that reads nothing the network's, for its shape."""
    if len(reads) < 2:
        return registers[reads[0] if reads else 0]
    return a.beside([registers[i] for i in reads])


def evaluated(layers: Sequence[Layer], x: Tensor, a: Arithmetic, times: int = 1) -> list[Any]:
    """All registers of the exact network, in the last of `times` applications to its own output."""
    registers = [a.of(x)]
    for _ in range(times):
        registers = registers[-1:]
        for layer in layers:
            registers.append(layer.evaluate(beside(layer.reads, registers, a), a))
    return registers


def computed(
    layers: Sequence[Layer], given: Sequence[Tensor], compute: Callable[[int, Tensor], Tensor]
) -> Iterator[Tensor]:
    """What each layer writes, by `compute(its number, what it reads)`; registers are freed after their last use."""
    last = {read: number for number, layer in enumerate(layers) for read in layer.reads}
    registers = list(given)
    for number, layer in enumerate(layers):
        registers.append(compute(number, beside(layer.reads, registers)))
        yield registers[-1]
        for read in layer.reads:
            if last[read] == number and read >= len(given):
                registers[read] = registers[read].new_empty(0)


def states(layers: Sequence[Layer], x: Float64[Tensor, "rows positions features"]) -> Iterator[Tensor]:
    """The registers that the layers write, in plain float64, one after the other."""
    return computed(layers, [x], lambda number, inputs: layers[number].exact(inputs))


class Prompt(NamedTuple):
    """Token matrices (batch, tokens, features), the head in them, and how many of their tokens are queries."""

    tokens: Tensor
    w_k: Tensor
    w_q: Tensor
    w_v: Tensor
    queries: int


@dataclass(frozen=True, eq=False)
class NetworkPhase(ABC):
    """One layer, planned for the numbers that it will meet."""

    layer: Layer
    ranges: ValueRanges
    phases: ClassVar[tuple[NetworkPhase, ...]] = ()

    @property
    def kind(self) -> str:
        return self.layer.kind

    @property
    @abstractmethod
    def capacity(self) -> Capacity: ...

    @abstractmethod
    def prompts(self, x: Float64[Tensor, "rows positions features"]) -> Iterator[Prompt]:
        """A batch of prompts for every emulated head."""

    @abstractmethod
    def own_error(self, line: IdentityGrid) -> float:
        """Bound on the interpreter's error in every entry, in either mode."""

    @abstractmethod
    def description(self) -> str:
        """Description of its prompt."""

    def limit(self, void: float) -> float:
        """Distance that a run keeps from the edges of the range, and so the largest error for numbers to be in it."""
        return self.ranges.output.inner(void)

    @abstractmethod
    def run(self, interpreter: Interpreter, x: Tensor, mode: Mode, void: float) -> Tensor:
        """The register that it writes; numbers nearer to the edges of their range than `void` of it are refused."""


@dataclass(frozen=True, eq=False)
class SimplePhase(NetworkPhase):
    """The phase of a simple layer: one batch of prompts for each head."""

    layer: SimpleLayer

    @abstractmethod
    def written(self, answers: Sequence[Tensor], shape: torch.Size) -> Float64[Tensor, "rows positions out"]:
        """The register from the answers to all prompts; `shape` is that of the input."""

    @abstractmethod
    def fast(
        self, interpreter: Interpreter, x: Float64[Tensor, "rows positions features"]
    ) -> Float64[Tensor, "rows positions out"]:
        """The register without tokens of certified negligible weight: padding and masked tokens."""

    def run(self, interpreter: Interpreter, x: Tensor, mode: Mode, void: float) -> Tensor:
        try:
            if mode == "fast":
                register = self.fast(interpreter, x)
            else:
                register = self.written([answered(interpreter, prompt) for prompt in self.prompts(x)], x.shape)
        except OutOfDomain as error:
            raise OutOfDomain(f"{self.layer.name}: {error}") from None
        require_in_range(self, register, self.limit(void))
        return register


def joint_capacity(phases: Sequence[NetworkPhase]) -> Capacity:
    """What an interpreter must have for all of them."""
    found = phases[0].capacity
    for phase in phases[1:]:
        found = found | phase.capacity
    return found


def require_in_range(phase: NetworkPhase, register: Tensor, slack: float) -> None:
    """Refuse computed numbers that are not in range, or nearer than `slack` to its edges."""
    if math.isinf(slack):  # of numbers that are not computed
        return
    box = phase.ranges.output
    low, high = register.flatten(0, -2).amin(dim=0), register.flatten(0, -2).amax(dim=0)
    if bool(((low - slack < box.lo) | (high + slack > box.hi)).any()) or not torch.isfinite(register).all():
        lo, hi = box.ends
        raise OutOfDomain(
            f"{phase.layer.name} gives numbers from {low.min().item():.6g} to {high.max().item():.6g}, outside of its "
            f"range, about ({lo:.6g}, {hi:.6g}); compile for more data, a wider margin or a smaller domain"
        )


def answered(interpreter: Interpreter, prompt: Prompt) -> Tensor:
    """Answers to a batch of prompts, some at a time."""
    each = prompt.tokens.shape[-2] * 3 * interpreter.capacity.width * len(interpreter.slopes)
    parts = prompt.tokens.split(max(1, AT_ONCE // each))
    return torch.cat([interpreter(part, *prompt[1:4], queries=prompt.queries) for part in parts])


def read(interpreter: Interpreter, numbers: Tensor) -> Tensor:
    """Layer 1 on these numbers; numbers beyond the identity grid are refused."""
    require_within(interpreter.capacity.reach, **{"a number of the prompt": numbers})
    return interpreter.read_quickly(numbers)
