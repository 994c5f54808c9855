"""The interpreter of the text language, as a program for every word of a text.

A prompt states the step and the data; the program writes `step:1 @1 … @n w1 … wd step:2 …` behind it and ends with
`</s>`. Numbers are kept in two parts, hundredths (h) and hundred-millionths (l), both whole, so that nothing is lost
in differences. What a token does depends on its word: at `@i` the part of row i in the gradient is computed, at `wj`
and the first two words of its number what is written next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from emulon.language.vocabulary import PIECE, Capacity, Kind, Vocabulary
from emulon.machine.instruction import Register
from emulon.machine.token_program import Back, TokenProgram

# Tokens of the longest text: so many rows and features, and all steps.
CONTEXT = {"small": 1 << 15, "large": 1 << 18}
H, L = 1e-2, 1e-8  # the units of a number's parts
OVERFLOW = 2000.0  # hundredths; the number after the last
Value = TypeVar("Value", float, list[float])


def interpreter(capacity: Capacity) -> TokenProgram:
    """The program that runs every method of the language.

    Args:
        capacity: How many features, rows and steps it can hold.
    Returns:
        The program; `machine.targets.llama.compile_llama` makes a model of it.

    Example:
        >>> print(interpreter(SMALL))
    """
    words, d = Vocabulary(capacity), capacity.features
    p = TokenProgram(f"learning by text, {capacity.name}", list(words.numbers), CONTEXT[capacity.name])

    def flag(kind: Kind) -> Register:
        return p.given(f"is {kind}", {token.text: 1.0 for token in words.of_kind(kind)})

    def each(kind: Kind, value: Callable[[int], Value]) -> dict[str, Value]:
        return {token.text: value(token.number) for token in words.of_kind(kind)}

    row_code = partial(bits, count=(2 * capacity.samples).bit_length())
    step_code = partial(bits, count=(capacity.steps + 2).bit_length())

    def query_code(i: int) -> list[float]:
        return row_code(capacity.samples + i)

    labels = [*(token.text for token in words.of_kind("feature", "weight")), "y", "rate", "ridge", "momentum"]
    label_bits = (len(labels) + 1).bit_length()
    code = {text: bits(number, label_bits) for number, text in enumerate([*labels, "after the last weight"])}
    after = [*(f"w{j}" for j in range(2, d + 1)), "after the last weight"]

    # Words: what they are, which row, step or coordinate they name, and which comes next.
    head, group = p.given("head", each("head", float)), p.given("group", each("group", float))
    is_row, is_query, is_scratch = flag("row"), flag("query"), flag("scratch")
    is_step, is_until, is_y = flag("step"), flag("until"), p.given("is y", {"y": 1.0})
    is_weight, is_loss, is_prox = flag("weight"), flag("loss"), flag("prox")
    is_margin, is_overflow = flag("link"), flag("stop")
    label = p.given("label", {token.text: 1.0 for token in words.of_kind("feature", "weight", "label", "parameter")})
    sharp = p.given("sharpness", each("loss", lambda s: 2.0**s) | each("prox", lambda s: 2.0**s))
    row = p.given("row code", each("row", row_code) | each("query", query_code) | each("scratch", row_code))
    first_row = {text: row_code(1) for text in each("step", float)}
    next_row = p.given("next row", each("scratch", lambda i: row_code(i + 1)) | first_row)
    step = p.given("step code", each("step", lambda t: step_code(t + 1)) | each("until", lambda t: step_code(t + 1)))
    name = p.given("name", {text: code[text] for text in labels})
    weight_name = p.given("weight name", {text: code[text] for text in each("weight", float)})
    next_name = p.given("next name", {f"w{j}": code[text] for j, text in enumerate(after, start=1)})
    coordinate = p.given("coordinate", {f"w{j + 1}": [float(k == j) for k in range(d)] for j in range(d)})

    # The parts of a number meet at its last word; the words behind a w know which it is.
    h, m = p.register("h"), p.register("m")
    first, middle, last = p.register("first"), p.register("middle"), p.register("last weight")
    written = p.register("written")
    of, next_of = p.register("name of", label_bits), p.register("next of", label_bits)
    p.read(m, group, at=Back(1))
    p.read(h, head, at=Back(2))
    p.read(of, name, at=Back(3))
    p.read(next_of, next_name, at=Back(3))
    p.read(last, is_weight, at=Back(3))
    p.read(written, head, at=Back(1))
    p.read(first, label, at=Back(1))
    p.add(first, -is_overflow)
    p.read(middle, label, at=Back(2))
    mine, my_name = p.register("mine", d), p.register("my name", label_bits)  # the coordinate that is being written
    for places in (0, 1, 2):
        p.read(mine, coordinate, at=Back(places))
        p.read(my_name, weight_name, at=Back(places))
    low = 1e3 * m + group  # hundred-millionths, at the last word
    value = H * h + L * low
    in_row, in_step = p.register("in row", row.size), p.register("in step", step.size)
    p.read(in_row, row, at=p.flagged(is_row + is_query, latest=True))
    p.read(in_step, step, at=p.flagged(is_step, latest=True))
    margin = p.register("margin")
    p.read(margin, is_margin, at=p.flagged(is_margin + is_query, latest=True))

    # In a row `?i` the y is asked for: its words read that row as @i reads row i.
    in_query, at_y, after_y = p.register("in query"), p.register("at y"), p.register("after y")
    asked, begins, answered = p.register("asked"), p.register("answer begins"), p.register("answered")
    p.read(in_query, is_query, at=p.flagged(is_row + is_query, latest=True))
    for places in (0, 1, 2):
        p.read(at_y, is_y, at=Back(places))
    p.read(after_y, is_y, at=Back(3))
    p.gate(asked, in_query, at_y)
    p.gate(begins, in_query, is_y)
    p.gate(answered, in_query, after_y)
    p.gate(row, asked, in_row)

    # After `margin` every x is multiplied by its row's y, and the target is 0.
    sign, my_sign = p.register("sign"), p.register("my sign")
    target_h, target_l, xh, xl = (p.register(name) for name in ("target h", "target l", "signed h", "signed l"))
    p.gate(sign, margin, H * h)
    p.gate(target_h, 1.0 - margin, h)
    p.gate(target_l, 1.0 - margin, low)
    p.read(my_sign, sign, at=p.match((p.unless(in_query, code["y"]), of), latest=True))
    for part, signed in ((h, xh), (low, xl)):
        p.gate(signed, 1.0 - margin, part)
        p.mul(signed, my_sign, part)

    # At @i: row i and the latest weights, w·x − y in units of 1e-4, whole part and rest apart.
    w_h, w_l, x_h, x_l = (p.register(name, d) for name in ("wh", "wl", "xh", "xl"))
    for j in range(d):
        latest = p.match((code[f"w{j + 1}"], of), latest=True)
        p.read(w_h[j], h, at=latest)
        p.read(w_l[j], low, at=latest)
    for j in range(d):
        mine_of = p.match((row, in_row), (code[f"x{j + 1}"], of))
        p.read(x_h[j], xh, at=mine_of)
        p.read(x_l[j], xl, at=mine_of)
    r_h, r_l = p.register("r whole"), p.register("r rest")
    target = p.match((row, in_row), (code["y"], of))
    p.read(r_h, -100.0 * target_h, at=target)
    p.read(r_l, -1e-4 * target_l, at=target)
    for j in range(d):
        p.mul(r_h, w_h[j], x_h[j])
        p.mul(r_l, 1e-6 * w_h[j], x_l[j])
        p.mul(r_l, 1e-6 * w_l[j], x_h[j] + 1e-6 * x_l[j])
    r = r_h + r_l

    # The pieces stand before their marker; the loss's derivative is gated by a softmax over the markers.
    slope, bias, times, plus = (p.register(name) for name in PIECE)
    for places, part in zip((13, 9, 5, 1), (slope, bias, times, plus), strict=True):
        p.read(part, value, at=Back(places))
    steep, shift = p.register("steep slope"), p.register("steep bias")
    p.gate(steep, sharp, slope)
    p.gate(shift, sharp, bias)
    f, f_times, f_plus, g = p.register("f"), p.register("f times"), p.register("f plus"), p.register("g", d)
    loss = p.table(1e-4 * r, steep, shift, among=is_loss)
    p.read(f_times, times, at=loss)
    p.read(f_plus, plus, at=loss)
    p.mul(f, f_times, r, 1e-4)
    p.add(f, f_plus)
    p.mul(g, f, H * x_h + L * x_l)

    # While wj is written: u = w − rate·(mean g + ridge·w) + momentum·(w − before), whole hundredths of w apart.
    rate, ridge, momentum = (p.register(name) for name in ("rate", "ridge", "momentum"))
    for word, parameter in (("rate", rate), ("ridge", ridge), ("momentum", momentum)):
        p.read(parameter, value, at=p.match((code[word], of), latest=True))
    own_h, own_l, last_h, last_l = (p.register(name) for name in ("own h", "own l", "last h", "last l"))
    own = p.match((my_name, of), latest=True)
    p.read(own_h, h, at=own)
    p.read(own_l, low, at=own)
    p.read(last_h, own_h, at=Back(1))
    p.read(last_l, own_l, at=Back(1))
    was_h, was_l = p.register("was h"), p.register("was l")
    before = p.match((my_name, of), latest=True)
    p.read(was_h, last_h, at=before)
    p.read(was_l, last_l, at=before)
    own_rate, shrink, rest, mean = (
        p.register("own rate", d),
        p.register("shrink"),
        p.register("rest"),
        p.register("mean", d),
    )
    p.gate(own_rate, mine, rate)
    p.mul(shrink, rate, ridge)
    p.add(rest, 1e-6 * own_l)
    p.mul(rest, shrink, own_h + 1e-6 * own_l, -1.0)
    p.mul(rest, momentum, own_h - was_h + 1e-6 * (own_l - was_l))
    p.read(mean, g, at=p.match((in_step, in_step), ((1.0,), p.flag(is_scratch)), equal=True))
    for j in range(d):
        p.mul(rest, own_rate[j], mean[j], -100.0)

    # The proximal map at u, less what is written already; the next word has the nearest number.
    prox_times, prox_plus = p.register("prox times"), p.register("prox plus")
    prox = p.table(H * (own_h + rest), steep, shift, among=is_prox)
    p.read(prox_times, times, at=prox)
    p.read(prox_plus, plus, at=prox)
    z_h, z_l = p.register("z whole"), p.register("z rest")
    p.mul(z_h, prox_times, own_h)
    p.add(z_h, -head - written)
    p.mul(z_l, prox_times, rest)
    writes = mine.map(torch.ones(1, d, dtype=torch.float64, device="cpu"), (1, 1), "mine")
    p.gate(z_l, writes, 100.0 * prox_plus)
    p.add(z_l, -1e-3 * group)
    p.gate(z_h, asked, H * r_h)
    p.gate(z_l, asked, H * r_l)
    z, out, size, groups = z_h + z_l, p.register("out"), p.register("out size"), p.register("out group")
    p.gate(out, is_weight + begins, z)
    p.gate(groups, first, z, 1e3)
    p.gate(groups, middle, z, 1e6)
    p.abs(size, is_weight + begins, z)

    # What comes next: a row's @, a weight, a step, the end.
    more, ends, rows_left = p.register("more"), p.register("ends"), p.register("rows left")
    p.read(more, is_weight, at=p.match((next_of, name)))
    p.read(ends, is_until, at=p.flagged(is_until, (in_step, step)))
    p.read(rows_left, is_row, at=p.flagged(is_row, (next_row, row)))
    p.decode(each("head", float), out, when=is_weight + begins)
    p.decode({"overflow": OVERFLOW}, size, when=is_weight + begins)
    p.decode(each("group", float), groups, when=first + middle)
    p.say(each("scratch", row_code), when=rows_left, code=next_row)
    p.say({"w1": ()}, when=is_scratch - rows_left)
    p.say({f"w{j}": code[f"w{j}"] for j in range(2, d + 1)}, when=last + more - 1.0, code=next_of)
    p.say(each("step", step_code), when=last - more - ends, code=in_step)
    p.say({"</s>": ()}, when=last - more + ends - 1.0 + 2.0 * (is_overflow + answered))
    return p


def bits(number: int, count: int) -> list[float]:
    """A number as ±1, lowest bit first."""
    return [1.0 if number >> place & 1 else -1.0 for place in range(count)]
