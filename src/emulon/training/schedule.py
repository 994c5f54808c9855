"""What changes during training, as pure functions of the step."""

from __future__ import annotations

import math

from emulon.training.configuration import TrainConfig


def rate_factor(config: TrainConfig, step: int) -> float:
    """What multiplies every learning rate: a linear warm-up, then 1; or half a cosine down to zero at the last step; or
    1 for the share `hold` of the run and a straight line to zero."""
    warm = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant" or (config.schedule == "cosine" and step < config.warmup):
        return warm
    if config.schedule == "cosine":
        done = (step - config.warmup) / max(config.steps - config.warmup, 1)
        return (1 + math.cos(math.pi * min(done, 1.0))) / 2
    left = max(config.steps - step, 0) / max(config.steps, 1)
    return warm * min(1.0, left / (1 - config.hold))


def live_features(config: TrainConfig, step: int) -> int:
    """How many features are not zero at this step."""
    if config.start_features is not None and config.curriculum:
        grown = step / (config.curriculum * config.steps) * (config.features - config.start_features + 1)
        return min(config.features, config.start_features + int(grown))
    return _grown(config.start_features, config.feature_every, config.features, step)


def live_points(config: TrainConfig, step: int, points: int) -> int:
    """How many of the asked positions count in the loss at this step."""
    return _grown(config.start_points, config.point_every, points, step)


def _grown(start: int | None, every: int, full: int, step: int) -> int:
    return full if start is None else min(full, start + step // every)
