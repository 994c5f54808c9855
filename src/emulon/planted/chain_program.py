"""The token program of a chain of thought: registers, reads and steps, compiled into a stock Llama.

`<s> x +0.50 y +0.25 x … ask +0.70 think` is continued by `w1 +0.12 w2 +0.20 answer +0.14 </s>`. At every word the
layers compute all steps c_1, …, c_T from the means of x·x and x·y over the samples. Step t starts from p_{t−1}: what is
written behind `w(t−1)` where the chain reads it, else c_{t−1}, which no word holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emulon.machine.instruction import AffineForm, Register, constant
from emulon.machine.token_program import Back, TokenProgram

if TYPE_CHECKING:
    from emulon.planted.chain import Chain, Steps

CONTEXT = 256
UNITS = 100.0  # numbers are written in hundredths


def chain_program(chain: Chain) -> TokenProgram:
    """The program of a chain of thought.

    Args:
        chain: What it computes, writes and reads.
    Returns:
        The program; `machine.compile_llama` makes a model of it.

    Example:
        >>> print(chain_program(draw_chain("faithful", seed=0)))
    """
    words, d, steps = chain.words, chain.features, chain.steps
    p = TokenProgram(f"chain of thought, {chain.kind}", chain.vocabulary, CONTEXT)
    value = p.given("value", words.numbers)
    is_y, is_think = p.given("is y", {"y": 1.0}), p.given("is think", {"think": 1.0})
    order = ["think", *words.markers, "answer"]
    phase = p.given("phase", {word: [float(i == j) for j in range(len(order))] for i, word in enumerate(order)})
    so = p.given("is so", {words.connective: 1.0}) if words.connective else None

    # The phase of the words behind a marker, and a sample's x at the word of its y.
    behind: list[AffineForm] = [phase]
    for places in range(1, d + 2 if so is not None else d + 1):
        behind.append(p.register(f"phase {places} before", len(order)))
        p.read(behind[-1], phase, at=Back(places))
    x, asked, after_y = p.register("x", d), p.register("asked", d), p.register("after y")
    p.read(after_y, is_y, at=Back(1))
    for j in range(d):
        p.read(x[j], value, at=Back(d + 1 - j))
        p.read(asked[j], value, at=Back(d - j))
    square, cross = p.register("x·x", d * d), p.register("x·y", d)
    for j in range(d):
        p.mul(cross[j], x[j], value)
        for k in range(d):
            p.mul(square[d * j + k], x[j], x[k])
    moment, target, question = p.register("mean x·x", d * d), p.register("mean x·y", d), p.register("question", d)
    samples = p.match(((1.0,), p.flag(after_y)), equal=True)
    p.read(moment, square, at=samples)
    p.read(target, cross, at=samples)
    p.read(question, asked, at=p.flagged(is_think))

    read = [t for t in range(1, steps + 1) if any(one[t - 1] for one in chain.reads)]
    written = {t: _written(p, behind, value, t, d) for t in read}
    chains = [_steps(p, chain, number, (moment, target), written) for number in range(len(chain.reads))]
    stated, used = chains[0], chains[-1]
    answer, out = p.register("ŷ"), p.register("out")
    last = written[steps] if chain.reads[-1][-1] else used[-1]
    for j in range(d):
        p.mul(answer, question[j], last[j])
    for t in range(1, steps + 1):
        for j in range(d):
            p.gate(out, behind[j][t], stated[t - 1][j], UNITS)
    p.gate(out, phase[steps + 1], answer, UNITS)
    _says(p, chain, behind, out, so)
    return p


def _written(p: TokenProgram, behind: Sequence[AffineForm], value: Register, step: int, d: int) -> Register:
    """The numbers that are written behind the marker of a step; zeros where it is not there."""
    held = p.register(f"written {step}", d)
    for j in range(d):
        p.read(held[j], value, at=p.flagged(behind[j + 1][step]))
    return held


def _steps(
    p: TokenProgram,
    chain: Chain,
    number: int,
    means: tuple[Register, Register],
    written: dict[int, Register],
) -> list[AffineForm]:
    """c_1, …, c_T of one of the chain's algorithms, as forms."""
    rule, reads, d, found = chain.rules[number], chain.reads[number], chain.features, list[AffineForm]()
    start = constant(0.0, (d, 1))
    now, before = start, start
    for t in range(1, chain.steps + 1):
        gradient = _gradient(p, rule, now, means, f"{'sr'[number] if len(chain.rules) > 1 else 's'}{t}")
        step = now - rule.size(t) * gradient + rule.decay * (now - before)
        found.append(step)
        before, now = now, written[t] if reads[t - 1] else step
    return found


def _gradient(p: TokenProgram, rule: Steps, w: AffineForm, means: tuple[Register, Register], name: str) -> AffineForm:
    """M·w − b + ridge·w, entry by entry within ± the rule's limit if it has one."""
    moment, target = means
    d = w.entries
    held = p.register(f"{name} M·w", d)
    for j in range(d):
        for k in range(d):
            p.mul(held[j], w[k], moment[d * j + k])
    gradient = held - target + rule.ridge * w
    if not rule.limit:
        return gradient
    ends = p.register(f"{name} clipped", d)
    half = 0.5 * p.one
    for j in range(d):
        p.abs(ends[j], half, gradient[j] + rule.limit)
        p.abs(ends[j], -half, gradient[j] - rule.limit)
    return ends


def _says(p: TokenProgram, chain: Chain, behind: Sequence[AffineForm], out: Register, so: Register | None) -> None:
    words, d, steps = chain.words, chain.features, chain.steps
    writing = behind[0][steps + 1]
    for t in range(1, steps + 1):
        for j in range(d):
            writing = writing + behind[j][t]
    p.decode({word: UNITS * words.numbers[word] for word in sorted(words.written)}, out, when=writing)
    after = [*words.markers[1:], "answer"]
    p.say({words.markers[0]: ()}, when=behind[0][0])
    p.say({"</s>": ()}, when=behind[1][steps + 1])
    for t, word in enumerate(after, start=1):
        if so is None:
            p.say({word: ()}, when=behind[d][t])
        else:
            both = p.register(f"so after {t}")
            p.gate(both, so, behind[d + 1][t])
            p.say({word: ()}, when=both)
    if so is not None:
        ended = behind[d][1]
        for t in range(2, steps + 1):
            ended = ended + behind[d][t]
        p.say({words.connective: ()}, when=ended)
