"""What a stream in another basis, or weights that are a little off, cost: two numbers for the machine's budget.

In slots of its own a register is rounded relative to itself. In a turned stream every number is a mixture of all
registers: each addition rounds all of them, each reading sums over the whole width. Here is how much that can be.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from emulon.certify.rounding import unit
from emulon.machine.compiler import Plan
from emulon.machine.layout import ZERO
from emulon.machine.transformer import MachineBlock, Transformer
from emulon.planted.draft import kept_apart

# Products of two errors, and roundings in these sums themselves.
LIFT = 1.01


def noise_of(machine: Transformer, plan: Plan, weight_noise: float, beside: float = 0.0) -> tuple[float, float]:
    """`noise` and `skew` of `Normalisation`, for weights turned and each off by the part `weight_noise` at most, with
    idle parts that write `beside` in all (see `idle`).

    Claim: let R be orthogonal, fix the all-ones vector and the slots `kept_apart`, let every map that reads the stream
    be multiplied by it and every map that writes it, in float64, then rounded to the machine's dtype and changed by a
    part weight_noise. Then whatever functional a of the stream is read, wherever, is read to within
    ‖a‖₂·noise, beside what the budget counts anyway, and a and −a are read alike to within ‖a‖₂·skew.
    Proof. Write C for the 2-norm of a token (pads aside), S = C + √w·|mean| for its LayerNorm's, ρ for the relative
    2-norm error of a row or column of turned weights: (w + 2)u of the product, u of the dtype, weight_noise.
    Reading: LayerNorm errs by 4u in every number, the matrix product by w·u, the weights by ρ, all times ‖a‖S at most
    (Cauchy–Schwarz; a sums to zero but for ρ, which is why the mean counts in S). Two readings of a and −a differ by
    2(w·u + ρ)‖a‖S. Drift: a block writes Σ_j o_j v_j, and that sum errs, in 2-norm, by (terms·u + ρ)·Σ_j ‖o_j‖|v_j|
    whatever the order; adding it to the stream rounds by 2u·C. Nothing amplifies a drift but what reads it, and every
    reading counts all of it; the embedding is off by (w·u + ρ)·C. |v_j| is at most the 1-norm of its functional, the
    stored entries being below 1, and |GELU(z)| ≤ |z|·min(1, ½ + 2|z|/5). What idle parts write errs by the same part
    of ‖O‖_F·‖v‖₂, which is what `beside` sums; errors in v go where nobody reads. QED
    """
    norm, width, u = plan.normalisation.holding(beside), machine.width, unit(machine.dtype)
    seen = norm.content + math.sqrt(width) * norm.divide_mean(norm.divide_content)
    weights = (width + 3) * u + weight_noise
    turned = torch.ones(width, dtype=torch.bool, device="cpu")
    turned[kept_apart(machine)] = False
    drift = (width * u + weights) * norm.content + (max(width, machine.inner) * u + weights) * beside
    for index, block in enumerate(machine.typed_blocks):
        attention, mlp = _written(machine, plan, index, block, turned)
        drift += (width * u + weights) * attention + (block.units * u + weights) * mlp + 4 * u * norm.content
    reading = ((width + 4) * u + weights) * seen
    return LIFT * (drift + reading), LIFT * 2 * (width * u + weights) * seen


def _written(machine: Transformer, plan: Plan, index: int, block: MachineBlock, turned: Tensor) -> tuple[float, float]:
    """Σ_j ‖o_j‖·|v_j| over what the attention writes into the turned part of the stream, and over what the MLP does."""
    used = turned.clone()
    used[machine.layout.slots[ZERO]] = False
    values = block.attention[2 * machine.width :].double()[:, used].abs().sum(dim=1)
    attention = values @ block.output.double()[turned].norm(dim=0)
    divisions = [plan.divisions[one.number].low for one in machine.layers[index].divisions]
    reads = block.inward.double()[:, used].abs().sum(dim=1) / min(divisions, default=1.0)
    passed = reads * (0.5 + 0.4 * reads).clamp(max=1.0)
    return float(attention), float(passed @ block.outward.double()[turned].norm(dim=0))
