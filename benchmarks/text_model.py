"""The text model against float64: worst |w_t − exact iterate| of every method over data seeds, and over random prompts.

    python -m benchmarks.text_model FOLDER [--steps 50] [--seeds 10] [--random 500] [--attention sdpa]

FOLDER is one that `emulon.language.write` has written. A run whose text is no transcript stops the script.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator

import numpy as np
import torch

from emulon.certify.transcript_checker import PRECISION, exact_iterates, read
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language import TextModel, load, prompt, text_of
from emulon.language.methods import as_method, known_methods
from emulon.language.numbers import UNITS

BATCH = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    for name, default in (("steps", 50), ("seeds", 10), ("random", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = load(asked.folder, asked.attention)
    print(f"sha256 {model.sha256}, {asked.attention}", flush=True)
    if asked.seeds:
        for name in known_methods():
            texts = [_text(name, asked.steps, 20, 4, np.random.default_rng(seed)) for seed in range(asked.seeds)]
            print(
                json.dumps({"method": name, "steps": asked.steps, "seeds": asked.seeds, **_measured(model, texts)}),
                flush=True,
            )
    if asked.random:
        print(json.dumps({"random": asked.random, **_measured(model, list(_random(asked.random)))}), flush=True)


def _text(name: str, steps: int, n: int, d: int, draw: np.random.Generator, start: bool = False) -> str:
    """Rows up to 2, weights up to 1; classes for margin losses."""
    x = draw.normal(size=(n, d)).clip(-2, 2)
    y = x @ draw.uniform(-1, 1, size=d) + 0.1 * draw.normal(size=n)
    method = known_methods()[name](steps=steps)
    if as_method(method).descent.loss.link.name == "margin":
        y = np.where(y > 0, 1.0, -1.0)
    return text_of(prompt(method, x, y, start=draw.uniform(-1, 1, size=d) if start else None))


def _random(count: int) -> Iterator[str]:
    draw, names = np.random.default_rng(0), list(known_methods())
    for _ in range(count):
        name, n, d = str(draw.choice(names)), int(draw.integers(1, 61)), int(draw.integers(1, 9))
        yield _text(name, int(draw.integers(1, 7)), n, d, draw, start=bool(draw.integers(2)))


def _measured(model: TextModel, texts: list[str]) -> dict[str, float]:
    """The worst error, the worst in parts of the largest weight or move of its run, and words a second of one core."""
    worst, relative, words, begin = 0.0, 0.0, 0, time.process_time()
    written: list[str] = []
    for at in range(0, len(texts), BATCH):
        written += model.complete(texts[at : at + BATCH])
    seconds = time.process_time() - begin
    for text, after in zip(texts, written, strict=True):
        found = read(text + after)
        with ball_arithmetic(PRECISION):
            balls = exact_iterates(found.prompt, len(found.written))
            exact = np.array([[float(ball.mid()) for ball in row] for row in balls]) / UNITS
        path = np.vstack([np.array([found.prompt.start]) / UNITS, exact])
        error = float(np.abs(np.array(found.written) / UNITS - exact).max())
        size = max(1.0, float(np.abs(path).max()), float(np.abs(np.diff(path, axis=0)).max()))
        worst, relative, words = max(worst, error), max(relative, error / size), words + len(after.split())
    return {"worst": worst, "relative": relative, "words_per_second": round(words / seconds)}


if __name__ == "__main__":
    main()
