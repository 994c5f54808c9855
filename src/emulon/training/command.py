"""`emulon train {standard,looped,algoformer,frozen} …` and `emulon train --resume RUN`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from emulon.errors import EmulonError
from emulon.models import LEARNERS
from emulon.training.configuration import TrainConfig
from emulon.training.loop import Trained, resume, train
from emulon.training.refusals import BadConfig, unknown

USAGE = f"""usage: emulon train {{{",".join(LEARNERS)}}} [--task linear] [--features 20] [--points 41] [--steps 10000] …
       emulon train --resume RUN
       emulon train standard --help    (every flag)"""


def main(args: list[str]) -> int:
    """0 when trained, 2 for a request that makes no sense, 1 when training had to stop."""
    try:
        if not args or args[0] in ("-h", "--help"):
            print(USAGE)
            return 0 if args else 2
        if args[0] == "--resume":
            if len(args) != 2:
                raise BadConfig("--resume takes a run's folder and nothing else: its configuration is in the folder")
            trained = resume(Path(args[1]))
        else:
            config, out = parse(args)
            trained = train(config, out)
    except SystemExit as end:  # tyro's: --help, or a value that is not of its flag's type
        return int(end.code or 0)
    except BadConfig as error:
        print(f"emulon train: {error}", file=sys.stderr)
        return 2
    except EmulonError as error:
        print(f"emulon train: {error}", file=sys.stderr)
        return 1
    print(summary(trained))
    return 0


def parse(args: list[str]) -> tuple[TrainConfig, Path]:
    """The configuration, and the folder of --out, from a model's name and flags."""
    import tyro

    model, flags = args[0], list(args[1:])
    if model not in LEARNERS:
        raise unknown("model", model, LEARNERS)
    out = Path(_take_out(flags) or f"runs/{model}")
    known = {field.name for field in dataclasses.fields(TrainConfig)} - {"model"}
    for flag in flags:
        if flag.startswith("--"):
            name = flag[2:].split("=")[0].replace("-", "_")
            if name not in known | {"out", "help"} and name.removeprefix("no_") not in known:
                raise unknown("flag", "--" + name, ("--" + option for option in known | {"out", "resume"}))
    config = tyro.cli(
        TrainConfig, prog=f"emulon train {model}", args=["--model", model, *flags], description="also: --out DIR"
    )
    return config, out


def _take_out(flags: list[str]) -> str | None:
    """Removes --out and returns its folder: where a run is kept is no part of what it is."""
    for i, flag in enumerate(flags):
        if flag == "--out":
            if i + 1 == len(flags):
                raise BadConfig("--out needs a folder")
            folder = flags[i + 1]
            del flags[i : i + 2]
            return folder
        if flag.startswith("--out="):
            del flags[i]
            return flag.removeprefix("--out=")
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
