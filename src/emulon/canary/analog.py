"""The analog canary: how many bits an engine keeps, operation by operation.

Every weight has 8 bits and is exact in float32, bfloat16 and float16; the answers are real numbers (`reference`). The
prompt is A, data, B, data, two tokens without a pad, question; everything is read off after the question.
"""

from __future__ import annotations

import numpy as np

from emulon.canary.checkpoint import (
    CENTRED,
    HEAD_PAD,
    HEADS,
    INNER,
    POSITIONS,
    VOCABULARY,
    Builder,
    Canary,
    Probe,
    Shape,
    bits_of,
    eighth_bits,
)

STANDARD = Shape()

DATA, QUESTIONS = 48, 8
FILLER, A, B, TINY, PLAIN, FIRST = 0, 1, 2, 3, 4, 5
HEIGHT = 12
# Near ties of A and B: their scores, how much A's is higher, and the heads that ask.
TIES = {
    "tie_32": (32, 17 / 16, 0),
    "tie_256": (256, 17 / 16, 1),
    "tie_2048": (2048, 17 / 16, 2),
    "tie_close": (256, 1 / 16, 3),
    "tie_far": (256, 5, 11),
}
SHARP = (2, 8, 32)
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
# Each after those that its operation takes for granted: the first wrong one is to blame.
PROBES = (
    Probe("linear", "matrix products", 1),
    Probe("mixed", "values of 17 bits (cache of values)", 1),
    Probe("norm", "norm of a token", 1),
    Probe("epsilon", "norm of a tiny token (ε)", 1),
    *(Probe(name, f"softmax of two scores near {score}, {gap} apart", 1) for name, (score, gap, _) in TIES.items()),
    Probe("mean", f"mean of {DATA} values", 1),
    *(Probe(f"look_{sharp}", f"look-up with scores {sharp} apart (cache of keys)", 1) for sharp in SHARP),
    Probe("cancel", "cancellation in Σ p·v", 1),
    Probe("rope_fast", "rotary embedding (and cache of keys), the fastest pair", 1),
    Probe("rope_second", "rotary embedding (and cache of keys), the second pair", 1),
    Probe("product", "gated product", 1),
    Probe("activation", "activation by itself", 1),
    Probe("second", "product in layer 2", 2),
    Probe("logit", "residual stream and LM head", 2),
)
# Qwen's norms of queries and keys: a query whose norm is a real number.
HEAD_NORM = Probe("head_norm", "norm of a head's query", 1)
# GPT-2 and GPT-NeoX have biases, one factor at an activation, and GPT-2 has learnt positions instead of rotary pairs.
BIASES = (
    Probe("bias_query", "bias of queries", 1),
    Probe("bias_attention", "bias of the first norm, of values or of attention's answer", 1),
    Probe("bias_mlp", "bias of the second norm, of units, of the MLP's answer or of the last norm", 1),
)
POSITION = Probe("position", "learnt positions", 1)


def _probes(family: str) -> tuple[Probe, ...]:
    if family == "qwen3":
        return (*PROBES, HEAD_NORM)
    if family not in CENTRED:
        return PROBES
    kept = [probe for probe in PROBES if probe.name != "product"]
    if family == "gpt2":
        kept = [POSITION, *(probe for probe in kept if not probe.name.startswith("rope"))]
    return (*kept, *BIASES)


