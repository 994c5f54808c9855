"""The analog canary: how many bits an engine keeps, operation by operation.

Every weight has 8 bits and is exact in float32, bfloat16 and float16; the answers are real numbers (`reference`). The
prompt is A, data, B, data, two tokens without a pad, question; everything is read off after the question.
"""

from __future__ import annotations

import numpy as np

from emulon.canary.checkpoint import VOCABULARY, Builder, Canary, Probe, Shape, bits_of, eighth_bits, formats_of, pad_of

STANDARD = Shape()

DATA, QUESTIONS = 48, 8
FILLER, A, B, TINY, PLAIN, FIRST = 0, 1, 2, 3, 4, 5
HEIGHT = 12
TIES, SHARP = (32, 256, 2048), (2, 32)
INPUTS = {
    "a": 1,
    "b": 1,
    "sign": 1,
    "is_data": 1,
    "value": 1,
    "low": 1,
    "code": 8,
    "left": 1,
    "right": 1,
    "small": 1,
    "plain": 3,
}
PROBES = (
    Probe("norm", "RMSNorm", 1),
    *(Probe(f"tie_{score}", f"softmax of two scores near {score}", 1) for score in TIES),
    Probe("rope_fast", "rotary embedding, the fastest pair", 1),
    Probe("rope_second", "rotary embedding, the second pair", 1),
    Probe("mean", f"mean of {DATA} values", 1),
    *(Probe(f"look_{sharp}", f"look-up with scores {sharp} apart", 1) for sharp in SHARP),
    Probe("mixed", "values of 17 bits (cache of values)", 1),
    Probe("cancel", "cancellation in Σ p·v", 1),
    Probe("epsilon", "RMSNorm of a tiny token (ε)", 1),
    Probe("product", "SwiGLU product", 1),
    Probe("activation", "SiLU itself", 1),
    Probe("second", "product in layer 2", 2),
    Probe("logit", "residual stream and LM head", 2),
)


def analog(shape: Shape = STANDARD, *, half: bool = False, seed: int = 0, prompts: int = 4) -> Canary:
    """The analog canary.

    Args:
        shape: Heads and frequencies.
        half: For float16, whose numbers end at 65,504: a smaller pad.
        seed: Of the data.
        prompts: How many prompts.
    Returns:
        A checkpoint whose answers `Reference` has.

    Example:
        >>> len(analog().probes)
        16
    """
    rng = np.random.default_rng(seed)
    names = INPUTS | {probe.name: 1 for probe in PROBES}
    build = Builder(shape, pad_of(half), names)
    _embed(build, rng)
    _attention(build)
    build.multiply(0, build.row(left=1), build.row(right=1), "product", 1.0)
    # One unit alone: in a product of two, any activation with f(x) − f(−x) = x would do.
    build.unit(0, build.row(left=1), build.row(right=1), "activation")
    build.multiply(1, build.row(look_32=1), build.row(product=1), "second", 1.0)
    # One saturated gate: the residual stream needs 17 bits afterwards.
    build.unit(1, build.row(pad=32), build.row(low=2.0**-14), "logit")
    registers = {name: slots[0] for name, slots in build.slots.items()}
    data = _prompts(rng, prompts)
    return Canary("analog", shape, build.built(), registers, PROBES, data, exact=False, formats=formats_of(half))


def _embed(build: Builder, rng: np.random.Generator) -> None:
    build.embed(A, a=1, sign=1)
    build.embed(B, b=1, sign=-1)
    build.embedding[TINY] = 0
    build.embed(TINY, small=2.0**-10)
    build.embedding[PLAIN] = 0
    build.embed(PLAIN, plain=[0.75, -0.5625, 0.34375])
    for i in range(DATA):
        value, low = (eighth_bits(x) for x in rng.uniform(-0.95, 0.95, 2))
        build.embed(FIRST + i, is_data=1, value=value, low=low, code=[0.5 * bit for bit in bits_of(5 * i + 3, 8)])
    for i in range(QUESTIONS):
        left, right, kept, low = (eighth_bits(x) for x in rng.uniform(0.25, 0.95, 4))
        code = [0.5 * bit for bit in bits_of(5 * (6 * i + 1) + 3, 8)]
        build.embed(FIRST + DATA + i, left=left, right=-right, logit=kept, low=low, code=code)


