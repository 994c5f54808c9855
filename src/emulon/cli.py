"""The command line. Every refusal is one line on stderr and exit code 2."""

from __future__ import annotations

import argparse
import difflib
import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from rich.table import Table

    from emulon.experiments.data import Data
    from emulon.experiments.run import Job
    from emulon.interpreter import Run

# Subcommands of other parts, each with a `command` module: listed where that module is there.
ELSEWHERE = {
    "train": ("report.train", "main", "train a transformer that has to find an algorithm itself"),
    "identify": ("report.identify", "main", "say which algorithm an in-context learner runs"),
    "probe": ("interrogate.command", "probe_main", "look for an algorithm's quantities inside a learner"),
    "reproduce": ("report.reproduce", "main", "run the papers' claims and compare the numbers"),
}
EXAMPLES = {
    "": """examples:
  emulon run                                   every regression algorithm on the diabetes data, with a report
  emulon run ridge lasso --data wine.csv --target quality
  emulon compile ridge --out files             the interpreter and the prompt as files
  emulon exec files/interpreter.safetensors files/program.safetensors
  emulon approximate "tanh(5*t)" -1 1          one softmax as a function, with a proof""",
    "run": """examples:
  emulon run                                   every regression algorithm on diabetes
  emulon run --data breast_cancer              every classifier
  emulon run ridge huber --data ames --features 20
  emulon run --data houses.csv --target price --report houses-report
  emulon run ridge --steps 5000                nearer to scikit-learn's own solution""",
    "compile": """example:
  emulon compile lasso --data diabetes --out files
writes files/interpreter.safetensors and files/program.safetensors; emulon exec runs them.""",
    "exec": """example:
  emulon exec files/interpreter.safetensors files/program.safetensors --data diabetes --out weights.csv
The data, target, features and seed must be those of emulon compile; the weights are then those of emulon run,
to the bit.""",
    "show": """example:
  emulon compile ridge --out files && emulon show files/program.safetensors""",
    "approximate": """example:
  emulon approximate "Max(0, t)" -4 4 --tolerance 1e-6
The expression is sympy's, in t. A negative bound that starts with a minus sign is fine.""",
    "bench": """example:
  emulon bench interpreter                     cost of a step, and how it grows with ten times the samples""",
}


class Usage(ValueError):
    """A command line that does not parse."""


