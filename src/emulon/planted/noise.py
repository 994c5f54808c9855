"""The error of a rotated stream and of noisy weights, as two numbers for the certificate's error terms."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from emulon.certify.rounding import gamma, unit
from emulon.machine.compiler import Plan, content
from emulon.machine.layout import ZERO
from emulon.machine.ranges import Analysis
from emulon.planted.architecture import Architecture, Block
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
    if architecture.name == "llama":
        return llama_noise(architecture, machine, plan, weight_noise, dead_norm)
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


def llama_noise(
    architecture: Architecture,
    machine: Compiled,
    plan: Plan,
    weight_noise: float,
    dead_norm: float,
    analysis: Analysis | None = None,
) -> tuple[float, float]:
    """The same for a Llama, whose RMSNorm is exact and whose codes, marks and pads keep their slots.

    Claim: as in `noise_of`, for functionals of the rotated slots.
    Proof. Let f be the number of rotated slots, C the 2-norm of a token's registers and dead directions, ρ the relative
    2-norm error of a rotated row: √f(f + 2)u₆₄ of the product, ROTATION for R not being quite orthogonal, u of the
    dtype, weight_noise. Reading errs by (γ_f + ρ)‖a‖C; other slots are counted elsewhere. A block writes Σ_j o_j v_j
    with n nonzero rows, which errs by
    (γ_n + ρ)Σ_j ‖o_j‖|v_j|, and adding it to the stream by u·C in 2-norm, twice a block. |v_j| is at most Σ_i |a_i|b_i
    with the largest stored entries b (below 1, or as wide as `analysis` has them, errors included), and silu(g)·u at
    most |g||u|, of the two units of a product, whose gates are opposite, together. Every reading counts all of this
    drift. QED
    """
    norm, width, u = plan.normalisation, machine.width, unit(machine.dtype)
    entries = torch.ones(width, dtype=torch.float64, device="cpu")
    if analysis is not None:
        norm = replace(norm, content=content(machine.program, machine.layout, analysis)[0])
        for name, reach in analysis.largest.items():
            entries[machine.layout.slots[name]] = reach.peak / machine.layout.scale[name]
    dead_norm *= max(1.0, norm.content / plan.normalisation.content)  # what dead heads read may be larger, too
    norm = norm.holding(dead_norm)
    free = torch.ones(width, dtype=torch.bool, device="cpu")
    free[architecture.fixed_slots(machine)] = False
    slots = int(free.sum())
    rounded = math.sqrt(slots) * (slots + 2) * unit(torch.float64) + ROTATION + u + weight_noise
    drift = (gamma(slots, machine.dtype) + rounded) * (norm.content + dead_norm)
    for index, block in enumerate(architecture.weights_of(machine).blocks):
        divisor = min((plan.divisions[one.number].low for one in machine.layers[index].divisions), default=1.0)
        values = (block.value.abs() @ entries) * block.output[..., free].norm(dim=-1)
        gate, up = (part.abs() @ entries for part in block.inward)
        passed = gate * up * block.outward[..., free].norm(dim=-1) / divisor
        opposite = (block.inward[0][:, None] == -block.inward[0]).all(dim=-1).any(dim=-1)
        passed = torch.where(opposite, passed / 2, passed)
        for written in (values, passed):
            terms = int((written > 0).sum())
            drift += (gamma(terms + 2, machine.dtype) + rounded) * float(written.sum()) + u * norm.content
    reading = (gamma(slots, machine.dtype) + rounded) * norm.content
    return SECOND_ORDER * (drift + reading), SECOND_ORDER * 2 * reading
