"""Open what a name stands for, a run folder, program file, checkpoint or module:name, and the task that suits it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError, OutOfDomain
from emulon.core.predictor import NotAPredictor, Predictor, is_wrapper, required_parameters
from emulon.identification.adapters import adapt
from emulon.identification.checkpoints import (
    TextPredictor,
    is_checkpoint,
    is_public_checkpoint,
    load_checkpoint,
    load_public_checkpoint,
)
from emulon.interpreter import Program, load_program
from emulon.planted.files import is_planted
from emulon.planted.files import load as load_planted
from emulon.planted.lens import WrappedModel
from emulon.planted.model import PlantedModel
from emulon.tasks import TASKS, Linear, RegressionTask, Task, read_task
from emulon.tasks.task import FEATURES, Datasets, Inputs, Values, normal, uniform
from emulon.training import RunFolder, load_learner

# The eigenvalues of XᵀX/n spread over a factor of this, where the domain allows: enough to tell algorithms apart, and
# little enough that a hundred steps of descent converge.
SPREAD = 10.0
# Of the bounds on y, w and residuals, datasets use this part.
USED = 0.9
# Nothing lies on the domain's very edge, where rounding would decide.
EDGE = 1e-9
# So many datasets are drawn for each one that is wanted: those outside the domain are left out.
DRAWS = 4


@dataclass(frozen=True)
class DomainTask(RegressionTask):
    """y = w·x + noise·ε with w ~ N(0, I), all of it scaled into a program's domain.

    X = √n·U·√Λ·Vᵀ with random orthonormal U and V; the eigenvalues Λ of XᵀX/n are log-uniform between a tenth of the
    largest that the program's step size suits (step·(curvature·λ + l2) ≤ 1) and that largest one, and above the least
    that it was compiled for. x shrinks until |x| is in the domain, and all the y of a batch until the path of descent
    is: ‖w_t‖ ≤ 2‖w*‖ on it, w* being the least-squares solution. Those outside the domain are left out, so that this
    cannot be sampled within a CUDA graph, and it has no name to be trained on by.
    """

    program: Program
    noise: float = 0.3
    features: int = field(init=False)
    points: int = field(init=False)

    def __post_init__(self) -> None:
        if not self.program.loss.link.any_units:
            raise EmulonError(
                f"{self.program.name} learns from classes or counts, and what identify knows are regression "
                "algorithms; ask about a program of one of those"
            )
        domain = self.program.domain
        object.__setattr__(self, "features", domain.features)
        object.__setattr__(self, "points", domain.samples + 1)
        super().__post_init__()

    @property
    def eigenvalues(self) -> tuple[float, float]:
        """The range of λ(XᵀX/n) to draw from."""
        program = self.program
        curvature = program.loss.curvature
        high = program.plan.largest_eigenvalue
        if curvature < math.inf:
            high = min(high, (1 / program.step_size - program.descent.l2) / curvature)
        if high <= program.plan.strong_convexity:
            raise OutOfDomain(
                f"{program.name} was compiled for λ(XᵀX/n) ≥ {program.plan.strong_convexity:.4g} with steps that suit "
                f"at most {high:.4g}: no dataset has both; compile it with smaller steps, or for a Domain"
            )
        return max(program.plan.strong_convexity, high / SPREAD), high * (1 - EDGE)

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        return (xs @ normal(generator, xs.shape[0], self.features, 1, dtype=xs.dtype)).squeeze(-1)

    def datasets(
        self,
        generator: torch.Generator,
        batch: int,
        *,
        points: int | None = None,
        dtype: torch.dtype = torch.float32,
        live: Float[Tensor, " features"] | None = None,
    ) -> Datasets:
        """The first `samples` points are what the program reads; those after it are queries, as large as the others."""
        if live is not None:
            raise EmulonError("a program reads all its features: there is no curriculum over a program's domain")
        points = self.points if points is None else points
        xs = self._inputs(generator, batch)
        extra, reach = max(0, points - xs.shape[1]), self.program.domain.x
        size = xs.square().mean(dim=(1, 2), keepdim=True).sqrt()
        queries = (size * _normal(generator, batch, extra, self.features)).clamp(-reach, reach)
        every = torch.cat([xs, queries], dim=1)
        truth = self.values(generator, every)
        ys = truth + self.noise * truth.std() * _normal(generator, *truth.shape)
        scale = self._scale(xs, ys[:, : xs.shape[1]])
        drawn = (part[:, :points].to(dtype) for part in (every, ys * scale, truth * scale))
        return Datasets(*drawn)

    def _inputs(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch samples features"]:
        domain, (low, high) = self.program.domain, self.eigenvalues
        n, rank = domain.samples, min(domain.samples, domain.features)
        tries = DRAWS * batch
        spread = uniform(generator, tries, 1, rank, dtype=torch.float64)
        spectrum = low * (high / low) ** spread
        left, right = (torch.linalg.qr(_normal(generator, tries, size, rank))[0] for size in (n, domain.features))
        xs: Tensor = math.sqrt(n) * (left * spectrum.sqrt()) @ right.mT
        shrink = ((1 - EDGE) * domain.x / xs.abs().amax(dim=(1, 2))).clamp(max=1.0)
        inside = shrink.square() * spectrum.amin(dim=(1, 2)) >= self.program.plan.strong_convexity * (1 + EDGE)
        if inside.sum() < batch:
            raise OutOfDomain(
                f"of {tries} datasets drawn for {self.program.name} only {int(inside.sum())} have |x| ≤ {domain.x:.4g} "
                f"and λ(XᵀX/n) ≥ {self.program.plan.strong_convexity:.4g}, as compiled; compile it for a "
                "Domain, not data"
            )
        return (xs * shrink[:, None, None])[inside][:batch]

    def _scale(self, xs: Tensor, ys: Tensor) -> float:
        """The factor on y that brings a whole batch into the domain, as much of it as possible."""
        domain = self.program.domain
        longest = 2 * (torch.linalg.pinv(xs) @ ys.unsqueeze(-1)).norm(dim=(1, 2)).max()
        reach = ys.abs().max() + xs.norm(dim=-1).max() * longest
        used = torch.stack(
            [ys.abs().max() / domain.y, longest / domain.w, reach / min(domain.residual, domain.absolute)]
        )
        return USED / used.max().item()

    def __str__(self) -> str:
        domain, (low, high) = self.program.domain, self.eigenvalues
        sizes = f"{domain.samples} samples of {domain.features} features, |x| ≤ {domain.x:.4g}"
        return f"linear functions in the program's domain: {sizes}, λ(XᵀX/n) in {low:.3g} … {high:.3g}"


def _normal(generator: torch.Generator, *size: int) -> Float[Tensor, "*size"]:
    return normal(generator, *size, dtype=torch.float64)


# skops makes objects of types that it trusts (numpy's, scipy's, scikit-learn's own) and refuses all others. An MLP also
# keeps the optimiser that it was fitted with, which skops does not know: the two are named here.
OPTIMISERS = tuple(
    f"sklearn.neural_network._stochastic_optimizers.{name}" for name in ("AdamOptimizer", "SGDOptimizer")
)


class BadSkops(EmulonError):
    """A skops file that cannot be read, that holds types which are not trusted, or that needs skops to be installed.

    Cure: `skops.io.dump(fitted, "FILE.skops")` writes one; what is of a class of your own is given as `file.py:name`.
    """


def is_skops(path: Path) -> bool:
    return path.is_file() and path.suffix == ".skops"


def load_skops(path: Path) -> Any:
    """The estimator, made of trusted types alone."""
    try:
        from skops import io
    except ImportError as missing:
        raise BadSkops(f"{path} needs skops; install it with: pip install 'emulon[skops]'") from missing
    try:
        foreign = sorted(set(io.get_untrusted_types(file=path)) - set(OPTIMISERS))
        loaded = None if foreign else io.load(path, trusted=list(OPTIMISERS))
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

    name: str
    thing: Any
    task: RegressionTask


def is_run(path: Path) -> bool:
    return RunFolder(path).config_file.is_file()


def is_program(path: Path) -> bool:
    return path.is_file() and path.suffix == ".safetensors"


# The first that accepts a path reads it; append to it to make more kinds readable.
LOADERS = [
    Loader(is_planted, load_planted, lambda path, planted: planted.task),
    Loader(is_public_checkpoint, load_public_checkpoint, lambda path, learner: learner.task),
    Loader(is_checkpoint, load_checkpoint),
    Loader(is_run, lambda path: load_learner(path)[0], lambda path, learner: RunFolder(path).config().make_task()),
    Loader(is_program, load_program),
    Loader(is_skops, load_skops),
]


def load_predictor(target: str | Path, *, loops: int | None = None) -> Predictor:
    """`load_object`, behind the one call."""
    return adapt(load_object(target), loops=loops)


def load_subject(target: str, task: str | None = None) -> Subject:
    """A run folder, a program file, or module:name, with the task given, or with its own."""
    thing = load_object(target)
    chosen = own_task(target, thing) if task is None else read_task(task)
    if not isinstance(chosen, RegressionTask):
        known = ", ".join(name for name, one in TASKS.items() if issubclass(one, RegressionTask))
        raise EmulonError(
            f"{type(chosen).__name__} does not ask for a y from an x, so no regression algorithm can be compared with "
            f"it; the tasks that do are {known}"
        )
    return Subject(target, thing, chosen)


def own_task(target: str | Path, thing: Any) -> Task:
    """The task of a run or planted model, data in a program's domain, or linear functions of a machine's features, of 8
    otherwise (2 for a language model)."""
    loader = _loader(Path(target))
    if loader is not None and loader.task is not None:
        return loader.task(Path(target), thing)
    if isinstance(thing, Program):
        return DomainTask(thing)
    if isinstance(thing, TextPredictor):
        return Linear(thing.features)
    if isinstance(thing, PlantedModel | WrappedModel):
        return thing.task
    prompt = getattr(getattr(thing, "program", None), "prompt", None)
    return Linear(getattr(prompt, "features", FEATURES))


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
    module, colon, name = str(target).rpartition(":")
    if not colon or not module or not name:
        raise NotAPredictor(
            f"{target} is neither a run folder, nor a checkpoint's, nor a program file, nor module:function"
        )
    try:
        thing: Any = _module(module)
        for part in name.split("."):
            thing = getattr(thing, part)
    except Exception as error:  # whatever a module does when it is imported
        raise NotAPredictor(f"{target} cannot be loaded: {type(error).__name__}: {error}") from error
    makes = inspect.isfunction(thing) or inspect.isclass(thing)
    made = thing() if makes and not required_parameters(thing) else thing
    return adapt(made) if is_wrapper(made) else made


def _loader(path: Path) -> Loader | None:
    return next((loader for loader in LOADERS if path.exists() and loader.accepts(path)), None)


def _module(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    if spec is None or spec.loader is None:
        raise ImportError(f"{name} is not Python source")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
