"""Training: one loop, one configuration, one run folder."""

from emulon.training.configuration import TrainConfig
from emulon.training.evaluation import Evaluation
from emulon.training.loop import Trained, resume, train
from emulon.training.presets import PRESETS
from emulon.training.refusals import BadConfig, DiskFull, NoRun, OutOfMemory, TrainingDiverged
from emulon.training.run_folder import RunFolder, load_learner, save_learner
from emulon.training.step import TrainStep
from emulon.training.together import Together

__all__ = [
    "PRESETS",
    "BadConfig",
    "DiskFull",
    "Evaluation",
    "NoRun",
    "OutOfMemory",
    "RunFolder",
    "Together",
    "TrainConfig",
    "TrainStep",
    "Trained",
    "TrainingDiverged",
    "load_learner",
    "resume",
    "save_learner",
    "train",
]
