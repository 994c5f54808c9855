"""A prompt's algorithm in plain float64, read from the words by another way than the checker's, and a writer of it."""

import numpy as np

from emulon.language.vocabulary import encode


def number(words):
    head, middle, low = words
    return float(head) + float(middle) / 1e5 + float(low) / 1e8


def statements(text):
    """{word: [numbers]} for the parameters, the pieces, the rows and the blocks, by splitting at known words."""
    words = text.split()
    values = {}
    for at, word in enumerate(words):
        if word in ("rate", "ridge", "momentum"):
            values[word] = number(words[at + 1 : at + 4])
    pieces = {"loss": [], "prox": []}
    for at, word in enumerate(words):
        name, _, sharpness = word.partition("^")
        if name in pieces:
            numbers = [number(words[at - 4 * k + 1 : at - 4 * k + 4]) for k in (4, 3, 2, 1)]
            pieces[name].append((int(sharpness), *numbers))
    starts = [at for at, word in enumerate(words) if word[0] == "#"]
    features = sum(word[0] == "x" for word in words) // len(starts)
    rows = [[number(words[at + 5 + 4 * j + 1 : at + 5 + 4 * j + 4]) for j in range(features)] for at in starts]
    targets = [number(words[at + 2 : at + 5]) for at in starts]
    blocks = {}
    for at, word in enumerate(words):
        if word.startswith("step:"):
            here = next(k for k in range(at, len(words)) if words[k] == "w1")
            blocks[int(word[5:])] = [number(words[here + 4 * j + 1 : here + 4 * j + 4]) for j in range(features)]
    return values, pieces, np.array(rows), np.array(targets), blocks, "margin" in words


def gate(pieces, t):
    t = np.asarray(t)
    sharpness, slope, bias, times, plus = np.array(pieces).T
    scores = np.multiply.outer(t, slope) + bias
    values = np.multiply.outer(t, times) + plus
    if sharpness[0] == 24:
        chosen = (scores >= scores.max(axis=-1, keepdims=True) - 1e-12).astype(float)
    else:
        chosen = np.exp(2.0 ** sharpness[0] * (scores - scores.max(axis=-1, keepdims=True)))
    return (chosen * values).sum(axis=-1) / chosen.sum(axis=-1)


def iterates(text, steps):
    """The weights after each of so many steps from the prompt's start."""
    values, pieces, x, y, blocks, margin = statements(text)
    if margin:
        x, y = y[:, None] * x, 0 * y
    first = sorted(blocks)[1]
    before, w, found = np.array(blocks[first - 1]), np.array(blocks[first]), []
    for _ in range(steps):
        gradient = x.T @ gate(pieces["loss"], x @ w - y) / len(x) + values["ridge"] * w
        w, before = gate(pieces["prox"], w - values["rate"] * gradient + values["momentum"] * (w - before)), w
        found.append(w)
    return np.array(found)


def written(prompt_text, noise=4e-8, seed=0):
    """A transcript of it, each weight off by up to `noise`, as a model of float32 writes it."""
    words = prompt_text.split()
    until = int(words[0].removeprefix("until:"))
    rows = " ".join(f"@{i + 1}" for i in range(sum(word[0] == "#" for word in words)))
    draw, lines = np.random.default_rng(seed), [prompt_text]
    for step, weights in enumerate(iterates(prompt_text, until), start=1):
        off = weights + draw.uniform(-noise, noise, weights.shape)
        lines.append(f"step:{step} {rows} " + " ".join(f"w{j + 1} {' '.join(encode(v))}" for j, v in enumerate(off)))
    return "\n".join(lines) + "\n"
