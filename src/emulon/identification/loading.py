"""Open what a name stands for, a run folder, program file, checkpoint or module:name, and the task that suits it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulon.core.errors import EmulonError
from emulon.core.predictor import NotAPredictor, Predictor, is_wrapper, takes
from emulon.identification.adapters import TextPredictor, adapt, is_checkpoint, load_checkpoint
from emulon.interpreter import Program, load_program
from emulon.planted.files import is_planted
from emulon.planted.files import load as load_planted
from emulon.planted.lens import WrappedModel
from emulon.planted.model import PlantedModel
from emulon.tasks import TASKS, Linear, RegressionTask, Task, read_task
from emulon.tasks.task import FEATURES
from emulon.training import RunFolder, load_learner

# skops trusts types of numpy, scipy and scikit-learn; but not the optimiser that an MLP was fitted with.
OPTIMISERS = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]


class BadSkops(EmulonError):
    """A skops file that cannot be read, that holds types which are not trusted, or that needs skops to be installed.

    Cure: `skops.io.dump(fitted, "FILE.skops")` writes one; what is of a class of your own is given as `file.py:name`.
    """


def load_skops(path: Path) -> Any:
    """The estimator, made of trusted types alone."""
    try:
        from skops import io
    except ImportError as missing:
        raise BadSkops(f"{path} needs skops; install it with: pip install 'emulon[skops]'") from missing
    try:
        foreign = sorted(set(io.get_untrusted_types(file=path)) - set(OPTIMISERS))
        loaded = None if foreign else io.load(path, trusted=OPTIMISERS)
    except Exception as error:  # whatever somebody's file makes of skops
        why = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise BadSkops(f"{path} cannot be read as a skops file ({why}); write it with skops.io.dump") from None
    if foreign:
        raise BadSkops(f"{path} holds {', '.join(foreign[:3])}, which is not trusted; give it as file.py:name instead")
    return loaded


@dataclass(frozen=True)
class Loader:
    """One kind of file or folder: which paths are of this kind, what is there, and the task that belongs to it."""

    accepts: Callable[[Path], bool]
    load: Callable[[Path], Any]
    task: Callable[[Path, Any], Task] | None = None


@dataclass(frozen=True)
class Subject:
    """What is analysed, and on which data."""

    thing: Any
    task: RegressionTask


def is_run(path: Path) -> bool:
    return RunFolder(path).config_file.is_file()


# The first that accepts a path reads it; append to it to make more kinds readable.
LOADERS = [
    Loader(is_planted, load_planted, lambda path, planted: planted.task),
    Loader(is_checkpoint, load_checkpoint),
    Loader(is_run, lambda path: load_learner(path)[0], lambda path, learner: RunFolder(path).config().make_task()),
    Loader(lambda path: path.is_file() and path.suffix == ".safetensors", load_program),
    Loader(lambda path: path.is_file() and path.suffix == ".skops", load_skops),
]


def load_predictor(target: str | Path, *, loops: int | None = None) -> Predictor:
    """`load_object`, behind the one call."""
    return adapt(load_object(target), loops=loops)


def load_subject(target: str, task: str | None = None) -> Subject:
    """What `load_object` gives, with the task given, or with its own."""
    thing = load_object(target)
    chosen = own_task(target, thing) if task is None else read_task(task)
    if not isinstance(chosen, RegressionTask):
        known = ", ".join(name for name, one in TASKS.items() if issubclass(one, RegressionTask))
        raise EmulonError(f"{type(chosen).__name__} does not ask for a y from an x; the tasks that do are {known}")
    return Subject(thing, chosen)


def own_task(target: str | Path, thing: Any) -> Task:
    """The task of a run or planted model, or linear functions of a machine's features, of 8
    otherwise (2 for a language model)."""
    loader = _loader(Path(target))
    if loader is not None and loader.task is not None:
        return loader.task(Path(target), thing)
    if isinstance(thing, Program):
        raise EmulonError(
            f"{target} is a program, which says itself what it runs (emulon show); --task names data that it takes"
        )
    if isinstance(thing, PlantedModel | WrappedModel):
        return thing.task
    sized = thing if isinstance(thing, TextPredictor) else getattr(getattr(thing, "program", None), "prompt", None)
    return Linear(getattr(sized, "features", FEATURES))


def load_object(target: str | Path) -> Any:
    """A run folder, checkpoint or program file through its loader, or what `module:name` (or `file.py:name`) is called.

    A class, or a function without required parameters, is called: it makes the predictor.
    """
    path = Path(target)
    if loader := _loader(path):
        return loader.load(path)
    if path.exists():
        kind = "folder" if path.is_dir() else "file"
        raise NotAPredictor(f"{path} is a {kind} that nothing here can read: neither a run, a checkpoint nor a program")
    module, _, name = str(target).rpartition(":")
    if not module or not name:
        raise NotAPredictor(
            f"{target} is neither a run folder, nor a checkpoint's, nor a program file, nor module:function"
        )
    try:
        thing: Any = load_module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
    except Exception as error:  # whatever a module does when it is imported
        raise NotAPredictor(f"{target} cannot be loaded: {type(error).__name__}: {error}") from error
    makes = inspect.isfunction(thing) or inspect.isclass(thing)
    made = thing() if makes and takes(thing, 0) else thing
    return adapt(made) if is_wrapper(made) else made


def _loader(path: Path) -> Loader | None:
    return next((loader for loader in LOADERS if path.exists() and loader.accepts(path)), None)


def load_module(name: str) -> Any:
    """A module by its name in Python, or from a file."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not Python source")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their own module up
    spec.loader.exec_module(module)
    return module
