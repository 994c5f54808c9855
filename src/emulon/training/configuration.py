"""The configuration of a run: one dataclass, which is also the command line and the config.json of the run folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import torch

from emulon.core.errors import BadConfig, EmulonError, unknown
from emulon.models import Learner
from emulon.tasks import TASKS, Task, TextTask, read_task, task_options

VERSION = 1


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, on what, and how. None leaves a choice to the task or the model."""

    model: str = "standard"
    """a learner's name"""
    task: str = "linear"
    """a task's name, and behind it options that have no field here, as mixture:noises=0.1/0.5"""
    features: int = 20
    """of x; texts have none, and take neither these nor a curriculum"""
    points: int = 41
    noise: float | None = None
    prior: float | None = None
    nonzero: int | None = None
    hidden: int | None = None
    depth: int | None = None
    lags: int | None = None
    network_seed: int | None = None

    width: int = 256
    layers: int | None = None
    heads: int = 8
    loops: int | None = None
    window: int | None = None
    inject: bool | None = None
    """the pre-transformer's output is added at every turn of AlgoFormer's loop; Gao et al. 2024, Eq. 2, does not"""
    init: float | None = None
    """standard deviation of the initial matrices; 0.02 as GPT-2's, 0.08 suits a width of 64, 0 is 1/√width"""
    bias: bool | None = None
    """biases in the blocks"""
    zero_output: bool | None = None
    """what a block adds to the residual stream starts at zero"""
    fused: bool = True
    """one fused attention kernel instead of the traced, readable one"""
    dropout: float | None = None
    """in training, the share of the embedding, and of what a block adds, that is left out"""

    steps: int = 10_000
    batch: int = 64
    """datasets a step in each process"""
    seed: int = 0
    recipe: str = "paper"
    """paper: Adam as the sources have it; fast: Muon and all that goes with it. Other flags change a recipe"""
    optimiser: str = "adam"
    """adam for everything, or muon for the blocks' matrices and adam for the rest"""
    lr: float = 1e-4
    """of adam"""
    muon_lr: float = 0.01
    beta2: float = 0.999
    """of adam: how long it remembers squared gradients"""
    momentum: float = 0.95
    """of muon"""
    decay: float = 0.0
    """of muon: its matrices shrink by this times the rate at every step"""
    warmup: int = 0
    schedule: str = "constant"
    """after the warm-up: constant, cosine, or linear (constant for the share `hold`, then straight to zero)"""
    hold: float = 0.3
    early_weight: float = 1.0
    """in the loss, of answers after fewer examples than there are features, which nothing determines yet"""
    clip: float = 1.0
    """largest norm of the gradient; 0 for none"""
    start_features: int | None = None
    """a curriculum begins with so many features …"""
    feature_every: int = 2000
    """… and adds one every so many steps …"""
    curriculum: float = 0.0
    """… or, where this is not 0, adds them evenly over this share of the run"""
    start_points: int | None = None
    point_every: int = 1000

    evaluate_every: int = 1000
    evaluation_batch: int = 512
    patience: int = 0
    """stop after so many evaluations without a better one, and end with the best weights; 0 for neither"""
    log_every: int = 100
    checkpoint_every: int = 1000
    keep_checkpoints: int = 2
    """the newest so many; 0 for all, so that `identify --checkpoints` sees the whole run"""

    device: str = "auto"
    precision: str = "fp32"
    """fp32, tf32, bf16 (weights and optimiser stay fp32), or auto: bf16 on a GPU, fp32 elsewhere"""
    graph: bool = True
    """on a GPU, replay the whole step as one CUDA graph"""
    compile: str = "off"
    """off, block (each block by torch.compile, quick to build), whole (faster), autotune (slow to build), or auto:
    whole on a GPU, off elsewhere"""
    threads: int = 0
    """CPU threads; 0 leaves torch's choice"""
    tensorboard: bool = False
    wandb: bool = False
    quiet: bool = False

    @classmethod
    def following(cls, recipe: str = "paper", model: str = "standard", **changes: Any) -> TrainConfig:
        """A recipe's configuration of a model, with changes."""
        return cls(**({"model": model, "recipe": recipe} | recipe_values(recipe, model) | changes))

    def check(self) -> TrainConfig:
        """Itself, if it makes sense: names exist, sizes are positive, and task and model take what is set."""
        for kind, name, known in (
            ("model", self.model, Learner.registry),
            ("task", self.task.partition(":")[0], TASKS),
            ("recipe", self.recipe, RECIPES),
            ("optimiser", self.optimiser, ("adam", "muon")),
            ("schedule", self.schedule, ("constant", "cosine", "linear")),
            ("precision", self.precision, ("auto", "fp32", "tf32", "bf16")),
            ("compile", self.compile, ("auto", "off", "block", "whole", "autotune")),
        ):
            if name not in known:
                raise BadConfig(unknown(kind, name, known))
        for name in ("features", "points", "width", "heads", "batch", "evaluation_batch", "feature_every"):
            _require(name, getattr(self, name), at_least=1)
        for name in ("log_every", "checkpoint_every", "evaluate_every", "point_every"):
            _require(name, getattr(self, name), at_least=1)
        for name in ("steps", "warmup", "clip", "decay", "early_weight", "patience", "keep_checkpoints"):
            _require(name, getattr(self, name), at_least=0)
        for name in ("lr", "muon_lr", "threads"):
            _require(name, getattr(self, name), at_least=0)
        for name in ("hold", "beta2", "momentum", "curriculum"):
            if not 0 <= getattr(self, name) < 1:
                raise BadConfig(f"{name} must lie in [0, 1), got {getattr(self, name)}")
        task = self.make_task()
        if isinstance(task, TextTask):
            self._check_text()
        self._learner_options()
        return self

    def _check_text(self) -> None:
        """What is about vectors and in-context samples must be left alone; a recipe's curriculum passes texts by."""
        for name in ("features", "points", "start_points", "early_weight"):
            if getattr(self, name) != getattr(TrainConfig, name):
                raise BadConfig(f"{name} is about in-context samples, and texts have none; leave it out")

    def on(self, device: torch.device) -> TrainConfig:
        """Itself, with `auto` settled for this device."""
        gpu = device.type == "cuda"
        precision = ("bf16" if gpu else "fp32") if self.precision == "auto" else self.precision
        compile = ("whole" if gpu else "off") if self.compile == "auto" else self.compile
        return dataclasses.replace(self, precision=precision, compile=compile)

    def make_task(self) -> Task:
        """Options without a flag of their own are written behind the task's name."""
        name = self.task.partition(":")[0]
        options = {option for name in TASKS for option in task_options(name)}
        # both have defaults here, so that they are always set, and texts have neither
        options -= {option for option in ("features", "points") if option not in task_options(name)}
        flags = tuple(field.name for field in dataclasses.fields(self) if field.name in options)
        try:
            return read_task(self.task, **self._given(flags))
        except EmulonError as error:
            raise BadConfig(str(error)) from error

    def make_learner(self, task: Task, device: str = "cpu") -> Learner:
        """A new learner, its weights a function of the seed alone; on "meta" it has a size and no weights."""
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(self.seed)
            options = self._learner_options()
            if task.vocabulary:
                options |= {"vocabulary": task.vocabulary, "causal": task.causal}
            return Learner.registry[self.model](task.width_in, task.width_out, task.tokens, **options)

    def _learner_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"width": self.width, "heads": self.heads} | self._given(_MODEL_OPTIONS)
        takes = Learner.registry[self.model].options()
        if isinstance(self.make_task(), TextTask) and "vocabulary" not in takes:
            raise BadConfig(f"the model {self.model} reads vectors, not texts; choose standard, looped or algoformer")
        for name in options:
            if name not in takes:
                raise BadConfig(f"the model {self.model} has no {name!r}; it takes {', '.join(takes)}")
        return options | ({"fused": self.fused} if "fused" in takes else {})

    def _given(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        try:
            values = dict(json.loads(text))
        except ValueError as error:
            raise BadConfig(f"the configuration is not JSON ({error}); start the run again") from error
        version = values.pop("version", 0)
        if version != VERSION:
            raise BadConfig(
                f"the configuration is of version {version} and this emulon reads version {VERSION}; its checkpoints"
                " are untouched: resume it with the emulon that began it, or start a new run"
            )
        fields = {field.name for field in dataclasses.fields(cls)}
        for key, value in values.items():
            if key not in fields and value is not None:  # null: an option of a model that is gone, and not used
                raise BadConfig(unknown("configuration key", key, fields))
        try:
            return cls(**{key: value for key, value in values.items() if key in fields}).check()
        except TypeError as error:  # a number where a word should be, or the other way round
            raise BadConfig(f"a value of the configuration is of the wrong type ({error}); put it back") from error


_MODEL_OPTIONS = ("layers", "init", "bias", "zero_output", "loops", "window", "inject", "dropout")

# Measured on one H200 (results/bench/speedrun.json): Muon at 0.02 diverges at a batch of 64, and AlgoFormer at 0.01.
# With Adam at 1e-3, momentum 0.95 and no decay the error after d examples rises again beyond 4,500 steps.
RECIPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "fast": {
        "optimiser": "muon",
        "lr": 5e-4,
        "momentum": 0.9,
        "decay": 0.02,
        "beta2": 0.99,
        "warmup": 200,
        "schedule": "linear",
        "start_features": 5,
        "curriculum": 0.15,
        "init": 0.0,
        "bias": False,
        "zero_output": True,
        "precision": "auto",
        "compile": "auto",
    },
}


