"""The digital canary: what must be right to the last bit, in every format and order of summation.

Registers are small multiples of 1/16, gates are saturated, softmaxes are decided by more than 128 nats or by exact
ties, and the pad makes every norm an exact scaling. `Reference` proves for each prompt that no engine's answer may
differ; but for GPT-2 and GPT-NeoX, whose LayerNorms leave some bits of registers that wrong wiring changes in the
first. The prompt is a start token, 15 data, 47 others and a last one: 64 tokens.
"""

from __future__ import annotations

import numpy as np

from emulon.canary.checkpoint import POSITIONS, Builder, Canary, Probe, Shape, bits_of, eighth_bits

DATA, OTHERS, LENGTH, BITS = 15, 240, 64, 4
START, FIRST, LAST = 0, 1, 1 + DATA + OTHERS
OFFSET, CODE = 2560.0, 512.0  # how far apart scores are, before they differ by a token or a bit
STANDARD = Shape(theta=2e5)
# Each after those that its operation takes for granted: the first wrong one is to blame.
PROBES = (
    Probe("embedding", "embedding, residual stream, LM head", 1),
    Probe("mean", "mean of all 64 tokens (values, mask, cache, padding)", 1),
    Probe("groups", "mean of what another head reads (grouped heads)", 1),
    Probe("own", "the token itself (rotary embedding, positions)", 1),
    Probe("back_30", "the token thirty before (rotary embedding, positions)", 1),
    Probe("look", "look-up by code (attention scores)", 1),
    Probe("look_own", "the same by the other head of its pair (grouped heads)", 1),
    Probe("first", "the first token, 63 back (window, cache)", 1),
    Probe("product", "gated product (a saturated MLP unit)", 1),
    Probe("before", "the product of the token before (layer 2, cache)", 2),
    Probe("future", "what the token before saw of the last one (causal mask)", 2),
    Probe("second", "product in layer 2", 2),
)
INPUTS = {"code": BITS, "wanted": BITS, "value": 1, "factor": 1, "is_data": 1, "is_start": 1, "is_last": 1}
HIDDEN = {"seen": 1}
# Learnt positions: their numbers in bits, and those of the tokens so far before.
PLACES, PLACE_BITS = {"place_0": 0, "place_1": 1, "place_30": 30, "place": 0}, POSITIONS.bit_length() - 1


def digital(
    shape: Shape = STANDARD, *, family: str = "llama", half: bool = False, seed: int = 0, prompts: int = 4
) -> Canary:
    """The checkpoint, whose heads and frequencies are of `shape`; `half`: for float16, with a smaller pad."""
    places = dict.fromkeys(PLACES, PLACE_BITS) if family == "gpt2" else {}
    build = Builder(shape, INPUTS | {probe.name: 1 for probe in PROBES} | HIDDEN | places, family, half)
    _embed(build)
    _layers(build)
    return build.canary("digital", PROBES, _prompts(np.random.default_rng(seed), prompts))


def _embed(build: Builder) -> None:
    build.embed(START, is_start=1, value=0.5)
    for i in range(DATA):
        build.embed(FIRST + i, code=bits_of(i, BITS), is_data=1, value=(5 * i + 3) % 4 / 4)
    for i in range(OTHERS):
        # Others ask for a data token by its code, and end in a value and a factor of their own.
        wanted, token = i * 7 % (DATA - 1), FIRST + DATA + i
        build.embed(
            token, wanted=bits_of(wanted, BITS), value=(i * 3 + 1) % 4 / 4, factor=i // 5 % 3, embedding=i % 4 / 4
        )
    build.embed(LAST, wanted=bits_of(11, BITS), value=0.75, factor=2, embedding=0.75, is_last=1)
    if build.family == "gpt2":
        for at in range(POSITIONS):
            for name, back in PLACES.items():
                build.positions[at, list(build.slots[name])] = bits_of((at - back) % POSITIONS, PLACE_BITS)


def _layers(build: Builder) -> None:
    one, slow = build.row(pad=1), build.pair
    query, key, value = build.query, build.key, build.value
    code = eighth_bits(CODE * build.shape.size**0.5)
    # Heads 0 and 1: the data token whose code is asked for; head 1 asks for the code's complement in the lowest bit.
    key[0, 0, slow(0)] = build.row(is_data=1)
    value[0, 0, 0] = build.row(value=1)
    for head in (0, 1):
        query[0, head, slow(0)] = 2 * code * one
        for bit in range(BITS):
            key[0, 0, slow(1 + bit)][build.slots["code"][bit]] = 1
            query[0, head, slow(1 + bit)][build.slots["wanted"][bit]] = code * (-1 if head and not bit else 1)
    build.write(0, 0, 0, "look")
    build.write(0, 1, 0, "look_own")
    # Heads 2 and 3: thirty back, and the token itself.
    value[0, 1, 0] = build.row(value=1)
    for head, back, name in ((2, 30, "back_30"), (3, 0, "own")):
        build.offset(0, head, back, OFFSET)
        build.write(0, head, 0, name)
    # Head 4: the start token.
    key[0, 2, slow(0)], value[0, 2, 0] = build.row(is_start=1), build.row(value=1)
    query[0, 4, slow(0)] = code * one
    build.write(0, 4, 0, "first")
    # Heads 5 and 15: nothing is asked, so all tokens weigh the same. The last head reads the last group however groups
    # are laid out, and the group before it holds the same; what head 5 reads is in group 2 alone.
    value[0, 2, 1] = build.row(factor=1)
    build.write(0, 5, 1, "groups")
    value[0, 6, 0] = value[0, 7, 0] = build.row(value=1)
    build.write(0, 15, 0, "mean")
    # Head 6: the last token, if it can be seen, else the start token.
    key[0, 3, slow(0)], key[0, 3, slow(1)] = build.row(is_last=1), build.row(is_start=1)
    value[0, 3, 0] = build.row(is_last=1)
    query[0, 6, slow(0)], query[0, 6, slow(1)] = 2 * code * one, code * one
    build.write(0, 6, 0, "seen")
    # Products whose left factor is 0 or at least 32, where silu is the identity.
    build.switch(0, build.row(look=1), build.row(back_30=1), "product", 128.0)
    # Layer 2, heads 2 and 3: one back.
    value[1, 1, 0], value[1, 1, 1] = build.row(product=1), build.row(seen=1)
    build.offset(1, 2, 1, OFFSET)
    build.write(1, 2, 0, "before")
    build.write(1, 2, 1, "future")
    build.switch(1, build.row(product=1), build.row(factor=1), "second", 512.0)


def _prompts(rng: np.random.Generator, count: int) -> tuple[tuple[int, ...], ...]:
    found = []
    for _ in range(count):
        data = FIRST + rng.permutation(DATA)
        others = FIRST + DATA + rng.integers(0, OTHERS, LENGTH - DATA - 2)
        found.append((START, *map(int, data), *map(int, others), LAST))
    return tuple(found)
