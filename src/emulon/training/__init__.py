"""Training: one loop, one configuration, one run folder."""

from emulon.core.errors import BadConfig, NoRun, OutOfMemory, TrainingDiverged
from emulon.training.configuration import PRESETS, RECIPES, TrainConfig
from emulon.training.fit import Evaluation, Trained, device_of, fit, resume, train
from emulon.training.run_folder import RunFolder, load_learner, save_learner
from emulon.training.step import TrainStep

__all__ = [
    "PRESETS",
    "RECIPES",
    "BadConfig",
    "Evaluation",
    "NoRun",
    "OutOfMemory",
    "RunFolder",
    "TrainConfig",
    "TrainStep",
    "Trained",
    "TrainingDiverged",
    "device_of",
    "fit",
    "load_learner",
    "resume",
    "save_learner",
    "train",
]