def analog(
    shape: Shape = STANDARD, *, family: str = "llama", half: bool = False, seed: int = 0, prompts: int = 4
) -> Canary:
    """The checkpoint, like `digital`; `seed` is of its data."""
    rng, probes = np.random.default_rng(seed), _probes(family)
    build = Builder(shape, INPUTS | {probe.name: 1 for probe in probes}, family, half)
    _embed(build, rng)
    _attention(build)
    # left + low/512 needs 17 bits in a sum, and as a factor of the next product. Less left it needs 8, which a coarse
    # norm of the answer leaves alone.
    build.line(0, build.row(left=16, low=2.0**-5), "linear", build.faint)
    build.line(0, build.row(left=-16), "linear", build.faint)
    # One unit alone: in a product of two, any activation with f(x) − f(−x) = x would do.
    build.unit(0, build.row(left=1), build.row(left=1) if build.centred else build.row(right=1), "activation")
    if build.centred:
        build.unit(1, build.row(left=0), build.row(look_32=1, activation=1), "second")
        _biases(build)
    else:
        build.multiply(0, build.row(left=1), build.row(right=1), "product", 1.0)
        build.multiply(1, build.row(look_32=1), build.row(product=1), "second", 1.0)
    # The residual stream needs 17 bits afterwards.
    build.line(1, build.row(low=1), "logit", 2.0**-14)
    drawn = _prompts(rng, prompts)
    if family == "gpt2":
        build.positions[:, build.slots["position"][0]] = [eighth_bits(x) for x in rng.uniform(0.25, 0.95, POSITIONS)]
    return build.canary("analog", probes, drawn)


def _biases(build: Builder) -> None:
    """Each bias adds a number of its own."""
    at = "model.layers.0."
    key, value, heads = build.key[0], build.value[0], HEADS * build.shape.size
    key[7, build.pair(1)], value[7, 1] = build.row(a=1), build.row(a=1)
    build.bias[f"{at}self_attn.q_proj"] = np.zeros(heads)
    build.bias[f"{at}self_attn.q_proj"][15 * build.shape.size + build.pair(1)] = 3 * build.shape.size**0.5
    build.write(0, 15, 1, "bias_query")
    # Head 6 averages values, and so a bias of the first norm and one of values.
    value[3, 1] = build.row(bias_attention=1)
    build.bias[f"{at}self_attn.v_proj"] = np.zeros(heads)
    build.bias[f"{at}self_attn.v_proj"][6 * build.shape.size + 1] = 0.25
    build.write(0, 6, 1, "bias_attention")
    for name, register, each in (
        (f"{at}input_layernorm", "bias_attention", 0.5),
        (f"{at}self_attn.o_proj", "bias_attention", 0.125),
        (f"{at}post_attention_layernorm", "bias_mlp", 0.5),
        (f"{at}mlp.down_proj", "bias_mlp", 0.125),
        ("model.norm", "bias_mlp", 0.0625),
    ):
        build.bias[name] = each * build.row(**{register: 1.0})
    build.bias[f"{at}mlp.up_proj"] = np.zeros(INNER)
    build.bias[f"{at}mlp.up_proj"][build.units[0]] = 0.25
    build.unit(0, build.row(bias_mlp=1), build.row(bias_mlp=1), "bias_mlp")


def _embed(build: Builder, rng: np.random.Generator) -> None:
    build.embed(A, a=1, sign=1)
    build.embed(B, b=1, sign=-1)
    build.embedding[TINY] = 0
    build.embed(TINY, small=2.0**-10)
    build.embedding[PLAIN] = 0
    build.embed(PLAIN, plain=[768.0, -576.0, 352.0])
    for i in range(DATA):
        value, low = (eighth_bits(x) for x in rng.uniform(-0.95, 0.95, 2))
        build.embed(FIRST + i, is_data=1, value=value, low=low, code=[0.5 * bit for bit in bits_of(5 * i + 3, 8)])
    for i in range(QUESTIONS):
        left, right, kept, low = (eighth_bits(x) for x in rng.uniform(0.25, 0.95, 4))
        code = [0.5 * bit for bit in bits_of(5 * (6 * i + 1) + 3, 8)]
        build.embed(FIRST + DATA + i, left=left, right=-right, logit=kept, low=low, code=code)


