"""The error of a rotated stream and of noisy weights, as two numbers for the certificate's error terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.machine.compiler import Plan, content
from emulon.machine.layout import ZERO
from emulon.machine.ranges import Analysis
from emulon.machine.targets.llama_error import LlamaPlan
from emulon.machine.targets.llama_registers import LlamaMachine
from emulon.planted.architecture import Architecture, Block, Weights
from emulon.planted.truth import Compiled

# Covers products of two errors, and rounding in the computation of bounds.
SECOND_ORDER = 1.01
# A rotation's rows and columns are orthonormal to within this.
ROTATION = 2.0**-36


def noise_of(
    architecture: Architecture, machine: Compiled, plan: Plan, weight_noise: float, dead_norm: float = 0.0
) -> tuple[float, float]:
    """`noise` and `skew` of `Normalisation` for a rotated stream and weights that are each off by a part.

    In slots of its own a register is rounded relative to itself. In a rotated stream every number is a mixture of all
    registers: each addition rounds all of them, and each reading sums over the whole width.

    Claim: let R be orthogonal and fix the all-ones vector and the fixed slots, let every row that reads or writes the
    stream be multiplied by it in float64, then rounded to the machine's dtype and changed by a part weight_noise at
    most; let dead components write `dead_norm` in all. Then every functional a of the stream is read to within
    ‖a‖₂·noise, beside the errors counted elsewhere, and a and −a are read alike to within ‖a‖₂·skew.
    Proof. Write C for the 2-norm of a token (pads aside), S = C + √w·|mean| for its LayerNorm's, ρ for the relative
    2-norm error of a rotated row: (w + 2)u₆₄ of the product, u of the dtype, weight_noise.
    Reading: LayerNorm errs by 4u in every number, the matrix product by w·u, the weights by ρ, all times ‖a‖S at most
    (Cauchy–Schwarz; a sums to zero but for ρ, which is why the mean counts in S). Two readings of a and −a differ by
    2(w·u + ρ)‖a‖S. Drift: a block writes Σ_j o_j v_j, and that sum errs, in 2-norm, by (terms·u + ρ)·Σ_j ‖o_j‖|v_j|
    in any order; adding it to the stream rounds by 2u·C. Drift is amplified only by reading it, and every reading
    counts all of it; the embedding is off by (w·u + ρ)·C. |v_j| is at most the 1-norm of its functional, the stored
    entries being below 1, and |GELU(z)| ≤ |z|·min(1, ½ + 2|z|/5). What dead components write errs by the same part of
    ‖O‖_F·‖v‖₂, which is what dead_norm sums; errors in v go to directions that are not read. QED
    """
    norm, width, u = plan.normalisation.holding(dead_norm), machine.width, unit(machine.dtype)
    seen = norm.content + math.sqrt(width) * norm.divide_mean(norm.divide_content)
    weights = (width + 2) * unit(torch.float64) + u + weight_noise
    free = torch.ones(width, dtype=torch.bool, device="cpu")
    free[architecture.fixed_slots(machine)] = False
    drift = (width * u + weights) * norm.content + (max(width, machine.inner) * u + weights) * dead_norm
    for index, block in enumerate(architecture.weights_of(machine).blocks):
        attention, mlp = _written(machine, plan, index, block, free)
        drift += (width * u + weights) * attention + (machine.typed_blocks[index].units * u + weights) * mlp
        drift += 4 * u * norm.content
    reading = ((width + 4) * u + weights) * seen
    return SECOND_ORDER * (drift + reading), SECOND_ORDER * 2 * (width * u + weights) * seen


def _written(machine: Compiled, plan: Plan, index: int, block: Block, free: Tensor) -> tuple[float, float]:
    """Σ_j ‖o_j‖·|v_j| over what the attention, and what the MLP, writes into the slots `free`."""
    used = free.clone()
    used[machine.layout.slots[ZERO]] = False
    values = block.value[..., used].abs().sum(dim=-1)
    attention = (values * block.output[..., free].norm(dim=-1)).sum()
    divisions = [plan.divisions[one.number].low for one in machine.layers[index].divisions]
    reads = block.inward[0][:, used].abs().sum(dim=1) / min(divisions, default=1.0)
    passed = reads * (0.5 + 0.4 * reads).clamp(max=1.0)
    return float(attention), float(passed @ block.outward[:, free].norm(dim=1))


@dataclass
class RotatedLlama:
    """A planted Llama as it is and as it was intended, in the slots of its registers.

    Attributes:
        machine, plan: The compiled program and what is known of it.
        intended: Its blocks before rotation and noise; every row reads or writes slots.
        actual: The same rows as the checkpoint has them, rotated back.
        units: By block, the machine's number of every neuron.
        rotation: Of the stream.
        changed: By what part of itself a row may differ besides.
        share, dead_norm: What dead heads, or neurons, of one block write at most; and all of them.
        places: The index of each of the machine's blocks.
        dead: Slots that they write.
        fixed: Slots that are not rotated.
    """

    machine: LlamaMachine
    plan: LlamaPlan
    intended: Weights
    actual: Weights
    units: list[Tensor]
    rotation: Float[Tensor, "width width"]
    changed: float
    share: float
    dead_norm: float
    places: list[int]
    dead: list[int]
    fixed: list[int]

    def __post_init__(self) -> None:
        self.live = torch.ones(self.machine.width, dtype=torch.bool, device="cpu")
        self.live[self.fixed + self.dead] = False
        self.free = torch.ones_like(self.live)
        self.free[self.fixed] = False

    def noise(self, analysis: Analysis) -> tuple[float, float]:
        """`noise` and `skew` of `Normalisation`, while registers are in the ranges of `analysis`.

        In slots of its own a register is rounded relative to itself. In a rotated stream every number is a mixture of
        all registers: each addition rounds all of them, and each reading sums over the whole width.

        Claim: every functional a of the rotated slots is read to within ‖a‖₁·noise, beside the errors counted
        elsewhere, and a and −a are read alike to within ‖a‖₁·skew.
        Proof. Let b be the largest stored entries of registers, C the 2-norm of registers and dead directions, f the
        number of rotated slots. Rotated back, the checkpoint's row is a + δ with a known δ. Reading it errs by
        Σ|δ_s|b_s + ‖δ_dead‖·dead_norm, and by γ_f‖a‖C for the sum over the width, whose terms' magnitudes add up to
        ‖a‖C at most (Cauchy-Schwarz). A block writes Σ_j o_j v_j with n nonzero rows: into slot s wrongly
        Σ_j |δo_js||v_j|, and rounds coordinate i by γ_n Σ_j |o_ji||v_j|, which a rotation R spreads as |R|; adding to
        the stream rounds by u·C in 2-norm. |v_j| is at most Σ_i |a_i|b_i, and silu(g)·u at most |g||u|, of the two
        units of a product, whose gates are opposite, one alone; where one product makes an entry its range bounds it,
        too. Of dead rows ‖v‖‖O‖_F ≤ share. Every reading counts all of this drift. QED
        """
        machine, u = self.machine, unit(self.machine.dtype)
        # What dead heads read may be larger than planned, too.
        grown = max(1.0, content(machine.program, machine.layout, analysis)[0] / self.plan.normalisation.content)
        held = replace(self, share=self.share * grown, dead_norm=self.dead_norm * grown)
        entries, squares = torch.zeros(machine.width, dtype=torch.float64, device="cpu"), held.dead_norm**2
        for name, reach in analysis.largest.items():
            entries[machine.layout.slots[name]] = reach.peak / machine.layout.scale[name]
            squares += (reach.norm / machine.layout.scale[name]) ** 2
        length = math.sqrt(squares)
        gathering = gamma(int(self.free.sum()), machine.dtype) * length
        drift, reading = held._embedded(analysis, length), 0.0
        for index, (block, real) in enumerate(zip(self.intended.blocks, self.actual.blocks, strict=True)):
            for name, part in block.reads.items():
                reading = max(reading, held._misread(part.flatten(0, -2), real.reads[name].flatten(0, -2), entries))
            values = (block.value.abs() @ entries).flatten(), held._passed(index, block, entries, analysis)
            for value, name, gates in zip(values, block.writes, (None, block.inward[0]), strict=True):
                out, seen = block.writes[name].flatten(0, -2), real.writes[name].flatten(0, -2)
                drift += held._drift(value, out, seen, gates) + u * length
        drifted = float(drift[self.live].max())
        return SECOND_ORDER * (drifted + reading + gathering), SECOND_ORDER * 2 * (reading + gathering)

    def _embedded(self, analysis: Analysis, length: float) -> Float[Tensor, " width"]:
        """How wrong each slot is at first: positions, and inputs written by so many rows."""
        wrong = (self.actual.positions - self.intended.positions).abs().amax(dim=0)
        wrong += self.changed * self.intended.positions[:, self.free].norm(dim=1).max()
        scale, registers, u = self.machine.layout.scale, self.machine.program.registers, unit(self.machine.dtype)
        for name in self.machine.program.inputs:
            size = registers[name].size
            each = gamma(size + 2, self.machine.dtype) * math.sqrt(size) * analysis.largest[name].norm
            wrong += each / scale[name] + u * length
        return wrong

    def _misread(self, rows: Tensor, seen: Tensor, entries: Tensor) -> float:
        """The largest error of a reading that comes from its row, relative to the row."""
        sizes = rows[:, self.live].norm(dim=1)
        used = sizes > 0
        wrong = (seen - rows)[used]
        error = wrong[:, self.live].abs() @ entries[self.live]
        error += wrong[:, self.dead].norm(dim=1) * self.dead_norm
        whole = math.sqrt(float(entries[self.live].square().sum()) + self.dead_norm**2)
        return float((error / sizes[used]).max()) + self.changed * whole if len(error) else 0.0

    def _passed(self, index: int, block: Block, entries: Tensor, analysis: Analysis) -> Float[Tensor, " neurons"]:
        """The largest values of neurons."""
        passed: Tensor = (block.inward.abs() @ entries).prod(dim=0)
        if index not in self.places:
            return passed
        place, machine = self.places.index(index), self.machine
        layer = machine.layers[place]
        least = min((self.plan.divisions[one.number].low for one in layer.divisions), default=1.0)
        most = torch.full((machine.inner,), math.inf, dtype=torch.float64, device="cpu")
        owners = torch.tensor(machine.typed_blocks[place].unit_owners, device="cpu")
        for one in layer.products:
            if len(one.raw.into) == one.target.size:
                largest = analysis.after[one.number - 1].peak / machine.layout.scale[one.target.name]
                most[: len(owners)][owners == one.number] = largest
        return torch.minimum(passed / least, most[self.units[index]] / block.outward.norm(dim=1).clamp(min=1e-300))

    def _drift(self, values: Tensor, out: Tensor, seen: Tensor, gates: Tensor | None) -> Float[Tensor, " width"]:
        """How wrong each slot becomes by what rows write: of used rows and dead ones."""
        used = out[:, self.live].any(dim=1)
        dead = out[:, self.dead].any(dim=1) & ~used
        wrong = (seen - out).abs() + self.changed * out[:, self.free].norm(dim=1, keepdim=True)
        rotated = (out @ self.rotation.mT).abs()
        ones = torch.ones(len(out), 1, dtype=torch.float64, device="cpu")
        sides = None if gates is None else gates[used]
        drift, written, count = (
            _open(part[used] * scale[used, None], sides)
            for part, scale in ((wrong, values), (rotated, values), (ones, ones[:, 0]))
        )
        if dead.any():
            whole = float(torch.linalg.matrix_norm(out[dead]))
            drift = drift + self.share / whole * wrong[dead].norm(dim=0)
            written = written + self.share / whole * rotated[dead].norm(dim=0)
        terms = round(float(count)) + int(dead.sum())
        return drift + gamma(terms + 2, self.machine.dtype) * written @ self.rotation.abs()


def _open(parts: Tensor, gates: Tensor | None) -> Tensor:
    """Sums over rows, of those with opposite gates over one side, whichever is larger."""
    if gates is None or not len(gates):
        return parts.sum(dim=0)
    first = gates[torch.arange(len(gates), device="cpu"), (gates != 0).long().argmax(dim=1)]
    side = (first < 0).long()
    directions, group = torch.unique(gates * first.sign()[:, None], dim=0, return_inverse=True)
    sums = torch.zeros(len(directions), 2, parts.shape[1], dtype=torch.float64, device="cpu")
    sums.index_put_((group, side), parts, accumulate=True)
    return sums.amax(dim=1).sum(dim=0)
