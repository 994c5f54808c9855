"""Identification: which reference a predictor computes, with intervals; over training, too."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core import Progress, silent
from emulon.core.errors import EmulonError
from emulon.core.predictor import Predictor
from emulon.identification.adapters import adapt
from emulon.identification.fit import Observations, fit, parameter_interval
from emulon.identification.references import Parameters, Reference, references_for
from emulon.identification.sampling import (
    DATASETS,
    Answers,
    Interval,
    Prefixes,
    Sampling,
    bootstrap_means,
    bounds,
    draw,
    intervals,
)
from emulon.tasks import Linear, RegressionTask
from emulon.tasks.task import FEATURES
from emulon.training import NoRun, RunFolder, load_learner

if TYPE_CHECKING:
    import pandas

NONE, CONSTANT_ANSWER = "none of these", "constant"
# Unexplained above this is far, whatever the references: a tenth of the predictor's variance.
FAR = 0.1
# A predictor that varies less than this, relative to the targets and to its own size, is constant.
CONSTANT = 1e-6
# Unexplained below this is exact: rounding and the last digit of a fitted parameter.
EXACT = 1e-12
# References that differ by less than this, a thousandth of the predictor's deviation, are indistinguishable.
ALIKE = 1e-6
# A reference whose mean is more than so many times the smallest mean is far worse, and neither first nor a tie.
FAR_WORSE = 2.0
# The wide search looks at so many datasets and counts, the end of the search at so many.
FEW, MANY = (8, 5), (64, 12)
# References in a notebook's table.
SHOWN = 8


@dataclass(frozen=True)
class Match:
    """A reference with the parameters that bring it nearest.

    Attributes:
        name: The reference.
        parameters: Fitted on half of the datasets.
        unexplained: Fraction of the predictor that is left, measured on the other half.
        weight: Posterior weight among the references, see `posterior`.
    """

    name: str
    parameters: Parameters
    unexplained: Interval
    weight: float

    def __str__(self) -> str:
        inside = self.written_parameters
        return f"{self.name}({inside})" if inside else self.name

    @property
    def written_parameters(self) -> str:
        """`steps=4, step_size=0.1`, or nothing."""
        return ", ".join(f"{name}={value:.4g}" for name, value in self.parameters.items())


@dataclass(frozen=True)
class Identification:
    """The ranking of the references, and the verdict.

    Attributes:
        ranking: The nearest first.
        ties: References that these datasets do not tell from the nearest; of them the one with the fewest fitted
            parameters comes first.
        limit: How much may be left unexplained for the nearest to be named.
        counts: Numbers of examples that were asked after.
        datasets: How many it was measured on.
        interval: That of the nearest's continuous parameter (`parameter_interval`), None where it has none.
        constant: The answer of a predictor that answers the same to everything, None for any other.
    """

    ranking: tuple[Match, ...]
    ties: tuple[str, ...]
    limit: float
    counts: tuple[int, ...]
    datasets: int
    interval: Interval | None = None
    constant: float | None = None

    @property
    def nearest(self) -> Match:
        return self.ranking[0]

    @property
    def near(self) -> bool:
        """Whether the nearest is near, the upper end of its interval included."""
        return self.nearest.unexplained.high <= self.limit

    @property
    def algorithm(self) -> str:
        """The name of the nearest reference; "constant" or "none of these" where no reference is near."""
        if self.near:
            return self.nearest.name
        return NONE if self.constant is None else CONSTANT_ANSWER

    @property
    def parameters(self) -> Parameters:
        if self.near:
            return self.nearest.parameters
        return {} if self.constant is None else {"value": self.constant}

    def __getitem__(self, name: str) -> Match:
        for match in self.ranking:
            if match.name == name:
                return match
        raise KeyError(f"no reference called {name!r}; there are {[match.name for match in self.ranking]}")

    def to_frame(self) -> pandas.DataFrame:
        """The ranking as a table, the nearest first.

        Returns:
            One row a reference, by its name: fitted parameters, what is left unexplained with its 95 % interval, the
            posterior weight, and whether it ties with the nearest.
        """
        import pandas

        rows = [
            (match.name, match.written_parameters, *dataclasses.astuple(match.unexplained), match.weight)
            for match in self.ranking
        ]
        columns = ["reference", "parameters", "unexplained", "low", "high", "weight"]
        frame = pandas.DataFrame(rows, columns=columns).set_index("reference")
        return frame.assign(ties=frame.index.isin(self.ties))

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, and the nearest references below it."""
        rows = [
            f"<tr><td>{html.escape(str(match))}</td><td>{match.unexplained}</td><td>{match.weight:.3g}</td></tr>"
            for match in self.ranking[:SHOWN]
        ]
        head = "<tr><th>reference</th><th>unexplained [95 %]</th><th>weight</th></tr>"
        return f"<p>{html.escape(str(self))}</p><table>{head}{''.join(rows)}</table>"

    def __str__(self) -> str:
        if not self.near and self.constant is not None:
            return f"constant: the answer is {self.constant:.4g}, whatever the examples and the query"
        if not self.near:
            left = self.nearest.unexplained
            mean = "; the mean of its answers is nearer than all references" if left.value > 1 else ""
            return (
                f"{NONE}: the nearest, {self.nearest}, leaves {left} of the predictor unexplained; "
                f"it would be named up to {self.limit:.3g}{mean}"
            )
        alike = f"; indistinguishable from {', '.join(str(self[name]) for name in self.ties)}" if self.ties else ""
        return f"{self.nearest}: unexplained {self.nearest.unexplained}{alike}"


