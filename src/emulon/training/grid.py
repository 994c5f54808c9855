"""A grid of runs: one configuration, what varies in it, and the folder of every combination."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from emulon.core.errors import EmulonError, unknown
from emulon.training import PRESETS, BadConfig, RunFolder, TrainConfig
from emulon.training.configuration import Option, option_named, recipe_values

SHAPE = '{"base": {"model": "standard", "steps": 1000}, "grid": {"seed": [0, 1], "layers": [1, 2]}}'
CURVE = "curve.json"


class BadGrid(BadConfig):
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
        return parameters, self.config.schedule.batch * float(counter.get_total_flops())


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
        for name in self.vary:
            if name in self.base:
                raise BadGrid(f"{name} is both fixed ({self.base[name]}) and varied; take it out of one of them")
        object.__setattr__(self, "base", {name: _option(name).checked(value) for name, value in self.base.items()})
        typed = {name: [_option(name).checked(value) for value in values] for name, values in self.vary.items()}
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
        start = TrainConfig() if preset is None else PRESETS[preset]
        recipe = recipe_values(chosen["recipe"], chosen["model"]) if "recipe" in chosen else {}
        # the sweep reports for all its runs
        return start.changed(**recipe | chosen | {"quiet": True})


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
        vary[name] = [_option(name).read(value) for value in values.split(",") if value]
    return vary


def _option(name: str) -> Option:
    return Option("preset", "", (str,)) if name == "preset" else option_named(name)


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
    for name, theirs in there.options().items():
        if (mine := run.config.options()[name]) != theirs:
            raise BadGrid(
                f"{run.folder} holds a run whose {name} is {theirs}, and here it is {mine}; choose another --out"
            )