def recipe_values(recipe: str, model: str) -> dict[str, Any]:
    """What a recipe sets for a model: all that any of them sets, so that one replaces another."""
    if recipe not in RECIPES:
        raise BadConfig(unknown("recipe", recipe, RECIPES))
    set_by_any = {name: getattr(TrainConfig, name) for values in RECIPES.values() for name in values}
    gentle = {"muon_lr": 0.005} if (recipe, model) == ("fast", "algoformer") else {}
    return set_by_any | RECIPES[recipe] | gentle


# Minutes on one core: five features, and a learner that comes near the Bayes ridge predictor after 2·5 samples.
# Wider learners pay more for a step than they gain, and small batches gain more than they pay.
PRESETS: dict[str, TrainConfig] = {
    "small": TrainConfig.following(
        "fast",
        features=5,
        points=11,
        noise=0.5,
        width=32,
        layers=6,
        heads=4,
        batch=32,
        steps=8500,
        lr=3e-3,
        muon_lr=0.005,
        momentum=0.95,
        decay=0.0,
        early_weight=0.2,
        start_features=1,
        evaluation_batch=2048,
        threads=1,
    ),
    # Akyürek et al. 2022, App. C.7, with what their search chose; a warm-up of a fifth of the steps. They searched over
    # --vary heads=1,2,4,8 --vary layers=1,2,12,16 --vary width=16,32,64,256,512,1024 --vary lr=1e-4,2.5e-4.
    "akyurek": TrainConfig(
        features=8,
        noise=0.0,
        layers=16,
        width=512,
        heads=4,
        init=0.0,
        steps=500_000,
        lr=1e-4,
        warmup=100_000,
        schedule="cosine",
    ),
    # Gao et al. 2024, section 5.1: Eq. 2 as printed, without injection.
    "gao": TrainConfig(
        model="algoformer", task="representation", noise=0.0, layers=1, loops=20, window=15, inject=False, steps=500_000
    ),
}


def _require(name: str, value: float | int, at_least: int) -> None:
    if not value >= at_least:
        raise BadConfig(f"{name} must be at least {at_least}, got {value}")