def identify(
    predictor: object,
    task: RegressionTask | None = None,
    *,
    adapter: Any = None,
    references: Sequence[Reference] | None = None,
    **sampling: Unpack[Sampling],
) -> Identification:
    """Rank the references, by default all that suit the task, by how much of the predictor they leave unexplained.

    Args:
        predictor: Anything that predicts in context, see `adapt`: a function, a module, an estimator, a program, …
        task: Where datasets come from; by default the predictor's own `task`, or linear functions of 8 features (2 for
            a language model).
        adapter: How a module or language model is asked: a layout's name, a tokenizer or a function, see `adapt`.
        references: What it is compared with.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    Returns:
        The ranking and the verdict.
    Raises:
        NotAPredictor: The predictor cannot be asked, or failed.
        OutOfDomain: It answers NaN or infinity.

    Example:
        >>> print(identify(lambda xs, ys, x: ys.mean(dim=-1), datasets=16).algorithm)
        mean target

    Unexplained: the mean over counts n of E(predictor − reference)²/Var(predictor), each n divided by its own variance,
    so that no number of examples drowns the others. A random predictor has 1 left by the best it can be given, zero.
    A constant has no variance to explain: one other than zero is called constant, with its value.
    The verdict is "none of these" when more than `limit` is left: a tenth, or less where the kinds of references lie
    closer together than that: a quarter of the median distance from the nearest to the other kinds. (Squared distance:
    within a quarter of it a predictor is nearer to the one than to the other by the triangle inequality.)
    Ties: OLS is the limit of ridge, of the lasso, of many steps of descent and of Newton's; one neighbour needs no
    weights. References whose distance from the predictor does not differ significantly from the nearest's (`rank`), or
    is as exact, are reported as ties, and the one with the fewest parameters is named.
    Beside the ranking every reference has its posterior weight (`posterior`).
    """
    if (datasets := sampling.get("datasets", DATASETS)) < 4:
        raise EmulonError(f"identify needs at least 4 datasets, half to fit and half to measure; got {datasets}")
    subject = adapt(predictor, adapter)
    task = default_task(predictor, subject) if task is None else task
    prefixes = draw(task, subject, **sampling)
    return _identify(prefixes.answers(subject), prefixes, references or references_for(task))


def default_task(predictor: object, subject: Predictor) -> RegressionTask:
    """A predictor's own task, or linear functions."""
    own = getattr(predictor, "task", None)
    return own if isinstance(own, RegressionTask) else Linear(getattr(subject, "features", FEATURES))


def _identify(answers: Tensor, prefixes: Prefixes, references: Sequence[Reference]) -> Identification:
    half = prefixes.datasets // 2
    observed = Observations(prefixes, answers, variance(answers, prefixes))
    to_fit, to_measure = observed.take(slice(0, half)), observed.take(slice(half, None))
    few, many = (to_fit.take(slice(0, datasets), counts) for datasets, counts in (FEW, MANY))
    fitted = [fit(reference, few, many) for reference in references]
    answered = [reference.predict(to_measure.prefixes, one) for reference, one in zip(references, fitted, strict=True)]
    errors = torch.stack([to_measure.errors(one).mean(dim=1) for one in answered], dim=1)
    order, tied = rank(errors, references)
    ranges, weights = intervals(errors), posterior(errors, references)
    between = [((one - answered[order[0]]).square() / observed.scale).mean().item() for one in answered]
    alike = [references[i].name for i in order[1:] if i in tied or between[i] <= ALIKE]
    matches = tuple(Match(references[i].name, fitted[i], ranges[i], weights[i]) for i in order)
    limit = min(FAR, 0.25 * to_other_kinds(order[0], between, references))
    sure = parameter_interval(references[order[0]], fitted[order[0]], observed)
    constant = answers.mean().item() if answers.var() <= least_variance(answers, prefixes) else None
    return Identification(matches, tuple(alike), limit, prefixes.counts, prefixes.datasets - half, sure, constant)


def variance(answers: Answers, prefixes: Prefixes) -> Float[Tensor, " counts"]:
    """The predictor's variance over datasets at each count; where it has none its mean square, which zero leaves."""
    found, least = answers.var(dim=0), least_variance(answers, prefixes)
    return torch.where(found > least, found, answers.square().mean().clamp(min=least))


