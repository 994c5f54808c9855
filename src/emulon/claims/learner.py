"""Trained learners for claims: those kept among the results, and small ones trained on the spot."""

from __future__ import annotations

from functools import cache

import torch

from emulon.claims.claim import CannotTest, Setting
from emulon.loading import Subject, load_subject
from emulon.models import Learner
from emulon.progress import Progress
from emulon.training import RunFolder, TrainConfig, TrainStep

# How often progress is told.
EVERY = 20


def committed(setting: Setting, name: str) -> Subject:
    """A learner whose run folder is kept among the results, and the task it was trained on."""
    path = setting.results / name
    if not RunFolder(path).config_file.exists():
        raise CannotTest(f"needs the trained learner {path}, which is kept in the repository's results; run it there")
    return load_subject(str(path))


def trained(config: TrainConfig, setting: Setting, done: float = 0.0, share: float = 1.0) -> Learner:
    """A new learner, on a GPU where there is one; it is `share` of the run's work, after `done`.

    Claims that ask for the same configuration in one process get the same learner.
    """
    found = _kept(config.check())
    if not found.ready:
        found.train(lambda what, part: setting.progress(what, done + share * part))
    return found.learner


class _Kept:
    """A learner and whether it has had its steps."""

    def __init__(self, config: TrainConfig) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        task = config.make_task()
        self.config, self.ready = config, False
        self.learner = config.make_learner(task)
        self.step = TrainStep(self.learner, task, config, device)

    def train(self, progress: Progress) -> None:
        config = self.config
        what = f"training {config.model}, {config.layers} layers, {config.width} wide"
        for k in range(config.steps):
            self.step(k)
            if k % EVERY == 0:
                self.step.synchronise()
                progress(what, k / config.steps)
        self.step.synchronise()
        self.learner.eval()
        self.ready = True


_kept = cache(_Kept)
