"""The weights that a transcript should have, in rationals or 80 digits, and alterations of transcripts.

The rules are written anew, over numbers of Python and mpmath; nothing of the checker takes part. Words are found by
`float_reading.statements`, and every number in a text is a multiple of 1e-8.
"""

import random
import re
import sys
from fractions import Fraction
from pathlib import Path

import mpmath

sys.path.insert(0, str(Path(__file__).parents[1] / "language"))
from float_reading import statements

NUMBER = re.compile(r"[+-]\S+ [+-]\S+ [+-]\S+")


def exact(value):
    return Fraction(round(float(value) * 10**8), 10**8)


def gated(pieces, t):
    """The value of gated affine pieces (sharpness, slope, bias, times, plus) at t."""
    sharpness = pieces[0][0]
    scores = [slope * t + bias for _, slope, bias, _, _ in pieces]
    values = [times * t + plus for _, _, _, times, plus in pieces]
    if sharpness == 24 or len(pieces) == 1:
        best = [value for score, value in zip(scores, values, strict=True) if score == max(scores)]
        return sum(best) / len(best)
    weights = [mpmath.exp(2**sharpness * (score - max(scores))) for score in scores]
    return sum(p * v for p, v in zip(weights, values, strict=True)) / sum(weights)


def deviation(text):
    """The largest distance of a written weight from the exact one; to 80 digits where a gate is soft."""
    values, pieces, rows, targets, blocks, margin = statements(text)
    soft = any(len(gate) > 1 and gate[0][0] < 24 for gate in pieces.values())
    with mpmath.workdps(80):
        number = (lambda v: mpmath.mpf(exact(v).numerator) / exact(v).denominator) if soft else exact
        parameters = {name: number(value) for name, value in values.items()}
        loss, prox = ([(s, *map(number, rest)) for s, *rest in pieces[name]] for name in ("loss", "prox"))
        x, y = [[number(v) for v in row] for row in rows], [number(v) for v in targets]
        if margin:
            x, y = [[sign * v for v in row] for row, sign in zip(x, y, strict=True)], [0 * sign for sign in y]
        first, *later = sorted(blocks)[1:]
        before, w = ([number(v) for v in blocks[step]] for step in (first - 1, first))
        worst = 0 * w[0]
        for step in later:
            scores = (sum(a * b for a, b in zip(row, w, strict=True)) for row in x)
            slopes = [gated(loss, score - target) for score, target in zip(scores, y, strict=True)]
            moved = []
            for j, (now, last) in enumerate(zip(w, before, strict=True)):
                gradient = sum(f * row[j] for f, row in zip(slopes, x, strict=True)) / len(x)
                gradient += parameters["ridge"] * now
                moved.append(gated(prox, now - parameters["rate"] * gradient + parameters["momentum"] * (now - last)))
            before, w = w, moved
            worst = max(worst, *(abs(v - number(said)) for v, said in zip(w, blocks[step], strict=True)))
        return Fraction(*mpmath.libmp.to_rational(worst._mpf_)) if soft else worst


def renumbered(lines):
    """Rows count from 1, steps from −1, each step names every row, and `until` is the last step."""
    rows = steps = 0
    for at, line in enumerate(lines):
        if line.startswith("#"):
            rows += 1
            lines[at] = re.sub(r"^#\d+", f"#{rows}", line)
    marks = " ".join(f"@{row + 1}" for row in range(rows))
    for at, line in enumerate(lines):
        if line.startswith("step:"):
            lines[at] = re.sub(r"^step:-?\d+(?: @\d+)*", f"step:{steps - 1}" + (f" {marks}" if steps > 1 else ""), line)
            steps += 1
    lines[0] = re.sub(r"^until:\d+", f"until:{steps - 2}", lines[0])
    return lines


def altered(text, vocabulary, draw: random.Random):
    """What was done to a text, and the text."""
    kind = draw.choice(["digit", "word", "sign", "insert", "delete", "swap", "piece", "row", "step"])
    lines, words = text.splitlines(), text.split()
    if kind == "digit":
        at = draw.choice([k for k, letter in enumerate(text) if letter.isdigit()])
        return kind, text[:at] + draw.choice("0123456789") + text[at + 1 :]
    if kind == "sign":
        at = draw.choice([k for k, letter in enumerate(text) if letter in "+-"])
        return kind, text[:at] + {"+": "-", "-": "+"}[text[at]] + text[at + 1 :]
    at = draw.randrange(len(words) - 1)
    if kind == "word":
        words[at] = draw.choice(vocabulary)
    elif kind == "insert":
        words.insert(at, draw.choice([words[at], draw.choice(vocabulary)]))
    elif kind == "delete":
        del words[at]
    elif kind == "swap":
        words[at], words[at + 1] = words[at + 1], words[at]
    else:
        beginning = {"piece": "slope", "row": "#", "step": "step:"}[kind]
        chosen = draw.choice([k for k, line in enumerate(lines) if line.startswith(beginning)])
        other = draw.choice([k for k, line in enumerate(lines) if line.startswith(beginning)])
        what = draw.choice(["delete", "repeat", "swap", "move"])
        if what == "delete":
            del lines[chosen]
        elif what == "repeat":
            lines.insert(other, lines[chosen])
        elif what == "swap":
            lines[chosen], lines[other] = lines[other], lines[chosen]
        else:
            lines.insert(other, lines.pop(chosen))
        return f"{what} a {kind}", "\n".join(renumbered(lines) if draw.random() < 0.7 else lines)
    return kind, " ".join(words)
