"""The configuration of a run: groups of options, which are also the command line and the config.json of its folder."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

import torch

from emulon.core.errors import BadConfig, EmulonError, unknown
from emulon.models import Learner
from emulon.tasks import TASKS, Task, read_task, task_options

VERSION = 2


@dataclass(frozen=True)
class TaskConfig:
    """The distribution of in-context datasets. None leaves an option to the task; a task refuses what it does not
    take."""

    task: str = "linear"
    """a task's name, and behind it options that have no flag, as sparse:nonzero=3"""
    features: int = 20
    """of x; texts have none, and take neither these nor a curriculum"""
    points: int = 41
    """examples in a prompt, the last query included"""
    noise: float | None = None
    """standard deviation of the noise on y"""
    prior: float | None = None
    """standard deviation of the weights, for linear functions"""


@dataclass(frozen=True)
class ModelConfig:
    """Architecture and initial weights of the learner. None leaves an option to the model."""

    model: str = "standard"
    """a learner's name"""
    width: int = 256
    """of the residual stream; the MLPs are four times as wide"""
    layers: int | None = None
    """blocks; of a learner that loops, in each of its decoders"""
    heads: int = 8
    """attention heads a block, which share the width"""
    loops: int | None = None
    """how often the loop's decoder is applied"""
    window: int | None = None
    """loop counts, the last so many, over which the loss averages"""
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


@dataclass(frozen=True)
class OptimiserConfig:
    """How a gradient becomes a step."""

    optimiser: str = "adam"
    """adam for everything, or muon for the blocks' matrices and adam for the rest"""
    lr: float = 1e-4
    """learning rate of adam"""
    muon_lr: float = 0.01
    """learning rate of muon"""
    beta2: float = 0.999
    """of adam: decay of the average of squared gradients"""
    momentum: float = 0.95
    """of muon"""
    decay: float = 0.0
    """of muon: its matrices shrink by this times the rate at every step"""
    per_head: bool = False
    """of muon: every head's queries, keys and values are matrices of their own"""
    clip: float = 1.0
    """largest norm of the gradient; 0 for none"""


@dataclass(frozen=True)
class ScheduleConfig:
    """How long, on how many datasets, and what changes on the way: learning rates and the curriculum."""

    steps: int = 10_000
    """of the optimiser"""
    batch: int = 64
    """datasets a step"""
    warmup: int = 0
    """steps over which the rates rise from zero"""
    schedule: str = "constant"
    """rates after the warm-up: constant, cosine, or linear (constant for the share `hold`, then straight to zero)"""
    hold: float = 0.3
    """of the linear schedule"""
    early_weight: float = 1.0
    """in the loss, of answers after fewer examples than there are features, which nothing determines yet"""
    start_features: int | None = None
    """a curriculum begins with so many features …"""
    feature_every: int = 2000
    """… and adds one every so many steps …"""
    curriculum: float = 0.0
    """… or, where this is not 0, adds them evenly over this share of the run"""


@dataclass(frozen=True)
class EvaluationConfig:
    """When the learner is evaluated, reported and stored."""

    evaluate_every: int = 1000
    """steps between evaluations on datasets that training never sees"""
    evaluation_batch: int = 512
    """datasets of an evaluation"""
    patience: int = 0
    """stop after so many evaluations without a better one, and end with the best weights; 0 for neither"""
    log_every: int = 100
    """steps between lines of metrics.jsonl"""
    checkpoint_every: int = 1000
    """steps between checkpoints"""
    keep_checkpoints: int = 2
    """the newest so many; 0 for all, so that `identify --checkpoints` sees the whole run"""
    tracker: str = ""
    """wandb or trackio: give the measurements to it, too"""
    quiet: bool = False
    """print nothing while training"""


