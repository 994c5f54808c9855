"""`emulon compile`: an interpreter and a program, which is an algorithm's or a network's prompt, as files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor
from tyro.conf import Positional, arg

from emulon.certify.checker import canonical
from emulon.cli.data import DescentOptions
from emulon.cli.options import BadUsage, Positive, shown
from emulon.cli.rows import read_rows
from emulon.core.errors import EmulonError
from emulon.core.files import make_folder, write_atomically
from emulon.identification.loading import is_run, load_object
from emulon.interpreter import Interpreter, save
from emulon.interpreter.certificate_file import certificate_of
from emulon.networks import compile_network, save_network
from emulon.report.terminal import say
from emulon.run import algorithm_named, algorithm_with, interpreter_for, kind_of, program_for, require_taken
from emulon.tasks import RegressionTask
from emulon.training import RunFolder

# Prompts of its own task on which a learner's ranges are seen.
PROMPTS = 1024
EXAMPLES = """examples:
  emulon compile lasso --data diabetes --out files           interpreter.safetensors and program.safetensors
  emulon compile runs/small --out files                      a trained learner, ranges from prompts of its own task
  emulon compile mine.py:network --data x.csv --out files    a torch module or an MLP of scikit-learn
  emulon compile mine.py:network --domain 3 --out files      for every input with |x| up to 3
  emulon compile fitted.skops --data x.csv --out files       an MLP of scikit-learn that skops has saved
A network is written as files/network.safetensors. emulon show tells what is in the files, and emulon exec runs them."""


@dataclass(frozen=True, kw_only=True)
class Options(DescentOptions):
    """Write an interpreter and a program (an algorithm or a network as its prompt) as files.

    For a network --data has inputs to see ranges on, a row each: .csv (a line of names first), .npy or .safetensors.
    """

    what: Positional[Annotated[str, arg(metavar="WHAT")]]
    """an algorithm, as emulon run names it; or a network: a run folder, FILE.skops, or module:name (file.py:name) of a
    torch module or a fitted MLP of scikit-learn"""
    out: Annotated[Path, arg(metavar="DIR")]
    """folder for the two files"""
    certificate: bool = False
    """of an algorithm: also certificate.json, which holds every number of both files, for emulon check"""
    domain: Annotated[Positive | None, shown("BOUND")] = None
    """of a network: a bound on |x| instead of data"""


def main(options: Options) -> int:
    return _network(options) if is_network(options.what) else _algorithm(options)


def is_network(what: str) -> bool:
    """Whether this names a network, not an algorithm: a path, or module:name."""
    return ":" in what or "/" in what or what.endswith((".safetensors", ".skops")) or Path(what).exists()


def _algorithm(options: Options) -> int:
    if options.domain is not None:
        raise BadUsage(f"--domain is for networks, and {options.what} is none")
    named = algorithm_named(options.what)
    require_taken([named], options.settings)
    make_folder(options.out)
    algorithm = algorithm_with(named, options.steps, options.settings)
    program = program_for(algorithm, options.load(kind_of(named)), options.tolerance, options.margin or 1.0)
    interpreter = interpreter_for([program])
    files = [options.out / "interpreter.safetensors", options.out / "program.safetensors"]
    save(interpreter, files[0])
    save(program, files[1])
    options.note_tolerance(program)
    if options.certificate:
        proof = certificate_of(program, interpreter, {"program": files[1], "interpreter": files[0]})
        files.append(options.out / "certificate.json")
        write_atomically(files[-1], canonical(proof))
    return _finish(options, files, interpreter, interpreter.certificate(program))


def _network(options: Options) -> int:
    if others := options.changed("what", "out", "data", "domain", "tolerance", "margin"):
        raise BadUsage(f"{others[0]} is for algorithms, and {options.what} is a network")
    model, data = _with_data(options)
    make_folder(options.out)
    margin = 0.25 if options.margin is None else options.margin - 1
    program = compile_network(model, options.domain, options.tolerance or 1e-9, data=data, margin=margin)
    interpreter = Interpreter.fitting(program)
    files = [options.out / "interpreter.safetensors", options.out / "network.safetensors"]
    save(interpreter, files[0])
    save_network(program, files[1])
    say(f"{len(program.phases)} phases")
    return _finish(options, files, interpreter, program.certificate)


def _finish(options: Options, files: list[Path], interpreter: Interpreter, certificate: Any) -> int:
    say(*files, f"interpreter sha256 {interpreter.sha256}", f"certificate {certificate}")
    names = [str(file) for file in files]
    return options.finish({"files": names, "interpreter sha256": interpreter.sha256, "certificate": str(certificate)})


def _with_data(options: Options) -> tuple[Any, Tensor | None]:
    """The network, and the data that show its ranges, if any."""
    if options.data is not None and options.domain is not None:
        raise BadUsage("give --data or --domain, not both")
    data = None if options.data is None else read_rows(Path(options.data))
    model = load_object(options.what)
    if data is None and options.domain is None:
        if not is_run(Path(options.what)):
            raise BadUsage("give --data FILE to see ranges on, or --domain BOUND")
        data = _own_prompts(Path(options.what), model)
    return model, data


def _own_prompts(folder: Path, learner: Any) -> Tensor:
    """Prompts of the task that a learner was trained on."""
    task = RunFolder(folder).config().make_task()
    if not isinstance(task, RegressionTask):
        raise EmulonError(f"{folder} was not trained on a regression; give --data FILE with its inputs")
    drawn = task.held_out(0, PROMPTS, (learner.tokens + 1) // 2)
    prompts: Tensor = learner._prompt(drawn.xs, drawn.ys[:, :-1]).double()
    return prompts
