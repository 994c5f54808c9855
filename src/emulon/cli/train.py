"""`emulon train`: a transformer that has to find an algorithm itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from emulon.cli.names import require_known
from emulon.cli.options import BadUsage
from emulon.core.errors import EmulonError, WorkFailed

if TYPE_CHECKING:
    from emulon.cli.train_options import Options
    from emulon.training import Trained

EXAMPLES = """examples:
  emulon train standard --task linear --features 20 --points 41 --steps 10000
  emulon train standard --preset small         a few minutes on a CPU; other options change it
  emulon train looped --recipe fast --features 20
  emulon train --resume runs/standard          go on where it stopped"""


def __getattr__(name: str) -> object:
    """`Options`, when it is asked for: its fields are TrainConfig's, and training imports torch."""
    if name != "Options":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from emulon.cli.train_options import Options

    return Options


def check(words: Sequence[str]) -> None:
    """What can be refused before torch is imported: the name of the model."""
    if words and not words[0].startswith("-"):
        require_known("model", words[0], "models")


def main(options: Options) -> int:
    from emulon.models import Learner
    from emulon.report.curves import keep_curve
    from emulon.training import BadConfig, NoRun, resume, train

    try:
        if options.resume is not None:
            if replace(options, resume=None) != type(options)():
                raise BadUsage("--resume takes a run's folder and nothing else: its configuration is in the folder")
            out, trained = options.resume, resume(options.resume)
        else:
            if not options.model:
                raise BadUsage(f"say which model to train: {', '.join(Learner.registry)}; or --resume RUN")
            out = options.out or Path("runs") / options.model
            trained = train(options.config, out)
    except (BadUsage, BadConfig, NoRun):
        raise
    except EmulonError as error:
        raise WorkFailed(str(error)) from error
    if trained.leads:
        print(summary(trained))
        keep_curve(out, trained)
    return 0


def summary(trained: Trained) -> str:
    """Errors at a few numbers of in-context samples, the learner's beside the baselines'; of texts one number each."""
    measure = trained.evaluation.task.measure
    last = len(trained.curve) - 1
    columns = sorted({0, last // 4, last // 2, 3 * last // 4, last})
    rows = {"learner": trained.curve, **trained.baselines}
    lines = [f"after {trained.steps} steps, {measure}" + (" by in-context samples" if last else "")]
    if last:
        lines.append(" " * 12 + "".join(f"{column:>10}" for column in columns))
    for name, curve in rows.items():
        lines.append(f"{name:<12}" + "".join(f"{curve[column]:>10.4g}" for column in columns))
    return "\n".join(lines)
