"""Heads, neurons and blocks that work for nobody: random weights that write where nothing reads."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from emulon.planted.draft import Draft, kept_apart
from emulon.planted.noise import LIFT

# Blocks at strength 1.
IDLE_BLOCKS = 3
# All that idle parts write at strength 1, in 2-norm and at most, times all that registers and codes may hold.
WRITTEN = 16.0


def idle_blocks(draft: Draft) -> None:
    """Blocks of idle heads and neurons, between the others: counted in the certificate."""
    before, count = draft.truth.blocks, round(draft.strength * IDLE_BLOCKS)
    order = torch.randperm(before + count, generator=draft.generator, device="cpu")[:before].sort().values.tolist()
    state = {name: part for name, part in draft.state.items() if not name.startswith("h.")}
    for name in [name.removeprefix("h.0.") for name in draft.state if name.startswith("h.0.")]:
        like = draft.state[draft.block(0, name)]
        gain = draft.state["ln_f.weight"] if name.endswith(("ln_1.weight", "ln_2.weight")) else torch.zeros_like(like)
        state |= {draft.block(index, name): gain.clone() for index in range(before + count) if index not in order}
        state |= {draft.block(new, name): draft.state[draft.block(old, name)] for old, new in enumerate(order)}
    draft.state, draft.places = state, order
    draft.truth = draft.truth.moved(order.__getitem__, before + count)
    for index in set(range(before + count)) - set(order):
        fill_heads(draft, index, range(draft.truth.heads))
        fill_neurons(draft, index, torch.arange(draft.truth.neurons, device="cpu"))


def idle_weights(draft: Draft) -> None:
    """Random weights for every head and neuron that writes nothing: counted in the certificate."""
    size = draft.head_width
    for index in range(draft.truth.blocks):
        written = draft.state[draft.block(index, "attn.c_proj.weight")].unflatten(0, (-1, size)).abs().sum(dim=(1, 2))
        fill_heads(draft, index, (written == 0).nonzero()[:, 0].tolist())
        fill_neurons(draft, index, (~draft.state[draft.block(index, "mlp.c_proj.weight")].any(dim=1)).nonzero()[:, 0])


def fill_heads(draft: Draft, index: int, heads: Sequence[int]) -> None:
    """Random queries, keys, values and outputs for these heads.

    Claim: all of them together write at most `share(draft)` into unread directions, in 2-norm, and nothing elsewhere.
    Proof. A head averages its values over tokens, which are at most ‖V‖₂·C long, C bounding a token's registers and
    codes: nothing else is read, and the columns of V sum to zero, so that LayerNorm's mean is not either.
    ‖o·O‖ ≤ ‖o‖·‖O‖_F, and O is scaled to make this an equal part of the share. Roundings are within `LIFT`. QED
    """
    if not heads:
        return
    width, size = draft.truth.width, draft.head_width
    attention = draft.state[draft.block(index, "attn.c_attn.weight")]
    output = draft.state[draft.block(index, "attn.c_proj.weight")]
    for head in heads:
        rows = slice(head * size, (head + 1) * size)
        for part in range(3):
            attention[:, part * width + rows.start : part * width + rows.stop] = _reading(draft, size)
        values = attention[:, 2 * width + rows.start : 2 * width + rows.stop]
        output[rows] = _writing(draft, values, share(draft) / len(heads))
    draft.beside += share(draft)


def fill_neurons(draft: Draft, index: int, neurons: Tensor) -> None:
    """The same for neurons: |GELU(z)| ≤ |z|. In a block that divides, all that its neurons read is divided, too."""
    if not len(neurons):
        return
    divisors = [1.0]
    if index in draft.places:
        layer = draft.machine.layers[draft.places.index(index)]
        divisors += [draft.plan.divisions[one.number].low for one in layer.divisions]
    inward = draft.state[draft.block(index, "mlp.c_fc.weight")]
    inward[:, neurons] = _reading(draft, len(neurons))
    written = _writing(draft, inward[:, neurons], share(draft) * min(divisors))
    draft.state[draft.block(index, "mlp.c_proj.weight")][neurons] = written
    draft.beside += share(draft)


def share(draft: Draft) -> float:
    """What the attention, or the MLP, of one block may write beside the registers."""
    return draft.strength * WRITTEN * draft.plan.normalisation.content / (2 * (draft.machine.depth + IDLE_BLOCKS))


def unread(draft: Draft) -> list[int]:
    """The slots that nothing reads."""
    slots = draft.machine.layout.slots
    return [i for name in ("spare", "filler") if name in slots for i in range(slots[name].start, slots[name].stop)]


def _reading(draft: Draft, count: int) -> Tensor:
    """Random functionals of the stream, (width, count), that see no pads, divisors or mean, and no other idle part."""
    unseen = {*kept_apart(draft.machine), *unread(draft)}
    seen = [i for i in range(draft.truth.width) if i not in unseen]
    reading = torch.zeros(draft.truth.width, count, dtype=torch.float64, device="cpu")
    reading[seen] = draft.random(len(seen), count) / math.sqrt(len(seen))
    reading[seen] -= reading[seen].mean(dim=0)
    return reading


def _writing(draft: Draft, reading: Tensor, most: float) -> Tensor:
    """Random directions among those that nothing reads, (count, width): no more than `most` with such readings."""
    places = unread(draft)
    writing = reading.new_zeros(reading.shape[1], draft.truth.width)
    writing[:, places] = draft.random(reading.shape[1], len(places))
    size = float(torch.linalg.matrix_norm(writing) * torch.linalg.matrix_norm(reading, 2))
    return writing * (most / (LIFT * size * draft.plan.normalisation.content))
