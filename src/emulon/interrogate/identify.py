"""Which algorithm is it? The nearest of the references, with its parameters, or none of these."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.errors import EmulonError
from emulon.interrogate.curves import Interval, bootstrap_means, bounds, intervals
from emulon.interrogate.fit import Observations, fit
from emulon.interrogate.parameter_interval import parameter_interval
from emulon.interrogate.references import Parameters, Reference
from emulon.interrogate.sampling import DATASETS, Prefixes, Sampling, draw
from emulon.interrogate.task_sets import references_for
from emulon.predictor import as_predictor
from emulon.tasks import RegressionTask

NONE = "none of these"
# Unexplained above this is far, whatever the references: a tenth of the predictor's variance.
FAR = 0.1
# A predictor that varies less than this, relative to the targets, is constant.
CONSTANT = 1e-6
# Unexplained below this is exact: rounding and the last digit of a fitted parameter.
EXACT = 1e-12
# References that differ by less than this, a thousandth of the predictor's deviation, are indistinguishable.
ALIKE = 1e-6
# The wide search looks at so many datasets and counts, the end of the search at so many.
FEW, MANY = (8, 5), (64, 12)


@dataclass(frozen=True)
class Match:
    """A reference with the parameters that bring it nearest, and the fraction of the predictor it leaves unexplained.

    `parameters` were fitted on half of the datasets, `unexplained` was measured on the other half. `weight` is its
    posterior weight among the references, see `posterior`.
    """

    name: str
    parameters: Parameters
    unexplained: Interval
    weight: float

    def __str__(self) -> str:
        inside = ", ".join(f"{name}={value:.4g}" for name, value in self.parameters.items())
        return f"{self.name}({inside})" if inside else self.name


@dataclass(frozen=True)
class Identification:
    """The ranking, the nearest first, and the verdict.

    `limit` is how much may be left unexplained for the nearest to be named. `ties` are the references that these
    datasets do not tell from the nearest: there the one with the fewest fitted parameters comes first. `interval` is
    that of the nearest's continuous parameter (`parameter_interval`), None where it has none.
    """

    ranking: tuple[Match, ...]
    ties: tuple[str, ...]
    limit: float
    counts: tuple[int, ...]
    datasets: int
    interval: Interval | None = None

    @property
    def nearest(self) -> Match:
        return self.ranking[0]

    @property
    def near(self) -> bool:
        """Whether the nearest is near, the upper end of its interval included."""
        return self.nearest.unexplained.high <= self.limit

    @property
    def algorithm(self) -> str:
        """The name of the nearest reference, or "none of these"."""
        return self.nearest.name if self.near else NONE

    @property
    def parameters(self) -> Parameters:
        return self.nearest.parameters if self.near else {}

    def __getitem__(self, name: str) -> Match:
        for match in self.ranking:
            if match.name == name:
                return match
        raise KeyError(f"no reference called {name!r}; there are {[match.name for match in self.ranking]}")

    def __str__(self) -> str:
        if not self.near:
            return (
                f"{NONE}: the nearest, {self.nearest}, leaves {self.nearest.unexplained} of the predictor unexplained; "
                f"it would be named up to {self.limit:.3g}"
            )
        alike = f"; indistinguishable from {', '.join(str(self[name]) for name in self.ties)}" if self.ties else ""
        return f"{self.nearest}: unexplained {self.nearest.unexplained}{alike}"


def identify(
    predictor: object,
    task: RegressionTask,
    *,
    references: Sequence[Reference] | None = None,
    **sampling: Unpack[Sampling],
) -> Identification:
    """Rank the references, by default all that suit the task, by how much of the predictor they leave unexplained.

    Unexplained: the mean over counts n of E(predictor − reference)²/Var(predictor), each n divided by its own variance,
    so that no number of examples drowns the others. A random predictor has 1 left by the best it can be given, zero; a
    constant other than zero has no variance to explain, and so nothing near it.
    The verdict is "none of these" when more than `limit` is left: a tenth, or less where the kinds of references lie
    closer together than that: a quarter of the median distance from the nearest to the other kinds. (Squared distance:
    within a quarter of it a predictor is nearer to the one than to the other by the triangle inequality.)
    Ties: OLS is the limit of ridge, of the lasso, of many steps of descent and of Newton's; one neighbour needs no
    weights. References whose distance from the predictor does not differ significantly from the nearest's (a paired
    bootstrap over datasets), or is as exact, are reported as ties, and the one with the fewest parameters is named.
    Beside the ranking every reference has its posterior weight (`posterior`).
    """
    if (datasets := sampling.get("datasets", DATASETS)) < 4:
        raise EmulonError(f"identify needs at least 4 datasets, half to fit and half to measure; got {datasets}")
    subject = as_predictor(predictor)
    prefixes = draw(task, subject, **sampling)
    return _identify(prefixes.answers(subject), prefixes, references or references_for(task))


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
    return Identification(matches, tuple(alike), limit, prefixes.counts, prefixes.datasets - half, sure)


def variance(answers: Float[Tensor, "datasets counts"], prefixes: Prefixes) -> Float[Tensor, " counts"]:
    """The predictor's variance over datasets at each count, and no less than that of a constant."""
    least = CONSTANT**2 * prefixes.ys.square().mean().clamp(min=torch.finfo(torch.float64).tiny)
    return answers.var(dim=0).clamp(min=least.item())


def rank(errors: Float[Tensor, "datasets references"], references: Sequence[Reference]) -> tuple[list[int], list[int]]:
    """The order of the references, the named one first, and those that tie with it.

    Where the nearest is exact only what is exact too can tie; else what a paired bootstrap does not find farther.
    """
    mean = errors.mean(dim=0)
    nearest, everyone = int(mean.argmin()), range(len(references))
    low, _ = bounds(bootstrap_means(errors - errors[:, nearest : nearest + 1]))
    tied = mean <= EXACT if mean[nearest] <= EXACT else low <= 0
    alike = [i for i in everyone if tied[i] or i == nearest]
    named = min(alike, key=lambda i: (references[i].free, i))
    rest = sorted((i for i in everyone if i != named), key=lambda i: mean[i].item())
    return [named, *rest], [i for i in rest if i in alike]


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
