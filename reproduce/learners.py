"""Trained learners for claims: those kept among the results, and those trained during the run."""

from __future__ import annotations

import hashlib
import json
import os

import torch

from emulon.core.files import locked, make_folder, write_json
from emulon.identification.loading import Subject, load_subject
from emulon.models import Learner
from emulon.training import RunFolder, TrainConfig, Trained, fit, load_learner, save_learner
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


def trained_once(config: TrainConfig, setting: Setting) -> tuple[Learner, list[float], float]:
    """Train a learner and keep it in results/trained/, where other parts, claims and processes find it.

    Returns:
        The learner on the best device, its held-out error curve, and the seconds its training took.
    """
    name = hashlib.sha256(config.to_json().encode()).hexdigest()[:16]
    folder = make_folder(setting.results / "trained") / name
    with locked(folder.with_suffix(".lock")):
        if not (folder / "trained.json").exists():
            told = setting.report_progress
            fitted = fit(config, report_progress=lambda what, part: told(what, 0.9 * part))
            beside = folder.with_suffix(f".{os.getpid()}")
            save_learner(fitted.learner, config, fitted.steps, beside)
            write_json(beside / "trained.json", {"curve": fitted.curve, "seconds": fitted.seconds})
            beside.replace(folder)
    learner, _ = load_learner(folder)
    stored = json.loads((folder / "trained.json").read_text())
    return learner.to(best_device()), stored["curve"], stored["seconds"]


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
