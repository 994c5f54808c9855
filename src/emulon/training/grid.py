"""A grid of runs: one configuration, what varies in it, and the folder of every combination."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Any

from emulon.core.errors import EmulonError, unknown
from emulon.training import PRESETS, BadConfig, RunFolder, TrainConfig
from emulon.training.configuration import recipe_values

SHAPE = '{"base": {"model": "standard", "steps": 1000}, "grid": {"seed": [0, 1], "layers": [1, 2]}}'
CURVE = "curve.json"


class BadGrid(EmulonError):
    """A grid that cannot be read, is empty, contradicts itself, or names what no run has.

    Cure: write `--vary name=value,value` with names that `emulon train --help` lists.
    """


@dataclass(frozen=True)
class Run:
    """One combination: what it has of what varies, the whole configuration, and where it is kept."""

    values: Mapping[str, Any]
    config: TrainConfig
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def finished(self) -> bool:
        """The curve is the last thing that a run writes."""
        return (self.folder / CURVE).is_file()

    @property
    def steps_done(self) -> int:
        """Up to its newest checkpoint."""
        return max(RunFolder(self.folder).kept_steps(), default=0)

    def learner_size(self) -> tuple[int, float]:
        """Parameters, and the floating-point operations of one step's forward and backward pass, counted without doing
        them."""
        from torch.utils.flop_counter import FlopCounterMode

        task = self.config.make_task()
        learner, blank = self.config.make_learner(task, "meta"), task.blank()
        with FlopCounterMode(display=False) as counter:
            learner.loss(blank.tokens.to("meta"), blank.targets.to("meta"), task.asked).backward()
        parameters = sum(parameter.numel() for parameter in learner.parameters())
        return parameters, self.config.batch * float(counter.get_total_flops())


@dataclass(frozen=True)
class Grid:
    """`base` is what all runs have, `vary` the values that each run has one of; both by TrainConfig's fields, and a
    preset may stand among them. A recipe's values are filled in run by run, so that recipes and models can vary."""

    base: Mapping[str, Any]
    vary: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if not self.vary or not all(self.vary.values()):
            empty = next((f"no value of {name}" for name, values in self.vary.items() if not values), "nothing")
            raise BadGrid(f"{empty} is given to vary; a grid needs at least one value of each: {SHAPE}")
        for name in (*self.base, *self.vary):
            _kinds(name)
        for name in self.vary:
            if name in self.base:
                raise BadGrid(f"{name} is both fixed ({self.base[name]}) and varied; take it out of one of them")
        object.__setattr__(self, "base", {name: _typed(name, value) for name, value in self.base.items()})
        typed = {name: [_typed(name, value) for value in values] for name, values in self.vary.items()}
        object.__setattr__(self, "vary", typed)
        for name, values in typed.items():
            if len(set(values)) < len(values):
                raise BadGrid(f"a value of {name} is given twice: {', '.join(map(str, values))}")

    def runs(self, out: Path) -> tuple[Run, ...]:
        """Every combination, the last to be named varying fastest; refused where any of them could not begin."""
        runs = []
        for each in product(*self.vary.values()):
            values = dict(zip(self.vary, each, strict=True))
            run = Run(values, self._config(values), out / _folder_name(values))
            _require_sense(run)
            runs.append(run)
        return tuple(runs)

    def _config(self, values: Mapping[str, Any]) -> TrainConfig:
        chosen = {"model": "standard"} | dict(self.base) | dict(values)
        preset = chosen.pop("preset", None)
        if preset is not None and preset not in PRESETS:
            raise BadGrid(unknown("preset", preset, PRESETS))
        start = dataclasses.asdict(TrainConfig() if preset is None else PRESETS[preset])
        if "recipe" in chosen:
            start |= recipe_values(chosen["recipe"], chosen["model"])
        # the sweep speaks for all its runs
        return TrainConfig(**start | chosen | {"quiet": True})


def read_grid(path: Path) -> Grid:
    """A grid's file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadGrid(f"the grid {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except ValueError as error:
        raise BadGrid(f"{path} is not JSON ({error}); a grid looks like {SHAPE}") from error
    if not isinstance(content, dict):
        raise BadGrid(f"{path} holds no grid; one looks like {SHAPE}")
    for key in content:
        if key not in ("base", "grid"):
            raise BadGrid(f"{path}: {unknown('part of a grid', key, ('base', 'grid'))}")
    base, vary = content.get("base", {}), content.get("grid", {})
    if not isinstance(base, dict) or not isinstance(vary, dict):
        raise BadGrid(f"{path} holds no grid; one looks like {SHAPE}")
    for name, values in vary.items():
        if not isinstance(values, list):
            raise BadGrid(f"{path}: what varies is a list of values, and {name} is {json.dumps(values)}")
    return Grid(base, vary)


def read_words(words: Sequence[str]) -> dict[str, list[Any]]:
    """`seed=0,1,2` and the like, what varies."""
    vary: dict[str, list[Any]] = {}
    for word in words:
        name, _, values = word.replace(" ", "").partition("=")
        name = name.replace("-", "_")
        if name in vary:
            raise BadGrid(f"{name} varies twice; give all its values at once: --vary {name}=0,1,2")
        kinds = _kinds(name)
        vary[name] = [_read(name, kinds, value) for value in values.split(",") if value]
    return vary


def _kinds(name: str) -> tuple[type, ...]:
    """The types that a field of TrainConfig takes."""
    hints = typing.get_type_hints(TrainConfig) | {"preset": str}
    if name not in hints:
        raise BadGrid(unknown("configuration key", name, hints))
    return typing.get_args(hints[name]) or (hints[name],)


def _read(name: str, kinds: tuple[type, ...], word: str) -> Any:
    if word == "none" and NoneType in kinds:
        return None
    if bool in kinds and word in ("true", "false"):
        return word == "true"
    for kind in (int, float, str):
        if kind in kinds:
            try:
                return kind(word)
            except ValueError:
                break
    raise BadGrid(_wrong_type(name, word, kinds))


def _typed(name: str, value: Any) -> Any:
    kinds = _kinds(name)
    if type(value) is int and int not in kinds and float in kinds:
        value = float(value)  # 1 for 1.0, as people write it
    if type(value) not in kinds or (isinstance(value, float) and not math.isfinite(value)):
        raise BadGrid(_wrong_type(name, value, kinds))
    return value


def _wrong_type(name: str, value: Any, kinds: tuple[type, ...]) -> str:
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", NoneType: "none"}
    return f"{name}: {value!r} is not {' or '.join(words[kind] for kind in kinds)}"


def _folder_name(values: Mapping[str, Any]) -> str:
    return re.sub(r"[^\w.,=+-]", "-", ",".join(f"{name}={value}" for name, value in values.items()))


def _require_sense(run: Run) -> None:
    """Its configuration makes sense, the learner can be built, and its folder holds nothing else."""
    try:
        task = run.config.check().make_task()
        run.config.make_learner(task, "meta")
    except EmulonError as error:
        raise BadGrid(f"{run.name}: {error}") from error
    folder = RunFolder(run.folder)
    try:
        there = folder.config() if folder.config_file.exists() else run.config
    except BadConfig as error:
        raise BadGrid(f"{run.folder}: {error}") from error
    for field in dataclasses.fields(TrainConfig):
        mine, theirs = getattr(run.config, field.name), getattr(there, field.name)
        if mine != theirs:
            raise BadGrid(
                f"{run.folder} holds a run whose {field.name} is {theirs}, and here it is {mine}; choose another --out"
            )
