"""Emulating statistical methods by the prompt alone, `004_…` section C.1, set up so that nothing is given away."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emulon.tasks.prompts import Prompts
from emulon.tasks.task import Task, normal, uniform

METHODS = ("lasso", "ridge", "linear")


@dataclass(frozen=True)
class Statistical(Task):
    """Tokens (x_i, y_i, which method) and one question (x, 0, which method): what would the method say at x?

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

    width_out = 1
    width_in = property(lambda self: self.features * (1 + self.weights_given) + 1 + len(METHODS))  # type: ignore
    tokens = property(lambda self: self.points + (not self.weights_given))  # type: ignore[assignment]

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
        solved = torch.linalg.solve_ex(gram + penalty * eye, moment).result
        lasso = _lasso(gram / self.points, moment / self.points, self.shrinkage)
        return torch.where(method[:, :1] > 0, lasso.squeeze(-1), solved.squeeze(-1))


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
