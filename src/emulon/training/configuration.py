"""The configuration of a run: one dataclass, which is also the command line and the config.json of the run folder."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass
from typing import Any

import torch

from emulon.models import LEARNERS, Learner
from emulon.tasks import TASKS, Task, task_options
from emulon.training.refusals import BadConfig, unknown

VERSION = 1


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, on what, and how. None leaves a choice to the task or the model."""

    model: str = "standard"
    """standard, looped, algoformer or frozen"""
    task: str = "linear"
    """linear, sparse, mixture, representation, auto_regression, chain_of_thought, relu_network, decision_tree, head,
    statistical"""
    features: int = 20
    points: int = 41
    noise: float | None = None
    prior: float | None = None
    nonzero: int | None = None
    hidden: int | None = None
    depth: int | None = None
    lags: int | None = None
    network_seed: int | None = None
    weights_given: bool | None = None

    width: int = 256
    layers: int | None = None
    heads: int = 8
    loops: int | None = None
    window: int | None = None
    assemble: bool | None = None
    init: float | None = None
    """standard deviation of the initial matrices; 0.02 as GPT-2's, 0.08 suits a width of 64"""
    fused: bool = True
    """one fused attention kernel instead of the traced, readable one"""

    steps: int = 10_000
    batch: int = 64
    """datasets a step in each process"""
    seed: int = 0
    lr: float = 1e-4
    warmup: int = 0
    schedule: str = "constant"
    """constant or cosine, after the warm-up"""
    clip: float = 1.0
    """largest norm of the gradient; 0 for none"""
    start_features: int | None = None
    """a curriculum begins with so many features …"""
    feature_every: int = 2000
    """… and adds one every so many steps"""
    start_points: int | None = None
    point_every: int = 1000

    evaluate_every: int = 1000
    evaluation_batch: int = 512
    patience: int = 0
    """stop after so many evaluations without a better one; 0 for never"""
    log_every: int = 100
    checkpoint_every: int = 1000

    device: str = "auto"
    precision: str = "fp32"
    """fp32, tf32 or bf16 (weights and optimiser stay fp32)"""
    graph: bool = True
    """on a GPU, replay the whole step as one CUDA graph"""
    compile: str = "off"
    """off, block (each block by torch.compile, quick to build), whole (faster) or autotune (slow to build)"""
    threads: int = 0
    """CPU threads; 0 leaves torch's choice"""
    tensorboard: bool = False
    wandb: bool = False
    quiet: bool = False

    def check(self) -> TrainConfig:
        """Itself, if it makes sense: names exist, sizes are positive, and task and model take what is set."""
        for kind, name, known in (
            ("model", self.model, LEARNERS),
            ("task", self.task, TASKS),
            ("schedule", self.schedule, ("constant", "cosine")),
            ("precision", self.precision, ("fp32", "tf32", "bf16")),
            ("compile", self.compile, ("off", "block", "whole", "autotune")),
        ):
            if name not in known:
                raise unknown(kind, name, known)
        for name in ("features", "points", "width", "heads", "batch", "evaluation_batch", "feature_every"):
            _require(name, getattr(self, name), at_least=1)
        for name in ("log_every", "checkpoint_every", "evaluate_every", "point_every"):
            _require(name, getattr(self, name), at_least=1)
        for name in ("steps", "warmup", "clip", "patience", "lr", "threads"):
            _require(name, getattr(self, name), at_least=0)
        self.make_task()
        self._learner_options()
        return self

    def make_task(self) -> Task:
        chosen = {"features": self.features, "points": self.points} | self._given(_TASK_OPTIONS)
        takes = task_options(self.task)
        for name in chosen:
            if name not in takes:
                raise BadConfig(f"the task {self.task} has no {name!r}; it takes {', '.join(takes)}")
        return TASKS[self.task](**chosen)

    def make_learner(self, task: Task) -> Learner:
        """A new learner, its weights a function of the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return LEARNERS[self.model](task.width_in, task.width_out, task.tokens, **self._learner_options())

    def _learner_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"width": self.width, "heads": self.heads} | self._given(_MODEL_OPTIONS)
        signature = inspect.signature(LEARNERS[self.model]).parameters.values()
        takes = [parameter.name for parameter in signature if parameter.kind is parameter.KEYWORD_ONLY]
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
        for key in values:
            if key not in fields:
                raise unknown("configuration key", key, fields)
        try:
            return cls(**values).check()
        except TypeError as error:  # a number where a word should be, or the other way round
            raise BadConfig(f"a value of the configuration is of the wrong type ({error}); put it back") from error


_TASK_OPTIONS = ("noise", "prior", "nonzero", "hidden", "depth", "lags", "network_seed", "weights_given")
_MODEL_OPTIONS = ("layers", "init", "loops", "window", "assemble")


def _require(name: str, value: float | int, at_least: int) -> None:
    if not value >= at_least:
        raise BadConfig(f"{name} must be at least {at_least}, got {value}")
