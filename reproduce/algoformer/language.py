"""Learners of text for Tables 1 and 2: where their corpora are, and how they are trained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulon.training import TrainConfig, Trained
from reproduce.claim import CannotTest, Numbers, Setting
from reproduce.learners import trained
from reproduce.text.corpora import BadText
from reproduce.text.texts import data_folder, named_corpus

MODELS = ("standard", "looped", "algoformer")
# Gao et al. 2024, section 5.5: 12 layers, or one each and (T, ΔT) = (10, 10).
PAPER: dict[str, dict[str, Any]] = {"standard": {"layers": 12}}
PAPER |= {model: {"layers": 1, "loops": 10, "window": 10} for model in MODELS[1:]}
FEW: dict[str, dict[str, Any]] = {"standard": {"layers": 3}}
FEW |= {model: {"layers": 1, "loops": 3, "window": 3} for model in MODELS[1:]}


def corpus_file(name: str, vocabulary: int) -> str:
    """A corpus in the folder that EMULON_CORPORA names, or ./corpora; made there from a local folder of the texts."""
    path = Path(os.environ.get("EMULON_CORPORA", "corpora")) / f"{name}-{vocabulary}.safetensors"
    if not path.is_file():
        if data_folder(name) is None:
            raise CannotTest(
                f"needs the texts of {name}: python -m reproduce.text corpus {name} --vocabulary {vocabulary}"
                f" --out {path} downloads them, or reads them from a --folder"
            )
        try:
            named_corpus(name, vocabulary).save(path)
        except BadText as error:
            raise CannotTest(str(error)) from None
    return str(path)


def configured(sizes: Mapping[str, Any], task: str, model: str, seed: int) -> TrainConfig:
    """`training` is every model's, `models` each one's own; epochs are as many batches as there are training texts."""
    options = sizes["training"] | sizes["models"][model] | {"model": model, "task": task, "seed": seed}
    epochs = options.pop("epochs")
    config = TrainConfig.following(**options)
    texts = sum(bucket.size for bucket in config.make_task().buckets)  # type: ignore[attr-defined]  # a task over text
    steps = max(1, round(epochs * texts / config.schedule.batch))
    evaluated = max(1, steps // 10)
    return TrainConfig.following(**options, steps=steps, evaluate_every=evaluated, log_every=evaluated)


def learned(config: TrainConfig, setting: Setting, share: float = 1.0) -> tuple[Trained, Numbers]:
    """A trained learner, and its steps, seconds, parameters and learning curve; training is `share` of the work."""
    fitted = trained(config, setting, share=share)
    history = {
        "steps": [point["step"] for point in fitted.history],
        "entropy": [point["curve"][0] for point in fitted.history],
    }
    parameters = sum(parameter.numel() for parameter in fitted.learner.parameters())
    took = {"steps": fitted.steps, "seconds": fitted.seconds, "parameters": parameters, "learning": history}
    return fitted, took


def not_behind(ours: tuple[float, float], theirs: tuple[float, float]) -> bool:
    """By the intervals (low, high) of two scores, ours may be as high as theirs."""
    return ours[1] >= theirs[0]
