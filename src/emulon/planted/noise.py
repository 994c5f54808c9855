"""The error of a rotated stream and of noisy weights, as two numbers for the certificate's error terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.machine.compiler import Plan
from emulon.machine.layout import ZERO, phases
from emulon.machine.ranges import Analysis
from emulon.machine.targets.llama_error import LlamaPlan, Noise
from emulon.machine.targets.llama_registers import BANK, LlamaMachine
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
    """A planted Llama as it is and as it was intended, in the slots of its registers."""

    machine: LlamaMachine
    plan: LlamaPlan
    intended: Weights  # before rotation and noise; every row reads or writes slots
    actual: Weights  # the same rows as the checkpoint has them, rotated back
    units: list[Tensor]  # by block, the machine's number of every neuron
    rotation: Float[Tensor, "width width"]
    changed: float  # by what part of itself a row may differ besides
    places: list[int]  # the index of each of the machine's blocks
    dead: list[int]  # slots that dead heads and neurons write
    fixed: list[int]  # slots that are not rotated
    dead_norm: float = 0.0  # of all that is written into dead slots, at most

    def __post_init__(self) -> None:
        self.live = torch.ones(self.machine.width, dtype=torch.bool, device="cpu")
        self.live[self.fixed + self.dead] = False
        self.free = torch.ones_like(self.live)
        self.free[self.fixed] = False

    def noise(self, analysis: Analysis) -> Noise:
        """What functionals of the rotated slots are misread by, register by register, in the ranges of `analysis`.

        Claim: every functional a of the rotated slots is read to within Σ_s |a_s|·(misread + drift), beside the errors
        counted elsewhere, where misread is of the registers that it reads together and drift of the register of s.
        Proof. Let b be the largest stored entries of registers, and L_s the 2-norm of all registers and dead directions
        that are mixed with slot s. Rotated back, the checkpoint's row is a + δ with a known δ. Reading it errs by
        Σ|δ_s|b_s + ‖δ_dead‖·dead_norm, and by γ_n Σ|a_s|L_s for the sum over its n nonzero places, as the magnitudes of
        the terms of slot s add up to L_s at most (Cauchy-Schwarz). A block writes Σ_j o_j v_j: into slot s wrongly
        Σ_j |δo_js||v_j|, and with n terms in coordinate i it rounds that by γ_n Σ_j |o_ji||v_j|, which a rotation R
        spreads as |R|; adding to the stream rounds slot s by u·L_s. |v_j| is at most Σ_i |a_i|b_i, and silu(g)·u at
        most |g||u|, of the two units of a product, whose gates are opposite, one alone; where one product makes an
        entry its range bounds it, too. Values of dead rows are bounded in 2-norm (`_dead_values`). All this drifts: a
        register that is written anew is rid of what drifted before, as its old value is read with it, so a reading
        counts what has drifted since. QED
        """
        first, steps = self._first_written(), range(-1, 2 * len(self.intended.blocks))
        written = [[name for name, one in first.items() if one <= step] for step in steps]
        lengths = [self._length(analysis, names) for names in written]
        held = replace(self, dead_norm=self._dead_norm(lengths))
        entries, mixed = held._contents(analysis, written[0])
        drift, misread = [held._embedded(analysis, mixed)], held._final(held._contents(analysis, written[-1])[1])
        for step in steps[1:]:
            block, real = (one.blocks[step // 2] for one in (self.intended, self.actual))
            reads, write = (("query", "key", "value"), "output") if step % 2 == 0 else (("inward",), "outward")
            out, seen = (one.writes[write] for one in (block, real))
            # What dead ones read is read as wrong as it likes.
            live = out[..., self.live].any(dim=-1)
            live = live[None] if step % 2 else live.any(dim=1, keepdim=True)
            for name in reads:
                rows, found = (one.reads[name][live.expand(one.reads[name].shape[:-1])] for one in (block, real))
                for read, error in held._misread(rows, found, entries, mixed):
                    misread[read] = max(error, misread.get(read, 0.0))
            values = (block.value.abs() @ entries).flatten()
            values = held._passed(step // 2, block, entries, analysis) if step % 2 else values
            dead = held._dead_values(step, lengths[step])
            wrong = held._drift(values, dead, out, seen, block.inward[0] if step % 2 else None)
            entries, mixed = held._contents(analysis, written[step + 1])
            drift.append(wrong + unit(self.machine.dtype) * mixed)
        at_readings, at_end = held._drifted(torch.stack(drift))
        misread = {names: SECOND_ORDER * one for names, one in misread.items()}
        drifted = ({name: SECOND_ORDER * one for name, one in part.items()} for part in (at_readings, at_end))
        return Noise(misread, *drifted)

    def _length(self, analysis: Analysis, names: Iterable[str]) -> float:
        """2-norm of a token's registers while these are in use."""
        return math.hypot(*(analysis.largest[name].norm / self.machine.layout.scale[name] for name in names))

    def _dead_values(self, step: int, length: float) -> Float[Tensor, " rows"]:
        """By row of what a block's attention, or its MLP, writes: d with ‖v/d‖₂ ≤ 1 for the values v of its dead ones.

        With d_j = A‖V_j‖ for the rows V_j that they read, whatever scale each has: of a head ‖v/‖V‖‖ is at most the
        length times the spectral norm of the rows V_j/‖V_j‖, and of neurons, as |silu(g)u| ≤ |g||u|, also times the
        largest gate; in a block that divides both are divided.
        """
        block = self.intended.blocks[step // 2]
        out, read = (block.outward, block.inward[1]) if step % 2 else (block.output, block.value)
        dead = self._is_dead(out)
        if not dead.any():
            return torch.zeros(dead.numel(), dtype=torch.float64, device="cpu")
        sizes = read.norm(dim=-1) * dead
        spectral = torch.linalg.matrix_norm(read * (dead / sizes.clamp(min=1e-300))[..., None], 2)
        most = length * float(spectral.norm())
        if step % 2:
            layer = self.machine.layers[self.places.index(step // 2)] if step // 2 in self.places else None
            low = min((self.plan.divisions[one.number].low for one in layer.divisions), default=1.0) if layer else 1.0
            most *= length * float((block.inward[0].norm(dim=-1) * dead).max()) / low**2
        values: Tensor = most * sizes.flatten()
        return values

    def _dead_norm(self, lengths: list[float]) -> float:
        """Of all dead ones: √P times the spectral norm of their rows, where the values of each of P parts are ≤ 1."""
        gram, parts = torch.zeros(len(self.dead), len(self.dead), dtype=torch.float64, device="cpu"), 0
        for step, length in enumerate(lengths[:-1]):
            out = list(self.intended.blocks[step // 2].writes.values())[step % 2].flatten(0, -2)[:, self.dead]
            rows = out * self._dead_values(step, length)[:, None]
            gram, parts = gram + rows.mT @ rows, parts + bool(rows.any())
        return math.sqrt(parts * float(torch.linalg.matrix_norm(gram, 2))) if parts else 0.0

    def _is_dead(self, rows: Tensor) -> Tensor:
        return rows[..., self.dead].any(dim=-1) & ~rows[..., self.live].any(dim=-1)

    def _blocks(self) -> dict[int, int]:
        """By instruction, the index of the block that carries it out."""
        layers = zip(self.places, self.machine.layers, strict=True)
        return {one.number: place for place, layer in layers for one in layer.instructions}

    def _first_written(self) -> dict[str, int]:
        """After which attention (2·block) or MLP (2·block + 1) each register holds something; −1: from the start."""
        program, blocks = self.machine.program, self._blocks()
        first = dict.fromkeys(program.known, -1)
        for one in program.instructions:
            first.setdefault(one.target.name, phases(one, blocks[one.number])[1])
        return first

    def _contents(
        self, analysis: Analysis, names: Iterable[str]
    ) -> tuple[Float[Tensor, " width"], Float[Tensor, " width"]]:
        """By slot, its largest entry, and the 2-norm of all that is mixed with it, while these registers are in use."""
        layout, mixing = self.machine.layout, (self.rotation != 0).to(torch.float64)
        entries = (~self.free).to(torch.float64)  # slots of their own hold at most 1 as they are read
        if BANK in layout.slots:  # what reads 1 reads it from the bank or from the pad
            entries[layout.slots[BANK]] = 0.0
        squares = (mixing[:, self.dead].any(dim=1)).to(torch.float64) * self.dead_norm**2
        for name in names:
            reach, slots, scale = analysis.largest[name], layout.slots[name], layout.scale[name]
            entries[slots] = reach.peak / scale
            count = mixing[:, slots].sum(dim=1)
            squares += torch.minimum((reach.peak / scale) ** 2 * count, (count > 0) * (reach.norm / scale) ** 2)
        return entries, squares.sqrt()

    def _embedded(self, analysis: Analysis, mixed: Tensor) -> Float[Tensor, " width"]:
        """How wrong each slot is at first: positions, and inputs written by so many rows."""
        wrong = (self.actual.positions - self.intended.positions).abs().amax(dim=0)
        wrong += self.changed * self.intended.positions[:, self.free].norm(dim=1).max()
        scale, registers, u = self.machine.layout.scale, self.machine.program.registers, unit(self.machine.dtype)
        for name in self.machine.program.inputs:
            size = registers[name].size
            each = gamma(size + 2, self.machine.dtype) * math.sqrt(size) * analysis.largest[name].norm
            wrong += each / scale[name] + u * mixed
        return wrong

    def _final(self, mixed: Tensor) -> dict[frozenset[str], float]:
        """The rounding of reading one slot by its row of the rotation, itself rounded."""
        error = self._gammas((self.rotation != 0).sum(dim=1) + 1) * mixed
        slots = self.machine.layout.slots
        return {frozenset([name]): float(error[slots[name]].max()) for name in self.machine.program.registers}

    def _gammas(self, counts: Tensor) -> Tensor:
        steps = counts.to(torch.float64) * unit(self.machine.dtype)
        return steps / (1 - steps)

    def _misread(
        self, rows: Tensor, seen: Tensor, entries: Tensor, mixed: Tensor
    ) -> Iterator[tuple[frozenset[str], float]]:
        """For every row, which registers it reads, and the error of reading them, relative to its 1-norm."""
        used = rows[:, self.live].any(dim=1)
        rows, wrong = rows[used], (seen - rows)[used]
        error = wrong[:, self.live].abs() @ entries[self.live]
        error += wrong[:, self.dead].norm(dim=1) * self.dead_norm
        whole = math.sqrt(float(entries[self.live].square().sum()) + self.dead_norm**2)
        error += self.changed * whole * rows[:, self.live].norm(dim=1)
        magnitude = rows.abs() @ torch.where(self.free, mixed, entries)
        error += self._gammas((rows @ self.rotation.mT).count_nonzero(dim=1)) * magnitude
        relative = (error / rows[:, self.live].abs().sum(dim=1)).tolist()
        slots, names = self.machine.layout.slots, list(self.machine.program.registers)
        read = torch.stack([rows[:, slots[name]].any(dim=1) for name in names], dim=1).tolist()
        for chosen, one in zip(read, relative, strict=True):
            yield frozenset(name for name, is_read in zip(names, chosen, strict=True) if is_read), one

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
        for one in layer.products + layer.divisions:
            if one.raw.operator == "÷" or len(one.raw.into) == one.target.size:
                largest = analysis.largest[one.target.name].peak / machine.layout.scale[one.target.name]
                most[: len(owners)][owners == one.number] = largest
        return torch.minimum(passed / least, most[self.units[index]] / block.outward.norm(dim=1).clamp(min=1e-300))

    def _drift(
        self, values: Tensor, dead: Tensor, out: Tensor, seen: Tensor, gates: Tensor | None
    ) -> Float[Tensor, " width"]:
        """How wrong each slot becomes by what rows write: of used rows with these values and of dead ones."""
        out, seen = out.flatten(0, -2), seen.flatten(0, -2)
        used = out[:, self.live].any(dim=1)
        wrong = (seen - out).abs() + self.changed * out[:, self.free].norm(dim=1, keepdim=True)
        rotated = (out @ self.rotation.mT).abs()
        terms = (rotated != 0).to(torch.float64)
        sides = None if gates is None else gates[used]
        drift, written, count = (
            _open(part[used], sides) for part in (wrong * values[:, None], rotated * values[:, None], terms)
        )
        drift = drift + (wrong * dead[:, None]).norm(dim=0)
        written = written + (rotated * dead[:, None]).norm(dim=0)
        count = count + (terms * (dead > 0)[:, None]).sum(dim=0)
        wrong_in_all: Tensor = drift + (self._gammas(count + 2) * written) @ self.rotation.abs()
        return wrong_in_all

    def _drifted(self, drift: Float[Tensor, "steps width"]) -> tuple[dict[str, float], dict[str, float]]:
        """What drifts, at most, between the writing and a reading of each register, and until the end.

        The steps are the embedding, then attention and MLP of every block. A register that is added to keeps what has
        drifted so far.
        """
        machine = self.machine
        gathered = torch.nn.functional.pad(drift.cumsum(dim=0), (0, 0, 1, 0))
        since, worst = dict.fromkeys(machine.program.registers, 0), dict[str, float]()
        at_end = len(drift)

        def between(name: str, start: int, end: int) -> float:
            return float((gathered[end] - gathered[start])[machine.layout.slots[name]].max())

        blocks = self._blocks()
        for one in machine.program.instructions:
            reads, write, erased = phases(one, blocks[one.number])
            # A register may be divisor and numerator.
            for name, step in {**reads, **dict.fromkeys(one.raw.read.reads, write)}.items():
                worst[name] = max(worst.get(name, 0.0), between(name, since[name], step + 1))
            if one.increment is None:
                since[one.target.name] = erased + 1
        return worst, {name: between(name, start, at_end) for name, start in since.items()}


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
