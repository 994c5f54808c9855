"""Planted models of words, measured: answers of five mechanisms, chains of thought, and methods that ask about them.

    python -m benchmarks.words answers [--prompts 200]     results/benchmark/tokens.json
    python -m benchmarks.words chains [--models 50]        results/benchmark/chains.json
    python -m benchmarks.words methods [--models 50]       results/benchmark/faithfulness.json

`answers`: what `pipeline("text-generation")` writes behind prompts of data in the domain, against the exact algorithm.
`chains`: every written number of every model is changed, once with all later words kept and once with all later words
written anew; what the model writes then is compared with what its truth says, word for word.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.faithfulness import faithfulness_table
from emulon import planted
from emulon.core.files import make_folder, provenance, write_json
from emulon.planted.chain import KINDS, draw_chain
from emulon.planted.chain_model import ChainModel
from emulon.planted.tokens import STEP

RESULTS = Path(__file__).parents[1] / "results" / "benchmark"
FIVE: dict[str, dict[str, Any]] = {
    "sgd": {"features": 3, "samples": 6},
    "ridge": {"features": 2, "samples": 3, "ridge": 2.0},
    "batch descent": {"features": 3, "samples": 6},
    "momentum": {"features": 3, "samples": 5},
    "clipped sgd": {"features": 3, "samples": 6},
}
CHANGE, PROMPTS, SEED = 0.5, 2, 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("answers", "chains", "methods"))
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--models", type=int, default=50)
    options = parser.parse_args()
    started, seeds = time.perf_counter(), f"{SEED} and following"
    if options.what == "answers":
        name, rows = "tokens", [answered(name, options.prompts) for name in FIVE]
    elif options.what == "chains":
        name, rows = "chains", [{"kind": kind, **checked_chains(kind, options.models)} for kind in KINDS]
    else:
        name, rows = "faithfulness", [asdict(row) for row in faithfulness_table(options.models, SEED)]
    seconds = round(time.perf_counter() - started)
    count = {"prompts": options.prompts} if options.what == "answers" else {"models": options.models}
    facts = {**provenance(), "seeds": seeds, "seconds": seconds, **count}
    write_json(make_folder(RESULTS) / f"{name}.json", {"provenance": facts, "rows": rows})
    for row in rows:
        print(row)


def answered(name: str, prompts: int) -> dict[str, Any]:
    """Answers of one mechanism through Hugging Face's pipeline, from a folder."""
    from transformers import pipeline

    model = planted.tokenized(name, **FIVE[name])
    xs, ys = model.draw(prompts, seed=SEED)
    texts = [model.words.text(*one) for one in zip(xs, ys, strict=True)]
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        answer = pipeline("text-generation", model=folder, dtype="float32", device="cpu")
        found = [float(one[0]["generated_text"]) for one in answer(texts, batch_size=50, return_full_text=False)]
    exact = model.exact(xs, ys)[:, -1]
    right = (torch.tensor(found, dtype=torch.float64) - exact).abs() <= STEP / 2 + 1e-12
    certain = model.certain(exact)
    return {
        "mechanism": model.name,
        "bound": model.certificate.bound,
        "proved": model.certificate.proved,
        "prompts": prompts,
        "right": int(right.sum()),
        "certain": int(certain.sum()),
        "wrong though certain": int((certain & ~right).sum()),
    }


def checked_chains(kind: str, models: int) -> dict[str, int]:
    """Changes of every written number against the truth, over models of one kind."""
    count: Counter[str] = Counter()
    for seed in range(SEED, SEED + models):
        model = ChainModel(draw_chain(kind, seed))
        held = check_chain(model, seed, count)
        count["models"] += 1
        count["models as the truth says"] += held
    return dict(count)


def check_chain(model: ChainModel, seed: int, count: Counter[str]) -> bool:
    """Whether every change of a written number has the effect that the truth says."""
    chain, asked = model.chain, list[tuple[str, str, bool | None]]()
    prompts = [chain.draw(PROMPTS * seed + number) for number in range(PROMPTS)]
    for prompt, said in zip(prompts, model.complete(prompts), strict=True):
        written = said.split()
        asked.append((prompt, written[-1], None))
        for use in chain.uses():
            marker = written.index(use["marker"])
            for place in range(marker + 1, marker + 1 + chain.features):
                value = chain.layout.numbers[written[place]]
                other = chain.layout.number(value + (CHANGE if value < 0 else -CHANGE))
                begun = [prompt, *written[:place], other]
                asked.append((" ".join([*begun, *written[place + 1 : -1]]), written[-1], use["kept"]))
                asked.append((" ".join(begun), written[-1], use["rewritten"]))
    held = True
    for (text, before, used), found in zip(asked, model.complete([one[0] for one in asked]), strict=True):
        wanted = chain.follow(text)
        count["texts"] += 1
        if found != wanted:
            sure = certain_to_differ(model, text, found.split(), wanted.split())
            count["as foretold but for a boundary within the bound"] += not sure
            count["wrong"] += sure
            held &= not sure
        moved = found.split()[-1:] != [before]
        if used is not None:
            count[f"{'used' if used else 'unused'} numbers changed"] += 1
            count[f"{'used' if used else 'unused'} numbers changed, answer moved"] += moved
            held &= used or not moved
    return held


def certain_to_differ(model: ChainModel, text: str, found: list[str], wanted: list[str]) -> bool:
    """Whether the first word that differs was proved to be another."""
    same = next((i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), None)
    if same is None or wanted[same] not in model.chain.layout.numbers:
        return True
    return model.certain(" ".join([text, *wanted[:same]]))


if __name__ == "__main__":
    main()