@dataclass(frozen=True)
class DeviceConfig:
    """Where a run computes and how: none of it changes what is learned, but by rounding."""

    device: str = "auto"
    """cpu, cuda, cuda:1, …, or auto: a GPU where there is one"""
    precision: str = "fp32"
    """fp32, tf32, bf16 (weights and optimiser stay fp32), or auto: bf16 on a GPU, fp32 elsewhere"""
    graph: bool = True
    """on a GPU, replay the whole step as one CUDA graph"""
    compile: str = "off"
    """off, block (each block by torch.compile, quick to build), whole (faster), or auto: whole on a GPU"""
    threads: int = 0
    """CPU threads; 0 leaves torch's choice"""


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, on what, and how.

    Every option has a name of its own, whatever its group, so that it can also be given by that name alone: on the
    command line, in a grid, and to `of`, `following` and `changed`.

    Attributes:
        task: Distribution of in-context datasets.
        model: Architecture and initial weights.
        optimiser: How a gradient becomes a step.
        schedule: Steps, batch, learning rates over time, curriculum.
        evaluation: When to evaluate, report and store.
        device: Where to compute, and in which precision.
        seed: Of initial weights, data and dropout.
        recipe: Where defaults come from, a key of `RECIPES`.

    Example:
        >>> config = TrainConfig(model=ModelConfig("looped", width=64), schedule=ScheduleConfig(steps=500))
        >>> config == TrainConfig.of(model="looped", width=64, steps=500)
        True
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    seed: int = 0
    """of the initial weights, the data and dropout"""
    recipe: str = "paper"
    """paper: Adam as the sources have it; fast: Muon and all that goes with it. Other options change a recipe"""

    @classmethod
    def of(cls, **options: Any) -> TrainConfig:
        """Build a configuration from options by their names alone.

        Raises:
            BadConfig: There is no option of that name.
        """
        return cls().changed(**options)

    @classmethod
    def following(cls, recipe: str = "paper", model: str = "standard", **changes: Any) -> TrainConfig:
        """Build a recipe's configuration of a model, with changes by the names of options."""
        return cls.of(**({"model": model, "recipe": recipe} | recipe_values(recipe, model) | changes))

    def changed(self, **options: Any) -> TrainConfig:
        """Copy with some options changed, by their names alone."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            groups.setdefault(option_named(name).group, {})[name] = value
        own = groups.pop("", {})
        return dataclasses.replace(
            self, **own, **{group: dataclasses.replace(getattr(self, group), **each) for group, each in groups.items()}
        )

    def options(self) -> dict[str, Any]:
        """All options by their names, without the groups."""
        return {
            name: getattr(getattr(self, option.group) if option.group else self, name)
            for name, option in OPTIONS.items()
        }

    def check(self) -> TrainConfig:
        """Return the configuration itself where it makes sense.

        Raises:
            BadConfig: A name does not exist, a size is not positive, or task or model do not take what is set.
        """
        options = self.options()
        for name, known in (
            ("model", Learner.registry),
            ("recipe", RECIPES),
            ("optimiser", ("adam", "muon")),
            ("schedule", ("constant", "cosine", "linear")),
            ("precision", ("auto", "fp32", "tf32", "bf16")),
            ("compile", ("auto", "off", "block", "whole")),
            ("tracker", ("", "wandb", "trackio")),
        ):
            if options[name] not in known:
                raise BadConfig(unknown(name, options[name], known))
        if (task := self.task.task.partition(":")[0]) not in TASKS:
            raise BadConfig(unknown("task", task, TASKS))
        for name in POSITIVE + NOT_NEGATIVE:
            least = 1 if name in POSITIVE else 0
            if not options[name] >= least:
                raise BadConfig(f"{name} must be at least {least}, got {options[name]}")
        for name in SHARES:
            if not 0 <= options[name] < 1:
                raise BadConfig(f"{name} must lie in [0, 1), got {options[name]}")
        if self.make_task().reads_words:
            for name in ("features", "points", "early_weight"):
                if options[name] != TrainConfig().options()[name]:
                    raise BadConfig(f"{name} is about in-context samples, and texts have none; leave it out")
        self._learner_options()
        return self

    def on(self, device: torch.device) -> TrainConfig:
        """Copy with `auto` settled for this device."""
        gpu, chosen = device.type == "cuda", self.device
        precision = ("bf16" if gpu else "fp32") if chosen.precision == "auto" else chosen.precision
        compile = ("whole" if gpu else "off") if chosen.compile == "auto" else chosen.compile
        return self.changed(precision=precision, compile=compile)

    def make_task(self) -> Task:
        """Build the task; options without a flag of their own stand behind its name."""
        known = {option for name in TASKS for option in task_options(name)}
        # both have defaults here, so that they are always set, and texts have neither
        known -= {"features", "points"} - set(task_options(self.task.task.partition(":")[0]))
        try:
            return read_task(
                self.task.task, **{name: value for name, value in _set(self.task).items() if name in known}
            )
        except EmulonError as error:
            raise BadConfig(str(error)) from error

    def make_learner(self, task: Task, device: str = "cpu") -> Learner:
        """Build a new learner, its weights a function of the seed alone; on "meta" it has a size and no weights."""
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(self.seed)
            options = self._learner_options()
            if task.vocabulary:
                options |= {"vocabulary": task.vocabulary, "causal": task.causal}
            return Learner.registry[self.model.model](task.width_in, task.width_out, task.tokens, **options)

    def _learner_options(self) -> dict[str, Any]:
        model = self.model.model
        options = _set(self.model)
        del options["model"]
        takes = Learner.registry[model].options()
        if self.make_task().reads_words and "vocabulary" not in takes:
            raise BadConfig(f"the model {model} reads vectors, not texts; choose standard, looped or algoformer")
        if "fused" not in takes:  # a way to compute, which a learner need not offer
            del options["fused"]
        for name in options:
            if name not in takes:
                raise BadConfig(f"the model {model} has no {name!r}; it takes {', '.join(takes)}")
        return options

    def to_json(self) -> str:
        return json.dumps({"version": VERSION} | dataclasses.asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> TrainConfig:
        """Read what `to_json` wrote.

        Raises:
            BadConfig: It is not JSON, of another version, has unknown keys, or makes no sense.
        """
        try:
            values = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise BadConfig(f"the configuration is not JSON ({error}); start the run again") from error
        version = values.pop("version", 0)
        if version != VERSION:
            raise BadConfig(
                f"the configuration is of version {version} and this emulon reads version {VERSION}; its checkpoints"
                " are untouched: resume it with the emulon that began it, or start a new run"
            )
        flat: dict[str, Any] = {}
        for name, value in values.items():
            flat |= value if isinstance(value, dict) else {name: value}
        return cls.of(**{name: option_named(name).checked(value) for name, value in flat.items()}).check()


@dataclass(frozen=True)
class Option:
    """One option of `TrainConfig`: its name, the group that it stands in ("" for none), and the types it takes."""

    name: str
    group: str
    kinds: tuple[type, ...]

    def checked(self, value: Any) -> Any:
        """The value, if it is of the right type; a whole number may stand for any number."""
        if type(value) is int and int not in self.kinds and float in self.kinds:
            value = float(value)
        if type(value) not in self.kinds or (isinstance(value, float) and not math.isfinite(value)):
            raise self._wrong(value)
        return value

    def read(self, word: str) -> Any:
        """The value that a word of a command line names."""
        if word == "none" and NoneType in self.kinds:
            return None
        if bool in self.kinds and word in ("true", "false"):
            return word == "true"
        for kind in (int, float, str):
            if kind in self.kinds:
                try:
                    return kind(word)
                except ValueError:
                    break
        raise self._wrong(word)

    def _wrong(self, value: Any) -> BadConfig:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
        return BadConfig(f"{self.name}: {value!r} is not {' or '.join(names[kind] for kind in self.kinds)}")


def _options() -> dict[str, Option]:
    found: dict[str, Option] = {}
    for name, kind in typing.get_type_hints(TrainConfig).items():
        each = typing.get_type_hints(kind) if dataclasses.is_dataclass(kind) else {name: kind}
        group = name if dataclasses.is_dataclass(kind) else ""
        found |= {own: Option(own, group, typing.get_args(hint) or (hint,)) for own, hint in each.items()}
    return found


OPTIONS: Mapping[str, Option] = _options()
# Least values that `check` asks for.
POSITIVE = (
    *("features", "points", "width", "heads", "batch", "evaluation_batch", "feature_every"),
    *("log_every", "checkpoint_every", "evaluate_every"),
)
NOT_NEGATIVE = (
    *("steps", "warmup", "clip", "decay", "early_weight", "patience", "keep_checkpoints"),
    *("lr", "muon_lr", "threads"),
)
SHARES = ("hold", "beta2", "momentum", "curriculum")


def option_named(name: str) -> Option:
    """The option of this name.

    Raises:
        BadConfig: There is none.
    """
    if name not in OPTIONS:
        raise BadConfig(unknown("configuration key", name, OPTIONS))
    return OPTIONS[name]


def _set(group: TaskConfig | ModelConfig) -> dict[str, Any]:
    """The options of a group that are not left to task or model, without the name."""
    return {name: value for name, value in dataclasses.asdict(group).items() if value is not None}


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
    plain = TrainConfig().options()
    set_by_any = {name: plain[name] for values in RECIPES.values() for name in values}
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
    "akyurek": TrainConfig.of(
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
}