def least_variance(answers: Answers, prefixes: Prefixes) -> Float[Tensor, ""]:
    """Answers that vary less are constant."""
    size = torch.maximum(answers.square().mean(), prefixes.ys.square().mean())
    return CONSTANT**2 * size.clamp(min=torch.finfo(torch.float64).tiny)


def rank(errors: Float[Tensor, "datasets references"], references: Sequence[Reference]) -> tuple[list[int], list[int]]:
    """The order of the references, the named one first, and those that tie with it.

    One ill-conditioned dataset can outweigh all others in a mean. So references are compared by the logarithm of what
    they leave on each dataset, where every dataset has the same say, but only those whose mean is not far worse than
    the smallest. What a paired bootstrap of these logarithms does not find farther than the nearest ties with it. Where
    the nearest is exact, what is exact too ties, and nothing else. Of those that tie the one with the fewest parameters
    is named; the others are ordered by their means.
    """
    mean, everyone = errors.mean(dim=0), range(len(references))
    smallest = mean.min()
    if smallest <= EXACT:
        tied = mean <= EXACT
    else:
        logs, able = errors.clamp(min=EXACT).log(), mean <= FAR_WORSE * smallest
        nearest = int(logs.mean(dim=0).masked_fill(~able, math.inf).argmin())
        low, _ = bounds(bootstrap_means(logs - logs[:, nearest : nearest + 1]))
        tied = able & (low <= 0)
    named = min((i for i in everyone if tied[i]), key=lambda i: (references[i].free, i))
    rest = sorted((i for i in everyone if i != named), key=lambda i: mean[i].item())
    return [named, *rest], [i for i in rest if tied[i]]


def posterior(errors: Float[Tensor, "datasets references"], references: Sequence[Reference]) -> list[float]:
    """A weight for each reference, summing to one: exp(−BIC/2), BIC = N·log(mean error) + k·log N (Schwarz 1978).

    N counts datasets, as what is left at different numbers of examples of one dataset goes together; k is the number of
    fitted parameters. The model behind it: answers are the reference's and a Gaussian rest, of a size of its own.
    What is exact is exact: below `EXACT` all are alike, and the parameters alone decide. The weights compare the
    references with each other, and say nothing about whether any of them is near.
    """
    datasets = errors.shape[0]
    free = torch.tensor([float(reference.free) for reference in references], dtype=errors.dtype, device="cpu")
    evidence = datasets * errors.mean(dim=0).clamp(min=EXACT).log() + free * math.log(datasets)
    weights: list[float] = (-0.5 * evidence).softmax(dim=0).tolist()
    return weights


def to_other_kinds(named: int, between: list[float], references: Sequence[Reference]) -> float:
    """The median over the other kinds of how far the nearest of each kind is from the named reference."""
    nearest: dict[str, float] = {}
    for reference, distance in zip(references, between, strict=True):
        if reference.kind != references[named].kind:
            nearest[reference.kind] = min(distance, nearest.get(reference.kind, math.inf))
    return sorted(nearest.values())[len(nearest) // 2] if nearest else math.inf


@dataclass(frozen=True)
class AlgorithmPhase:
    """A learner's algorithm at one place along an axis.

    Attributes:
        axis: What varies, such as "steps" of training or "layers".
        place: How many of them.
        identification: The verdict there.
    """

    axis: str
    place: int
    identification: Identification

    def __str__(self) -> str:
        return f"{self.place:3d}  {self.identification}"

    def as_numbers(self) -> dict[str, Any]:
        """What a figure needs: the verdict, and what every reference leaves unexplained."""
        ranking = [dataclasses.asdict(match) | {"label": str(match)} for match in self.identification.ranking]
        own = {"algorithm": self.identification.algorithm, "limit": self.identification.limit, "ranking": ranking}
        return {"axis": self.axis, "place": self.place, **own}


def over_training(
    run: Path, task: RegressionTask, *, report_progress: Progress = silent, **sampling: Unpack[Sampling]
) -> tuple[AlgorithmPhase, ...]:
    """Identify the learner at every checkpoint that its run has kept, all on the same datasets.

    Args:
        run: The run's folder.
        task: Where datasets come from.
        report_progress: Called with what is done and the share of it.
        **sampling: `seed`, `datasets`, `points`, `fewest` and `counts`, see `Sampling`.
    Raises:
        NoRun: There is no checkpoint.
    """
    steps = RunFolder(run).kept_steps()
    if not steps:
        raise NoRun(f"{run} holds no checkpoint; train it first, with --keep-checkpoints 0 to keep them all")
    phases = []
    for number, step in enumerate(steps):
        report_progress(f"steps: {step}", number / len(steps))
        phases.append(AlgorithmPhase("steps", step, identify(load_learner(run, step)[0], task, **sampling)))
    return tuple(phases)
