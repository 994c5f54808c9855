"""What changes during training, as pure functions of the step."""

from __future__ import annotations

import math

from emulon.training.configuration import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """A linear warm-up, then constant, or half a cosine down to zero at the last step."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    done = (step - config.warmup) / max(config.steps - config.warmup, 1)
    return config.lr * (1 + math.cos(math.pi * min(done, 1.0))) / 2


def live_features(config: TrainConfig, step: int) -> int:
    """How many features are not zero at this step."""
    return _grown(config.start_features, config.feature_every, config.features, step)


def live_points(config: TrainConfig, step: int, points: int) -> int:
    """How many of the asked positions count in the loss at this step."""
    return _grown(config.start_points, config.point_every, points, step)


def _grown(start: int | None, every: int, full: int, step: int) -> int:
    return full if start is None else min(full, start + step // every)