def _attention(build: Builder) -> None:
    """Layer 1. Two query heads share a key/value head. `root` undoes the division of scores by √size, but for √2."""
    root = 2.0 ** (int(build.shape.size).bit_length() // 2)
    slow, fast = build.pair, range(min(build.turning, 2))
    query, key, value = build.query[0], build.key[0], build.value[0]
    either = build.row(a=1, b=1)
    # Heads 0 to 3 and 11: near ties between A and B.
    for group, entry in ((0, 0), (1, 0), (5, 1)):
        key[group, slow(0)], key[group, slow(1)], value[group, entry] = either, build.row(a=1), build.row(a=1)
    for name, (score, gap, head) in TIES.items():
        query[head, slow(0)], query[head, slow(1)] = build.row(pad=score * root), build.row(pad=gap * root)
        build.write(0, head, int(head == 11), name)
    # Heads 4 and 5: A and B again, told apart by how far they are.
    key[2, slow(0)], value[2, 0] = either, build.row(a=1)
    for pair, name in zip(fast, ("rope_fast", "rope_second"), strict=False):
        key[2, pair] = either
        query[4 + pair, slow(0)], query[4 + pair, pair] = build.row(pad=HEIGHT * root), build.row(pad=2 * root)
        build.write(0, 4 + pair, 0, name)
    # Heads 6 to 9 and 13: all data alike, and data by code.
    for group in (3, 4, 6):
        for bit in range(5):
            key[group, slow(1 + bit)][build.slots["code"][bit]] = 1
    key[3, slow(0)] = key[4, slow(0)] = build.row(is_data=1)
    # Beside the values of 17 bits stands a large one that nothing reads: one scale for both loses the small.
    value[3, 0], value[4, 0], value[4, 1] = build.row(value=1), build.row(value=1, low=2.0**-9), build.row(is_data=240)
    value[4, 2] = value[6, 1] = build.row(value=1)
    query[6, slow(0)] = build.row(pad=HEIGHT * root)
    build.write(0, 6, 0, "mean")
    for head, sharp, entry, name in (
        (7, 2, 0, "look_2"),
        (13, 8, 1, "look_8"),
        (8, 32, 2, "look_32"),
        (9, 32, 0, "mixed"),
    ):
        if head != 13:  # there the question itself is found, too
            query[head, slow(0)] = build.row(pad=HEIGHT * root)
        for bit in range(5):
            query[head, slow(1 + bit)][build.slots["code"][bit]] = 2 * sharp * root
        build.write(0, head, entry, name, 512 * build.faint if name == "mixed" else 1.0)
    # Less the value itself, eight bits are left.
    build.write(0, 8, 2, "mixed", -512 * build.faint)
    # Head 10: +240 and −232 with equal weights.
    value[5, 0] = build.row(a=240, b=-232)
    query[10, slow(0)] = build.row(pad=HEIGHT * root)
    build.write(0, 10, 0, "cancel", 2.0**-8)
    # Heads 12 and 14: two tokens without a pad, whose norms are real numbers; one is so small that ε is all of it.
    undo = 1 / build.norm
    for group, name, token, weight in ((6, "epsilon", "small", undo), (7, "norm", "plain", undo / 16)):
        first = build.slots[token][0]
        key[group, slow(0), first] = value[group, 0, first] = weight
        query[2 * group, slow(0)] = build.row(pad=2 * HEIGHT * root)
        build.write(0, 2 * group, 0, name)
    if build.family == "qwen3":
        # Head 15 has no pad in its query, whose norm is √10.
        key[7, slow(1)], value[7, 1] = build.row(a=root * build.shape.size**0.5 / HEAD_PAD), build.row(a=1)
        query[15, slow(1)], query[15, slow(2)] = build.row(pad=3), build.row(pad=1)
        query[15, -1] = build.row(pad=-HEAD_PAD)
        build.write(0, 15, 1, "head_norm")


def _prompts(rng: np.random.Generator, count: int) -> tuple[tuple[int, ...], ...]:
    """A, twenty data, B, the other data, the two without a pad, a question."""
    found = []
    for k in range(count):
        data = [FIRST + int(i) for i in (range(DATA) if k < QUESTIONS else rng.permutation(DATA))]
        found.append((FILLER, A, *data[:20], B, *data[20:], TINY, PLAIN, FIRST + DATA + k % QUESTIONS))
    assert all(token < VOCABULARY for prompt in found for token in prompt)
    return tuple(found)
