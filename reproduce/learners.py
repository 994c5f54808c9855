"""Trained learners for claims: those kept among the results, and those trained during the run."""

from __future__ import annotations

import torch

from emulon.identification.loading import Subject, load_subject
from emulon.training import RunFolder, TrainConfig, Trained, fit
from reproduce.claim import CannotTest, Setting

# Kept in results/learners/, with the options that trained them.
KEPT = {
    "small_learner": "standard --preset small",
    "noiseless_learner": "standard --task linear --features 3 --points 9 --noise 0 --width 64 --layers 4 --heads 4 "
    "--init 0.08 --steps 10000 --lr 0.002 --warmup 200 --schedule cosine --start-features 1 --feature-every 150",
}


def command(name: str) -> str:
    return f"emulon train {KEPT[name]} --out results/learners/{name}"


def committed(setting: Setting, name: str) -> Subject:
    """A learner whose run folder is kept among the results, and the task it was trained on."""
    path = setting.results / "learners" / name
    if not RunFolder(path).config_file.exists():
        raise CannotTest(
            f"needs the trained learner {path}, which is kept in the repository or made by {command(name)}"
        )
    return load_subject(str(path))


def trained(config: TrainConfig, setting: Setting, done: float = 0.0, share: float = 1.0) -> Trained:
    """A new learner, on a GPU where there is one; it is `share` of the run's work, after `done`.

    Claims that ask for the same configuration in one process get the same learner.
    """
    if config not in _FITTED:
        told = setting.report_progress
        _FITTED[config] = fit(config, report_progress=lambda what, part: told(what, done + share * part))
    return _FITTED[config]


_FITTED: dict[TrainConfig, Trained] = {}


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
