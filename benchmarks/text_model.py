"""The text model, measured: every method and random prompts against the exact iterates, and the same text in engines.

    python -m benchmarks.text_model FOLDER methods [--steps 50] [--seeds 10] [--attention sdpa]
    python -m benchmarks.text_model FOLDER random [--count 500] [--attention eager]
    python -m benchmarks.text_model FOLDER engines [--only WORD …]

FOLDER is one that `emulon.language.write` has written. Results go to results/llama/, a row a method or an engine: the
worst |w_t − exact iterate|, how many runs are within their certificate, words a second of one core. A text that is no
transcript stops a method; an engine that writes one is a row that says so.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from emulon.canary.engines import ENGINES, Engine
from emulon.certify.transcript_checker import PRECISION, Refused, audit, read
from emulon.core.files import make_folder, provenance, read_json, write_json
from emulon.expressions.evaluation import ball_arithmetic
from emulon.language import load, prompt, text_of
from emulon.language.certificate import bounds
from emulon.language.methods import as_method, known_methods
from emulon.language.vocabulary import SMALL, UNITS, Vocabulary

RESULTS = Path(__file__).parents[1] / "results" / "llama"
BATCH = 20
# Prompts that engines are given, three steps each: a smooth loss, a kink, a margin, momentum.
ASKED = ("ridge", "lasso", "huber_regression", "logistic_regression", "heavy_ball")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("what", choices=("methods", "random", "engines"))
    for name, default in (("steps", 50), ("seeds", 10), ("count", 500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    make_folder(RESULTS)
    if asked.what == "engines":
        return _engines(asked.folder, asked.only)
    model = load(asked.folder, asked.attention)
    size = {"steps": asked.steps, "seeds": asked.seeds} if asked.what == "methods" else {"count": asked.count}
    table = RESULTS / f"{asked.what}-{asked.attention}{f'-{asked.steps}' if asked.what == 'methods' else ''}.json"
    rows: list[dict[str, Any]] = []
    for name, texts in _questions(asked):
        begin, written = time.process_time(), []
        for at in range(0, len(texts), BATCH):
            written += model.complete(texts[at : at + BATCH], "drafted")
        speed = sum(len(after.split()) for after in written) / (time.process_time() - begin)
        rows.append({"method": name, **_judged(texts, written), "words_per_second": round(speed)})
        print(rows[-1], flush=True)
        write_json(table, {"sha256": model.sha256, **size, **provenance(), "rows": rows})


def _questions(asked: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    if asked.what == "random":
        yield "random", list(_random(asked.count))
    for name in known_methods() if asked.what == "methods" else ():
        yield name, [_text(name, asked.steps, 20, 4, np.random.default_rng(seed)) for seed in range(asked.seeds)]


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


def _judged(texts: list[str], written: list[str]) -> dict[str, Any]:
    """Every run against balls around the exact iterates, which are next to nothing: its audit, and its certificate."""
    errors, jumps, certificates, within, largest = [], [], [], [], 0.0
    for text, after in zip(texts, written, strict=True):
        found = read(text + after)
        with ball_arithmetic(PRECISION):
            checked = audit(found)
        known = bounds(found.prompt)[: len(found.written)]
        errors.append(checked.bound)
        certificates.append(max(known, default=0.0))
        within.append(all(a <= b for a, b in zip(checked.bounds, known, strict=True)))
        jumps.append(checked.near_jumps)
        largest = max(largest, max(abs(w) for row in found.written for w in row) / UNITS)
    return {
        "runs": len(texts),
        "worst": max(errors),
        "median": float(np.median(errors)),
        "above_2e-7": sum(error > 2e-7 for error in errors),
        "largest_weight": largest,
        "certificate": [float(np.median(certificates)), max(certificates)],
        "within_certificate": sum(within),
        "near_jumps": sum(jumps),
    }


def _engines(folder: Path, words: list[str]) -> None:
    table = RESULTS / "engines.json"
    kept = {one["engine"]: one for one in (read_json(table) if table.exists() else [])}
    for name, engine in ENGINES.items():
        if engine.writes and engine.installed and any(word in name for word in words):
            kept[name] = {"engine": name, **_in_engine(engine, folder), **provenance()}
            print({key: kept[name][key] for key in list(kept[name])[:6]}, flush=True)
            write_json(table, [kept[each] for each in ENGINES if each in kept])


def _in_engine(engine: Engine, folder: Path) -> dict[str, Any]:
    """Greedy decoding of a few prompts, from the engine's logits alone."""
    words, texts = Vocabulary(SMALL), [_text(name, 3, 5, 2, np.random.default_rng(1)) for name in ASKED]
    worst, inside, begin, count = 0.0, True, time.process_time(), 0
    try:
        run = engine.open(folder)
        for text in texts:
            tokens = words.encode(text)
            asked = len(tokens)
            while tokens[-1] != words.numbers["</s>"] and len(tokens) < asked + 60:
                tokens.append(int(run([tokens])[0].argmax()))
            found = read(text + words.decode(tokens[asked:]))
            with ball_arithmetic(PRECISION):
                checked = audit(found)
            worst, count = max(worst, checked.bound), count + len(tokens) - asked
            inside &= all(a <= b for a, b in zip(checked.bounds, bounds(found.prompt), strict=True))
    except Refused as error:
        return {"failed": f"no transcript: {error}"}
    except Exception as error:  # whatever an engine that cannot run the folder ends in
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    seconds = time.process_time() - begin
    return {"worst": worst, "within_certificate": inside, "words": count, "seconds": round(seconds, 1)}


if __name__ == "__main__":
    main()