class Parser(argparse.ArgumentParser):
    """argparse that refuses in one line, naming the nearest flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            word = message.split()[2]
            message = f"unknown option {word}{_nearest(word.partition('=')[0], self._flags())}"
        elif found := re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message):
            names = re.findall(r"\w+", found[2])
            message = f"unknown command {found[1]!r}{_nearest(found[1], names)}; there are {', '.join(names)}"
        raise Usage(f"{message} (see {self.prog} --help)")

    def _flags(self) -> list[str]:
        subparsers = [a for a in self._actions if isinstance(a, argparse._SubParsersAction)]
        inner = [flag for group in subparsers for parser in group.choices.values() for flag in parser._flags()]
        return [*self._option_string_actions, *inner]


def _nearest(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, words, 1)
    return f"; did you mean {close[0]}?" if close else ""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in _elsewhere():
            module, function, _ = ELSEWHERE[words[0]]
            return int(getattr(importlib.import_module(f"emulon.{module}"), function)(words[1:]) or 0)
        parser = _parser()
        arguments = parser.parse_args(words)
        if arguments.command is None:
            parser.print_help()
            return 0
        arguments.act(arguments)
    except (ValueError, OSError, MemoryError) as error:
        if not _is_refusal(error):
            raise
        print(f"emulon: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("emulon: stopped", file=sys.stderr)
        return 130
    return 0


def _is_refusal(error: Exception) -> bool:
    """Errors meant for the user; anything else is a bug and keeps its traceback."""
    from emulon.errors import EmulonError

    return isinstance(error, (Usage, EmulonError, OSError, MemoryError))


def _elsewhere() -> dict[str, str]:
    here = Path(__file__).parent
    # Looking for the file is quick; asking the import system would import the packages around it.
    return {
        name: what
        for name, (module, _, what) in ELSEWHERE.items()
        if here.joinpath(*module.split(".")).with_suffix(".py").exists()
    }


def _parser() -> Parser:
    parser = Parser(
        prog="emulon",
        description="Learning algorithms compiled into one frozen softmax transformer, with a proved error.",
        epilog=EXAMPLES[""],
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def command(name: str, act: Any, what: str) -> Parser:
        added = commands.add_parser(
            name, help=what, description=what[0].upper() + what[1:] + ".", epilog=EXAMPLES[name]
        )
        added.set_defaults(act=act)
        return added

    run = command("run", run_command, "run algorithms on data through one frozen interpreter, and compare")
    run.add_argument("algorithms", nargs="*", metavar="ALGORITHM", help="default: all that suit the data")
    _data_options(run)
    _compile_options(run)
    run.add_argument(
        "--report", type=Path, default=Path("report"), metavar="DIR", help="HTML report (default ./report)"
    )
    run.add_argument(
        "--path", choices=("fast", "faithful"), default="fast", help="faithful: every token, head and score"
    )

    build = command("compile", compile_command, "write an interpreter and a program (the prompt) as files")
    build.add_argument("algorithm", metavar="ALGORITHM")
    _data_options(build)
    _compile_options(build)
    build.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the two files")

    execute = command("exec", exec_command, "run a program's file on an interpreter's file")
    execute.add_argument("interpreter", type=Path, metavar="INTERPRETER")
    execute.add_argument("program", type=Path, metavar="PROGRAM")
    _data_options(execute)
    execute.add_argument("--path", choices=("fast", "faithful"), default="fast")
    execute.add_argument("--out", type=Path, metavar="FILE.csv", help="save the weights here, to the last bit")

    show = command("show", show_command, "show what is in a program's prompt, row by row")
    show.add_argument("program", type=Path, metavar="PROGRAM")

    scalar = command(
        "approximate", approximate_command, "make one softmax act as a function of one number, with a proof"
    )
    scalar.add_argument("expression", metavar="EXPR", help='in t, as "tanh(5*t)"')
    scalar.add_argument("lo", type=float, metavar="LO")
    scalar.add_argument("hi", type=float, metavar="HI")
    scalar.add_argument("--tolerance", type=_positive, default=1e-8, help="largest error allowed (default 1e-8)")

    timer = command("bench", bench_command, "measure how long things take here, as ratios within one run")
    timer.add_argument("names", nargs="*", metavar="BENCHMARK", help="interpreter, machine, identify (default: all)")
    timer.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")

    for name, what in _elsewhere().items():
        commands.add_parser(name, help=what, add_help=False)
    return parser


def _data_options(parser: Parser) -> None:
    parser.add_argument(
        "--data", default="diabetes", metavar="DATA", help="diabetes, breast_cancer, wine, ames or FILE.csv"
    )
    parser.add_argument("--target", metavar="COLUMN", help="the column of FILE.csv to predict")
    parser.add_argument(
        "--features", type=int, metavar="K", help="keep the K most correlated with the target (ames: 20; 0: all)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the split into training and held-out rows (default 0)")


def _compile_options(parser: Parser) -> None:
    parser.add_argument("--steps", type=_count, default=200, help="steps of gradient descent (default 200)")
    parser.add_argument("--tolerance", type=_positive, default=1e-8, help="on the final weights (default 1e-8)")


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number, 1 or more")
    return int(text)


def _load(arguments: argparse.Namespace, task: Any = None) -> Data:
    from emulon.experiments.data import BadData, load

    if not 0 <= arguments.seed < 2**32:
        raise BadData(f"--seed must be in 0 … 2³²−1, got {arguments.seed}")
    data = load(arguments.data, arguments.target, task=task, features=arguments.features, seed=arguments.seed)
    for note in data.notes:
        print(f"note: {note}", file=sys.stderr)
    return data


def run_command(arguments: argparse.Namespace) -> None:
    from emulon.experiments.run import algorithm_named, task_asked, work
    from emulon.progress import progress_bar
    from emulon.report import require_writable, write

    kinds = [algorithm_named(name) for name in dict.fromkeys(arguments.algorithms)]
    data = _load(arguments, task_asked(kinds))
    require_writable(arguments.report)  # now, not after a minute's work
    with progress_bar() as told:
        job = work(
            kinds, data, steps=arguments.steps, tolerance=arguments.tolerance, path=arguments.path, progress=told
        )
        told("drawing the report", 1.0)
        page = write(job, arguments.report)
        lines = [line for result in job.results for line in _weights(result.run, data)]
        _save_weights(lines, arguments.report / "weights.csv")
    console = _console()
    console.print(results_table(job))
    for line in job.left_out:
        print(f"left out {line}")
    before, after = job.sha256
    print(f"interpreter sha256 before {before}")
    print(f"                   after  {after} ({'the same' if before == after else 'CHANGED'})")
    print(f"report {page}, weights {arguments.report / 'weights.csv'}")


def results_table(job: Job) -> Table:
    from rich.table import Table

    data = job.data
    measure = "R²" if data.task == "regression" else "accuracy"
    rows, features = data.x_train.shape
    table = Table(
        title=f"{data.name}: {rows} training rows, {len(data.x_test)} held out, {features} features, no intercept",
        caption="error, bound: of the final weights, sup-norm, against the exact algorithm in float64. "
        "to sklearn: distance to scikit-learn's solution of the same objective",
    )
    table.add_column("algorithm", no_wrap=True)
    for name in ("steps", "error", "bound", "to sklearn", measure, "sklearn's", "in band", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in job.results:
        cells = [f"{result.error:.1e}", f"{result.bound:.1e}"]
        cells += ["–" if result.their_distance is None else f"{result.their_distance:.1e}", f"{result.score:.4f}"]
        cells += ["–" if result.their_score is None else f"{result.their_score:.4f}"]
        band = "–" if not result.run.certificate.bands else "yes" if result.run.entered_band else "no"
        table.add_row(result.name, str(result.run.program.steps), *cells, band, f"{result.seconds:.1f}")
    for line in job.left_out:
        table.add_row(line.partition(":")[0], *["–"] * 8)
    return table


def _weights(run: Run, data: Data) -> list[tuple[str, str, float]]:
    """(program, feature, weight), class by class where there are several."""
    rows = run.weights.reshape(-1, run.weights.shape[-1]).tolist()
    classes = [f" [{name}]" for name in data.classes] if len(rows) > 1 else [""]
    return [
        (run.program.name, f"{feature}{name}", weight)
        for row, name in zip(rows, classes, strict=True)
        for feature, weight in zip(data.features, row, strict=True)
    ]


def _save_weights(lines: list[tuple[str, str, float]], path: Path) -> None:
    """To the last bit: repr of a float reads back as the same float."""
    import csv

    from emulon.errors import EmulonError

    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("program", "feature", "weight"), *((p, f, repr(w)) for p, f, w in lines)])
    except OSError as error:
        raise EmulonError(f"cannot write {path}: {error.strerror}; choose another place") from None


def compile_command(arguments: argparse.Namespace) -> None:
    from emulon.errors import EmulonError
    from emulon.experiments.run import algorithm_named, interpreter_for, program_for, task_of
    from emulon.interpreter import save

    kind = algorithm_named(arguments.algorithm)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmulonError(f"cannot make the folder {arguments.out}: {error.strerror}; choose another --out") from None
    program = program_for(kind, _load(arguments, task_of(kind)), arguments.steps, arguments.tolerance)
    interpreter = interpreter_for([program])
    for thing, name in ((interpreter, "interpreter"), (program, "program")):
        save(thing, arguments.out / f"{name}.safetensors")
        print(arguments.out / f"{name}.safetensors")
    print(f"interpreter sha256 {interpreter.sha256}")
    print(f"certificate {program.certificate_on(interpreter.line)}")


def exec_command(arguments: argparse.Namespace) -> None:
    from emulon.errors import BadShape, EmulonError, OutOfDomain
    from emulon.experiments.run import held_out_score, run_program
    from emulon.interpreter import load_interpreter, load_program

    interpreter, program = load_interpreter(arguments.interpreter), load_program(arguments.program)
    data = _load(arguments, program.loss.link.task)
    try:
        run = run_program(interpreter, program, data, arguments.path)
    except (BadShape, OutOfDomain) as error:
        asked = "give the --data, --target, --features and --seed that the program was compiled with"
        raise EmulonError(f"the program does not fit this data or interpreter: {error}; {asked}") from None
    lines = _weights(run, data)
    print(f"{program.name}, {program.steps} steps; held-out score {held_out_score(run, data):.4f}")
    for _, feature, weight in lines:
        print(f"{weight:+.17g}  {feature}")
    print(f"certificate {run.certificate}")
    print(f"interpreter sha256 before {run.sha256[0]}\n                   after  {run.sha256[1]}")
    if arguments.out is not None:
        _save_weights(lines, arguments.out)
        print(arguments.out)


def show_command(arguments: argparse.Namespace) -> None:
    from rich.table import Table

    from emulon.interpreter import load_program
    from emulon.report.anatomy import anatomy, facts, phases

    program = load_program(arguments.program)
    console = _console()
    for name, what in facts(program):
        console.print(f"[bold]{name}[/bold]  {what}", highlight=False)
    for phase in phases(program):
        table = Table(title=f"the {phase.name} phase's prompt: {phase.slots.width} rows × {phase.tokens} tokens")
        for column in ("rows", "slot", "tokens", "holds", "scale", "largest"):
            table.add_column(column, justify="right" if column in ("rows", "largest") else "left")
        for row in anatomy(program, phase):
            table.add_row(row.rows, row.slot, row.tokens, row.holds, row.scale, f"{row.largest:.4g}")
        console.print(table)


def approximate_command(arguments: argparse.Namespace) -> None:
    import torch
    from rich.table import Table

    from emulon.approximation import approximate

    found = approximate(arguments.expression, (arguments.lo, arguments.hi), tolerance=arguments.tolerance)
    table = Table(title=f"{arguments.expression} by one softmax over {found.keys} keys ({found.grid.way})")
    for column in ("t", "function", "softmax", "difference"):
        table.add_column(column, justify="right")
    points = torch.linspace(arguments.lo, arguments.hi, 9, dtype=torch.float64)
    for t, exact, ours in zip(points, found.function(points), found(points), strict=True):
        table.add_row(f"{t:.6g}", f"{exact:.12g}", f"{ours:.12g}", f"{ours - exact:+.1e}")
    _console().print(table)
    print(f"certificate {found.certificate}")


def bench_command(arguments: argparse.Namespace) -> None:
    import torch
    from rich.table import Table

    from emulon.experiments.bench import bench

    table = Table(title=f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for column in ("benchmark", "what", "milliseconds", "ratio"):
        table.add_column(column, justify="right" if column in ("milliseconds", "ratio") else "left")
    for timing in bench(arguments.names, arguments.json):
        table.add_row(timing.benchmark, timing.what, f"{1e3 * timing.seconds:.3g}", f"{timing.ratio:.3g}")
    _console().print(table)


def _console() -> Any:
    """A pipe has no width: do not squeeze the table into eighty columns there."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=140)


if __name__ == "__main__":
    sys.exit(main())
