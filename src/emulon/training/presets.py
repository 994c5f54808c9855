"""Configurations with a name, for `emulon train MODEL --preset NAME`."""

from __future__ import annotations

from emulon.training.configuration import TrainConfig

PRESETS: dict[str, TrainConfig] = {
    # Minutes on one core: five features, and a learner that comes near the Bayes ridge predictor after 2·5 samples.
    # Wider learners pay more for a step than they gain; a higher rate is sometimes better and sometimes far worse.
    "small": TrainConfig(
        task="linear",
        features=5,
        points=11,
        noise=0.5,
        width=32,
        layers=4,
        heads=4,
        init=0.08,
        steps=8000,
        lr=3e-3,
        warmup=200,
        schedule="cosine",
        start_features=1,
        feature_every=150,
        evaluation_batch=2048,
        threads=1,
    ),
}
