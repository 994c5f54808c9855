"""`emulon compile-network`: an interpreter and a network, its weights in the prompt, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from emulon.cli.options import CommandOptions, NotNegative, Positive, shown
from emulon.cli.rows import read_rows
from emulon.core.errors import BadConfig, EmulonError

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS = 1024
EXAMPLES = """examples:
  emulon compile-network runs/small --out files             a trained learner, ranges from prompts of its own task
  emulon compile-network mine.py:network --data x.csv --out files   a torch module or an MLP of scikit-learn
  emulon compile-network mine.py:network --domain 3 --out files     for every input with |x| up to 3
  emulon compile-network fitted.skops --data x.csv --out files      an MLP of scikit-learn that skops has saved
writes files/interpreter.safetensors and files/network.safetensors; emulon show tells what is in them, and
emulon exec-network runs them."""


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """Write an interpreter and a network (its weights in the prompt) as files."""

    model: Positional[Annotated[str, arg(metavar="MODEL")]]
    """a run folder, FILE.skops, or module:name (file.py:name) of a torch module or a fitted MLP of scikit-learn"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the two files"""
    data: Annotated[Path | None, shown("FILE")] = None
    """inputs to see ranges on, a row each: .csv (a line of names first), .npy or .safetensors"""
    domain: Annotated[Positive | None, shown("BOUND")] = None
    """a bound on |x| instead of data"""
    tolerance: Positive = 1e-9
    """of the outputs, in exact arithmetic"""
    margin: NotNegative = 0.25
    """how far beyond what data show numbers may go, as a part of that"""


def main(options: Options) -> int:
    from emulon.core.files import make_folder
    from emulon.interpreter import Interpreter, save
    from emulon.networks import compile_network, save_network

    model, data = subject(options)
    make_folder(options.out)
    program = compile_network(model, options.domain, options.tolerance, data=data, margin=options.margin)
    interpreter = Interpreter.fitting(program)
    save(interpreter, options.out / "interpreter.safetensors")
    save_network(program, options.out / "network.safetensors")
    for name in ("interpreter", "network"):
        print(options.out / f"{name}.safetensors")
    print(f"{len(program.phases)} phases; interpreter sha256 {interpreter.sha256}")
    print(f"certificate {program.certificate}")
    return 0


def subject(options: Options) -> tuple[Any, Tensor | None]:
    """What is compiled, and the data that show its ranges, if any."""
    from emulon.identification.loading import is_run, load_object

    if options.data is not None and options.domain is not None:
        raise BadConfig("give --data or --domain, not both")
    data = None if options.data is None else read_rows(options.data)
    model = load_object(options.model)
    if data is None and options.domain is None:
        if not is_run(Path(options.model)):
            raise BadConfig("give --data FILE to see ranges on, or --domain BOUND")
        data = own_prompts(Path(options.model), model)
    return model, data


def own_prompts(folder: Path, learner: Any) -> Tensor:
    """Of the task that a learner was trained on."""
    from emulon.tasks import RegressionTask
    from emulon.training import RunFolder

    task = RunFolder(folder).config().make_task()
    if not isinstance(task, RegressionTask):
        raise EmulonError(f"{folder} was not trained on a regression; give --data FILE with its inputs")
    drawn = task.held_out(0, PROMPTS, (learner.tokens + 1) // 2)
    prompts: Tensor = learner._prompt(drawn.xs, drawn.ys[:, :-1]).double()
    return prompts
