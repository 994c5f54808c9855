"""Emulation learned by training: an attention head and statistical methods, named by the prompt alone."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emulon.attention import attend
from emulon.tasks.prompts import Prompts
from emulon.tasks.randomness import normal, uniform
from emulon.tasks.task import Task

METHODS = ("lasso", "ridge", "linear")


@dataclass(frozen=True)
class HeadEmulation(Task, name="head"):
    """Tokens x ~ 2·N(0, I) − 1, and the target softmax(QKᵀ)V of a head with Gaussian W_K, W_Q, W_V of `hidden` rows
    (Hu et al. 2025, section 5.2).

    With `weights_given` each dataset draws its own head, and the head's rows are tokens of the prompt: this is what
    Theorem 4.2 is about. Without, one head (from `head_seed`) serves all datasets and the learner memorises it, which
    is what the paper's code does (and it normalises over the wrong axis).
    A token is (x or a row of W, which of x, K, Q, V it is); weights are scaled by features^-½, where the paper's
    unscaled ones make scores in the hundreds and the softmax a plain argmax.
    """

    features: int = 24
    points: int = 20
    hidden: int = 24
    weights_given: bool = True
    head_seed: int = 0

    @property
    def width_in(self) -> int:
        return self.features + 4

    @property
    def width_out(self) -> int:
        return self.hidden

    @property
    def tokens(self) -> int:
        return self.points + 3 * self.hidden * self.weights_given

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., -self.points :, :]

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        x = 2 * normal(generator, batch, self.points, self.features) - 1
        if live is not None:
            x = x * live
        head = self._heads(generator, batch)
        keys, queries, values = ((x @ part.mT) for part in head.unbind(dim=1))
        target = attend(queries * self.hidden**-0.5, keys, values)
        kinds = [(0, x)]
        if self.weights_given:
            kinds = [(1 + kind, head[:, kind]) for kind in range(3)] + kinds
        tokens = torch.cat([_labelled(rows, kind) for kind, rows in kinds], dim=1)
        return Prompts(tokens, target, target)

    def _heads(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch 3 hidden features"]:
        scale = math.pow(self.features, -0.5)
        if self.weights_given:
            return scale * normal(generator, batch, 3, self.hidden, self.features)
        one = fixed_head(self.head_seed, (3, self.hidden, self.features), generator.device)
        return (scale * one).expand(batch, -1, -1, -1)


@functools.cache
def fixed_head(seed: int, shape: tuple[int, int, int], device: torch.device) -> Float[Tensor, "3 hidden features"]:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu").to(device)


def _labelled(rows: Float[Tensor, "batch rows features"], kind: int) -> Float[Tensor, "batch rows width"]:
    label = torch.zeros(*rows.shape[:-1], 4, device=rows.device)
    label[..., kind] = 1.0
    return torch.cat([rows, label], dim=-1)


@dataclass(frozen=True)
class Statistical(Task, name="statistical"):
    """Tokens (x_i, y_i, which method) and one question (x, 0, which method): what would the method say at x?
    (Hu et al. 2025, section C.1, set up so that nothing is given away.)

    The methods are fitted on the `points` samples shown and on nothing else. `weights_given` is the paper's own set-up
    instead: every token carries the weights w the answer is made of, and the target is y = w·x (for ridge, the fitted
    w): reading the answer, not finding it. Both draw x ~ 2·N(0, I) − 1, w ~ N(0, I), half of w zeroed for lasso.
    """

    features: int = 24
    points: int = 48
    noise: float = 0.1
    penalty: float = 5.0
    shrinkage: float = 0.1
    weights_given: bool = False
    only: str = ""

    @property
    def width_in(self) -> int:
        return self.features * (1 + self.weights_given) + 1 + len(METHODS)

    @property
    def width_out(self) -> int:
        return 1

    @property
    def tokens(self) -> int:
        return self.points + (not self.weights_given)

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states if self.weights_given else states[..., -1:, :]

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        xs = 2 * normal(generator, batch, self.points + 1, self.features) - 1
        if live is not None:
            xs = xs * live
        method = self._methods(generator, batch)
        w = normal(generator, batch, self.features)
        kept = (uniform(generator, batch, self.features) < 0.5) | (method[:, :1] == 0)
        w = w * kept
        ys = (xs @ w.unsqueeze(-1)).squeeze(-1) + self.noise * normal(generator, batch, self.points + 1)
        shown, answers = xs[:, :-1], ys[:, :-1]
        fitted = self._fit(shown, answers, method)
        if self.weights_given:
            ridge = method[:, 1:2] > 0
            given = torch.where(ridge, fitted, w)
            target = torch.where(ridge, (shown @ fitted.unsqueeze(-1)).squeeze(-1), answers).unsqueeze(-1)
            parts = [shown, given.unsqueeze(1).expand_as(shown), torch.zeros_like(target)]
        else:
            target = (xs[:, -1:] @ fitted.unsqueeze(-1)).squeeze(-1).unsqueeze(-1)
            parts = [xs, F.pad(answers, (0, 1)).unsqueeze(-1)]
        label = method.unsqueeze(1).expand(-1, parts[0].shape[1], -1)
        return Prompts(torch.cat([*parts, label], dim=-1), target, target)

    def _methods(self, generator: torch.Generator, batch: int) -> Float[Tensor, "batch methods"]:
        """One-hot, drawn with equal chance, or always `only`."""
        where = torch.arange(len(METHODS), device=generator.device)
        if self.only:
            return (where == METHODS.index(self.only)).float().expand(batch, -1)
        return (where == (uniform(generator, batch, 1) * len(METHODS)).floor()).float()

    def _fit(
        self,
        xs: Float[Tensor, "batch points features"],
        ys: Float[Tensor, "batch points"],
        method: Float[Tensor, "batch methods"],
    ) -> Float[Tensor, "batch features"]:
        """Ridge and least squares in closed form, lasso by 50 accelerated proximal steps; one weight vector each."""
        gram, moment = xs.mT @ xs, xs.mT @ ys.unsqueeze(-1)
        eye = torch.eye(self.features, device=xs.device)
        penalty = 1e-4 + self.penalty * method[:, 1].view(-1, 1, 1)
        solved = solve_positive(gram + penalty * eye, moment)
        lasso = _lasso(gram / self.points, moment / self.points, self.shrinkage)
        return torch.where(method[:, :1] > 0, lasso.squeeze(-1), solved.squeeze(-1))


def solve_positive(
    matrix: Float[Tensor, "batch d d"], right: Float[Tensor, "batch d columns"]
) -> Float[Tensor, "batch d columns"]:
    """Of positive definite matrices, which need no pivots, by elimination in plain products: torch's own solvers ask
    the host, and no CUDA graph records that."""
    d, rows = matrix.shape[-1], torch.cat([matrix, right], dim=-1)
    for k, unit in enumerate(torch.eye(d, dtype=rows.dtype, device=rows.device)):
        pivot = rows[:, k : k + 1] / rows[:, k : k + 1, k : k + 1]
        rows = rows - (rows[:, :, k : k + 1] - unit.unsqueeze(-1)) * pivot
    return rows[..., d:]


def _lasso(
    gram: Float[Tensor, "batch d d"], moment: Float[Tensor, "batch d 1"], shrinkage: float, steps: int = 50
) -> Float[Tensor, "batch d 1"]:
    """Minimises wᵀGw/2 − wᵀm + shrinkage·‖w‖₁ (FISTA); the Frobenius norm bounds the curvature without a solver."""
    step = 1 / torch.linalg.matrix_norm(gram, ord="fro", keepdim=True).clamp(min=1e-6)
    w = ahead = torch.zeros_like(moment)
    t = 1.0
    for _ in range(steps):
        moved = ahead - step * (gram @ ahead - moment)
        new = moved.sign() * (moved.abs() - step * shrinkage).clamp(min=0)
        t_new = (1 + (1 + 4 * t * t) ** 0.5) / 2
        w, ahead, t = new, new + (t - 1) / t_new * (new - w), t_new
    return w
