"""The interpreter of the text language, as a program for every word of a text.

A prompt states the step and the data; the program writes `step:1 @1 … @n w1 … wd step:2 …` behind it and ends with
`</s>`. Numbers are kept in two parts, hundredths (h) and hundred-millionths (l), both whole, so that nothing is lost
in differences. What a token does depends on its word: at `@i` the part of row i in the gradient is computed, at `wj`
and the first two words of its number what is written next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch

from emulon.language.vocabulary import PIECE, Capacity, Kind, Vocabulary
from emulon.machine.instruction import Register
from emulon.machine.token_program import Back, Table, TokenProgram

# Tokens of the longest text: so many rows and features, and all steps.
CONTEXT = {"small": 1 << 15, "large": 1 << 18}
H, L = 1e-2, 1e-8  # the units of a number's parts
OVERFLOW = 2000.0  # hundredths; the number after the last
RAISED = 1.5 * 2.0**15  # float32's neighbours are 2^-8 away from it
Value = TypeVar("Value", float, list[float])


def interpreter(capacity: Capacity) -> TokenProgram:
    """The program that runs every method of the language, for so many features, rows and steps."""
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
    place = p.given("place", each("scratch", lambda i: bits(i - 1, capacity.samples.bit_length())))
    one_over_h = p.given("1/i h", each("row", lambda i: coarse(1 / i)))
    one_over_l = p.given("1/i l", each("row", lambda i: 1 / i - coarse(1 / i)))
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
    latest_row = p.flagged(is_row + is_query, latest=True)
    inverse_h, inverse_l = p.register("1/n h"), p.register("1/n l")
    p.read(in_row, row, at=latest_row)
    p.read(inverse_h, one_over_h, at=latest_row)
    p.read(inverse_l, one_over_l, at=latest_row)
    p.read(in_step, step, at=p.flagged(is_step, latest=True))
    margin = p.register("margin")
    p.read(margin, is_margin, at=p.flagged(is_margin + is_query, latest=True))

    # In a row `?i` the y is asked for: its words read that row as @i reads row i.
    in_query, at_y, after_y = p.register("in query"), p.register("at y"), p.register("after y")
    asked, begins, answered = p.register("asked"), p.register("answer begins"), p.register("answered")
    p.read(in_query, is_query, at=latest_row)
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
    w_h, w_l, x_h, x_l = (p.register(name, d) for name in ("row wh", "row wl", "row xh", "row xl"))
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
    # f in two parts: added to a number as large as RAISED it is rounded to a multiple of 2^-8, so that the products
    # with the hundredths of x, and their sums, are exact; what is left is small. g is in hundredths.
    f, f_times, f_plus = p.register("f"), p.register("f times"), p.register("f plus")
    raised, f_h = p.given("f raised", each("scratch", lambda _: RAISED)), p.register("f coarse")
    loss = Table(1e-4 * r, steep, shift, among=is_loss)
    p.read(f_times, times, at=loss)
    p.read(f_plus, plus, at=loss)
    for target_of in (f, raised):
        p.mul(target_of, f_times, r, 1e-4)
        p.add(target_of, f_plus)
    p.read(f_h, raised - RAISED * is_scratch, at=Back(0))
    g_h, g_l = p.register("g coarse", d), p.register("g rest", d)
    p.mul(g_h, f_h, x_h)
    p.mul(g_l, f - f_h, x_h)
    p.mul(g_l, f, x_l, 1e-6)

    # While wj is written: u = w − rate·(mean g + ridge·w) + momentum·(w − before), in units of 1e-4: what is whole in
    # them, momentum's hundredths among it, apart from the rest.
    parts = ("rate", "ridge", "momentum")
    rate_h, ridge_h, momentum_h = (p.register(f"{word} h") for word in parts)
    rate_l, ridge_l, momentum_l = (p.register(f"{word} l") for word in parts)
    for word, high, rest_of in zip(parts, (rate_h, ridge_h, momentum_h), (rate_l, ridge_l, momentum_l), strict=True):
        latest = p.match((code[word], of), latest=True)
        p.read(high, h, at=latest)
        p.read(rest_of, low, at=latest)
    own_h, own_l, last_h, last_l = (p.register(name) for name in ("w h", "w l", "last w h", "last w l"))
    own = p.match((my_name, of), latest=True)
    p.read(own_h, h, at=own)
    p.read(own_l, low, at=own)
    p.read(last_h, own_h, at=Back(1))
    p.read(last_l, own_l, at=Back(1))
    was_h, was_l = p.register("was h"), p.register("was l")
    before = p.match((my_name, of), latest=True)
    p.read(was_h, last_h, at=before)
    p.read(was_l, last_l, at=before)
    step_h, step_l, shrink, whole, rest = (
        p.register(name) for name in ("rate/n h", "rate/n l", "shrink", "whole", "rest")
    )
    own_step_h, own_step_l, sum_h, sum_l = (
        p.register(name, d) for name in ("own rate/n h", "own rate/n l", "sum h", "sum l")
    )
    p.mul(step_h, rate_h, inverse_h)
    p.mul(step_l, rate_h, inverse_l)
    p.mul(step_l, rate_l, inverse_h + inverse_l, 1e-6)
    p.gate(own_step_h, mine, step_h)
    p.gate(own_step_l, mine, step_l)
    p.mul(shrink, H * rate_h + L * rate_l, H * ridge_h + L * ridge_l)
    p.add(whole, 100.0 * own_h)
    p.mul(whole, momentum_h, own_h - was_h)
    p.add(rest, 1e-4 * own_l)
    p.mul(rest, shrink, 100.0 * own_h + 1e-4 * own_l, -1.0)
    p.mul(rest, momentum_h, own_l - was_l, 1e-6)
    p.mul(rest, momentum_l, own_h - was_h + 1e-6 * (own_l - was_l), 1e-6)
    # Rows 1 to n in blocks as large as the powers of two in n: a mean over one is exact. Block b has the rows i whose
    # i − 1 has the bits of n above b, and no bit b; there is none where n has no bit b (zeros, twice, match no code).
    for b in range(place.size):
        above = [(in_row[k], place[k]) for k in range(b + 1, place.size)]
        without = (-0.5 * in_row[b] - 0.5 * p.one, place[b])
        block = p.match((in_step, in_step), without, without, *above, equal=True)
        p.read(sum_h, g_h, at=block, times=2.0**b)
        p.read(sum_l, g_l, at=block, times=2.0**b)
    for j in range(d):
        for own_step in (own_step_h, own_step_l):
            p.mul(rest, own_step[j], sum_h[j] + sum_l[j], -1.0)

    # The proximal map at u, less what is written already; the next word has the nearest number.
    prox_times, prox_plus = p.register("prox times"), p.register("prox plus")
    prox = Table(1e-4 * (whole + rest), steep, shift, among=is_prox)
    p.read(prox_times, times, at=prox)
    p.read(prox_plus, plus, at=prox)
    z_h, z_l = p.register("z whole"), p.register("z rest")
    p.mul(z_h, prox_times, whole)
    p.add(z_h, -100.0 * (head + written))
    p.mul(z_l, prox_times, rest)
    writes = mine.map(torch.ones(1, d, dtype=torch.float64, device="cpu"), (1, 1), "mine")
    p.gate(z_l, writes, 1e4 * prox_plus)
    p.add(z_l, -0.1 * group)
    p.gate(z_h, asked, r_h)
    p.gate(z_l, asked, r_l)
    z, out, size, groups = z_h + z_l, p.register("out"), p.register("out size"), p.register("out group")
    p.gate(out, is_weight + begins, z, 1e-2)
    p.gate(groups, first, z, 10.0)
    p.gate(groups, middle, z, 1e4)
    p.abs(size, is_weight + begins, 1e-2 * z)

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


def coarse(value: float) -> float:
    """The nearest number of 12 bits: its product with another such one is exact in float32."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 2**12), exponent - 12)
