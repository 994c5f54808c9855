"""What is interrogated, from its name on the command line: the thing, and the task that suits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulon.interpreter import Program, load_program
from emulon.interrogate.domain_task import DomainTask
from emulon.interrogate.learner_task import as_task, read_task
from emulon.interrogate.task import LinearTask, Task
from emulon.predictor import load_object, register_loader
from emulon.training import RunFolder, load_learner


@dataclass(frozen=True)
class Subject:
    name: str
    thing: Any
    task: Task


def load_subject(target: str, task: str | None = None) -> Subject:
    """A run folder, a program file, or module:name, with the task given, or with its own."""
    thing = load_object(target)
    return Subject(target, thing, own_task(target, thing) if task is None else read_task(task))


def own_task(target: str, thing: Any) -> Task:
    """A run's own task; data in a program's domain; linear functions of a machine's features, or of 8."""
    if is_run(Path(target)):
        return as_task(RunFolder(Path(target)).config().make_task())
    if isinstance(thing, Program):
        return DomainTask(thing)
    prompt = getattr(getattr(thing, "program", None), "prompt", None)
    return LinearTask(getattr(prompt, "features", 8))


def is_run(path: Path) -> bool:
    return RunFolder(path).config_file.is_file()


register_loader(is_run, lambda path: load_learner(path)[0])
register_loader(lambda path: path.is_file() and path.suffix == ".safetensors", load_program)