def _attention(build: Builder) -> None:
    """Layer 1. Two query heads share a key/value head; scores are divided by √size, which `root` undoes in part."""
    root = eighth_bits(build.shape.size**0.5)
    slow, fast = build.pair, range(2)
    query, key, value = build.query[0], build.key[0], build.value[0]
    either = build.row(a=1, b=1)
    # Heads 0 to 3: near ties between A and B at four heights of score; the gap is 17/16.
    for group, heads in ((0, (0, 1)), (1, (2,))):
        key[group, slow(0)], key[group, slow(1)], value[group, 0] = either, build.row(a=1), build.row(a=1)
        for head, score in zip(heads, TIES[2 * group :], strict=False):
            query[head, slow(0)], query[head, slow(1)] = build.row(pad=score * root), build.row(pad=1.0625 * root)
            build.write(0, head, 0, f"tie_{score}")
    # Heads 4 and 5: A and B again, told apart by how far they are.
    key[2, slow(0)], value[2, 0] = either, build.row(a=1)
    for pair, name in zip(fast, ("rope_fast", "rope_second"), strict=True):
        key[2, pair] = either
        query[4 + pair, slow(0)], query[4 + pair, pair] = build.row(pad=HEIGHT * root), build.row(pad=2 * root)
        build.write(0, 4 + pair, 0, name)
    # Heads 6 to 9: all data alike, and data by code.
    for group in (3, 4):
        key[group, slow(0)] = build.row(is_data=1)
        for bit in range(5):
            key[group, slow(1 + bit)][build.slots["code"][bit]] = 1
    # Beside the values of 17 bits stands a large one that nothing reads: one scale for both loses the small.
    value[3, 0], value[4, 0], value[4, 1] = build.row(value=1), build.row(value=1, low=2.0**-9), build.row(is_data=240)
    query[6, slow(0)] = build.row(pad=HEIGHT * root)
    build.write(0, 6, 0, "mean")
    for head, sharp, name in (
        (7, SHARP[0], f"look_{SHARP[0]}"),
        (8, SHARP[1], f"look_{SHARP[1]}"),
        (9, SHARP[1], "mixed"),
    ):
        query[head, slow(0)] = build.row(pad=HEIGHT * root)
        for bit in range(5):
            query[head, slow(1 + bit)][build.slots["code"][bit]] = 2 * sharp * root
        build.write(0, head, 0, name)
    # Head 10: +240 and −232 with equal weights.
    key[5, slow(0)], value[5, 0] = either, build.row(a=240, b=-232)
    query[10, slow(0)] = build.row(pad=HEIGHT * root)
    build.write(0, 10, 0, "cancel", 2.0**-8)
    # Heads 12 and 14: two tokens without a pad, whose norms are real numbers; one is so small that ε is all of it.
    undo = 16 / build.pad
    for group, name, entry, weight in ((6, "epsilon", "small", undo), (7, "norm", "plain", undo / 16)):
        first = build.slots[entry][0]
        key[group, slow(0), first] = value[group, 0, first] = weight
        query[2 * group, slow(0)] = build.row(pad=2 * HEIGHT * root)
        build.write(0, 2 * group, 0, name)


def _prompts(rng: np.random.Generator, count: int) -> tuple[tuple[int, ...], ...]:
    """A, twenty data, B, the other data, the two without a pad, a question."""
    found = []
    for k in range(count):
        data = [FIRST + int(i) for i in (range(DATA) if k < QUESTIONS else rng.permutation(DATA))]
        found.append((FILLER, A, *data[:20], B, *data[20:], TINY, PLAIN, FIRST + DATA + k % QUESTIONS))
    assert all(token < VOCABULARY for prompt in found for token in prompt)
    return tuple(found)
