"""`emulon train {standard,looped,algoformer,frozen} …` and `emulon train --resume RUN`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path

from emulon.errors import EmulonError, unknown
from emulon.models import Learner
from emulon.training.configuration import PRESETS, TrainConfig, recipe_values
from emulon.training.fit import Trained, resume, train
from emulon.training.refusals import BadConfig, NoRun

USAGE = f"""usage: emulon train {{{",".join(Learner.registry)}}} [--task linear] [--features 20] [--steps 10000] …
       emulon train standard --preset small    (a few minutes on a CPU; other flags change it)
       emulon train --resume RUN
       emulon train standard --help            (every flag)"""
Finished = Callable[[Path, Trained], None]


def main(args: list[str], finished: Finished | None = None) -> int:
    """0 when trained, 2 for a request that makes no sense, 1 when training had to stop. `finished` hears of the end."""
    try:
        if not args or args[0] in ("-h", "--help"):
            print(USAGE)
            return 0 if args else 2
        if args[0] == "--resume":
            if len(args) != 2:
                raise BadConfig("--resume takes a run's folder and nothing else: its configuration is in the folder")
            out = Path(args[1])
            trained = resume(out)
        else:
            config, out = parse(args)
            trained = train(config, out)
        if trained.leads:
            print(summary(trained))
            if finished is not None:
                finished(out, trained)
    except SystemExit as end:  # tyro's: --help, or a value that is not of its flag's type
        return int(end.code or 0)
    except (BadConfig, NoRun) as error:
        print(f"emulon train: {error}", file=sys.stderr)
        return 2
    except EmulonError as error:
        print(f"emulon train: {error}", file=sys.stderr)
        return 1
    return 0


def parse(args: list[str]) -> tuple[TrainConfig, Path]:
    """The configuration, and the folder of --out, from a model's name and flags."""
    import tyro

    model, flags = args[0], list(args[1:])
    if model not in Learner.registry:
        raise BadConfig(unknown("model", model, Learner.registry))
    out = Path(_taken(flags, "--out") or f"runs/{model}")
    preset = _taken(flags, "--preset")
    if preset is not None and preset not in PRESETS:
        raise BadConfig(unknown("preset", preset, PRESETS))
    recipe = _value(flags, "--recipe")
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"model"}
    for flag in flags:
        if flag.startswith("--"):
            name = flag[2:].split("=")[0].replace("-", "_")
            if name not in known | {"help"} and name.removeprefix("no_") not in known:
                raise BadConfig(
                    unknown("flag", "--" + name, ("--" + option for option in known | {"out", "preset", "resume"}))
                )
    changes = recipe_values(recipe, model) if recipe else {}
    config = tyro.cli(
        TrainConfig,
        prog=f"emulon train {model}",
        args=["--model", model, *flags],
        default=dataclasses.replace(PRESETS[preset] if preset else TrainConfig(), **changes),
        description=f"also: --out DIR, --preset {{{','.join(PRESETS)}}}",
    )
    return config, out


def _value(flags: list[str], name: str) -> str | None:
    """A flag's value, left where it is."""
    return _taken(list(flags), name)


def _taken(flags: list[str], name: str) -> str | None:
    """Removes a flag that is no part of the configuration (--out, --preset) and returns its value."""
    for i, flag in enumerate(flags):
        if flag == name:
            if i + 1 == len(flags):
                raise BadConfig(f"{name} needs a value")
            value = flags[i + 1]
            del flags[i : i + 2]
            return value
        if flag.startswith(f"{name}="):
            del flags[i]
            return flag.removeprefix(f"{name}=")
    return None


def summary(trained: Trained) -> str:
    """Errors at a few numbers of in-context samples, the learner's beside the baselines'."""
    last = len(trained.curve) - 1
    columns = sorted({0, last // 4, last // 2, 3 * last // 4, last})
    rows = {"learner": trained.curve, **trained.baselines}
    lines = [f"after {trained.steps} steps, squared error by in-context samples"]
    lines.append(" " * 12 + "".join(f"{column:>10}" for column in columns))
    for name, curve in rows.items():
        lines.append(f"{name:<12}" + "".join(f"{curve[column]:>10.4g}" for column in columns))
    return "\n".join(lines)
