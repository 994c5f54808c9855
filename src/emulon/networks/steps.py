"""Algorithms that are no descent on a linear model with one output, as modules that know their layers.

Of those that repeat a step, `compile_iteration` feeds the state back, and the data stand in the prompt as weights;
`KernelRegression` is a head of attention as it stands, which `compile_network` takes. Probabilities are quotients:
exp, a sum, 1/√t squared, and a product, which is two squares.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from emulon.certify.domain import require_finite
from emulon.core.errors import BadShape, EmulonError
from emulon.networks.attention import Attention
from emulon.networks.builder import HEAD, Builder, lowers
from emulon.networks.layers import eye, ones, zeros
from emulon.networks.modules import as_fraction

f64 = torch.float64
# In log weight: below 1e-17.
DISTANT = 40.0


def power_step(x: Float[Tensor, "samples features"]) -> nn.Module:
    """v ↦ Cv/‖Cv‖·√features with C = XᵀX/samples: power iteration for the first principal component of centred data."""
    require_finite(x=x)
    samples, features = x.shape
    down, up = (nn.Linear(*sizes, bias=False, device="cpu") for sizes in ((features, samples), (samples, features)))
    for part, weight in ((down, x), (up, x.T)):
        part.weight = nn.Parameter(weight.double() / samples**0.5, requires_grad=False)
    return nn.Sequential(down, up, nn.RMSNorm(features, eps=0.0, elementwise_affine=False)).double()


class SoftmaxRegressionStep(nn.Module):
    """A step of descent on the mean cross entropy of softmax(xᵢᵀW), plus (penalty/2)·‖W‖²; the state is W, flattened.

    Of W a part `kept` = 1 − step_size·penalty stays, and residuals pull by `pull` = Xᵀ·step_size/samples: these are
    rounded to float64 once, here, and are what the step is made of.
    scikit-learn's LogisticRegression without an intercept has C = 1/(samples·penalty).
    """

    def __init__(
        self,
        x: Float[Tensor, "samples features"],
        classes: Int[Tensor, " samples"],
        penalty: float = 0.1,
        step_size: float | None = None,
    ) -> None:
        super().__init__()
        require_finite(x=x)
        self.x, self.penalty = x.double(), penalty
        self.targets = nn.functional.one_hot(classes.long()).double()
        # The Hessian of a softmax's cross entropy is at most 1/2.
        steepest = torch.linalg.matrix_norm(self.x, 2).square().item() / len(x) / 2
        self.step_size = 1 / (steepest + penalty) if step_size is None else step_size
        self.steepest = steepest + penalty
        self.kept, self.pull = 1 - self.step_size * penalty, self.x.T.contiguous() * (self.step_size / len(x))

    @property
    def lipschitz(self) -> float | None:
        """Of a step on a convex function whose Hessian lies between the penalty and `steepest`; None where it is long.

        The norm of X is computed in float64, to within a part of 1e-9 for certain.
        """
        ends = (abs(1 - self.step_size * edge) for edge in (self.penalty, self.steepest * (1 + 1e-9)))
        found = max(ends) + 1e-9
        return found if found <= 1 + 1e-6 else None

    @property
    def classes(self) -> int:
        return self.targets.shape[1]

    def start(self) -> Float[Tensor, "1 entries"]:
        return zeros(1, self.x.shape[1] * self.classes)

    def forward(self, state: Float[Tensor, "rows entries"]) -> Float[Tensor, "rows entries"]:
        weights = state.reshape(len(state), -1, self.classes)
        off = torch.softmax(self.x @ weights, dim=-1) - self.targets
        return self.kept * state - (self.pull @ off).flatten(1)


class SoftKMeansStep(nn.Module):
    """Every centre becomes the mean of the data, weighted by softmax over centres of −sharpness·‖xᵢ − c‖²."""

    def __init__(self, x: Float[Tensor, "samples features"], centres: int, sharpness: float = 0.5) -> None:
        super().__init__()
        require_finite(x=x)
        if not 1 <= centres <= len(x):
            raise BadShape(f"{centres} centres for {len(x)} samples; give at least one, and no more than samples")
        self.x, self.centres, self.sharpness = x.double(), centres, sharpness

    def start(self) -> Float[Tensor, "1 entries"]:
        """Samples spread evenly over the data in their order."""
        rows = torch.linspace(0, len(self.x) - 1, self.centres, device="cpu").round().long()
        return self.x[rows].reshape(1, -1)

    def forward(self, state: Float[Tensor, "rows entries"]) -> Float[Tensor, "rows entries"]:
        centres = state.reshape(len(state), self.centres, -1)
        near = -self.sharpness * (self.x.unsqueeze(-2) - centres.unsqueeze(-3)).square().sum(dim=-1)
        weights = torch.softmax(near, dim=-1)
        return (weights.mT @ self.x / weights.sum(dim=-2).unsqueeze(-1)).flatten(1)


def reciprocal(builder: Builder, place: str) -> int:
    """1/t of positive numbers: a root, which knows how to keep its range away from zero, squared."""
    builder.root(place)
    return builder.square(place)


def probabilities(builder: Builder, place: str, groups: int, size: int, sharpness: float = 1.0) -> int:
    """Softmax of the register at hand, times the sharpness, group by group of so many neighbours."""
    powers = builder.function(place, "exp", "exp(t)" if sharpness == 1 else f"exp({as_fraction(sharpness, place)}*t)")
    builder.linear(place, "sums", torch.kron(eye(groups), ones(1, size)))
    reciprocal(builder, place)
    quotients = builder.linear(place, "sums for all", torch.kron(eye(groups), ones(size, 1)))
    return builder.product(place, powers, quotients)


@lowers(SoftmaxRegressionStep)
def softmax_regression(builder: Builder, module: SoftmaxRegressionStep, place: str) -> None:
    state, one = builder.at, eye(module.classes)
    builder.linear(place, "scores", torch.kron(module.x, one))
    chances = probabilities(builder, place, len(module.x), module.classes)
    kept, back = module.kept * eye(builder.sizes[state]), torch.kron(module.pull, one)
    shift = torch.cat([zeros(len(kept)), module.targets.flatten()])
    builder.divided(place, "step", torch.cat([kept, -back], dim=-1), 1.0, shift=shift, reads=(state, chances))


@lowers(SoftKMeansStep)
def soft_k_means(builder: Builder, module: SoftKMeansStep, place: str) -> None:
    state, count, x = builder.at, module.centres, module.x
    squares = builder.square(place)
    one = eye(count)
    # Scores (sample, centre) from states (centre, feature): −‖x − c‖² = 2x·c − Σc² − ‖x‖². The last is one number for
    # all centres: it keeps sums small, and no softmax changes with it, rounded or not.
    across = [torch.einsum("if,kl->iklf", part, one).flatten(2).flatten(0, 1) for part in (2 * x, -torch.ones_like(x))]
    far = x.square().sum(dim=-1).repeat_interleave(count)
    builder.linear(place, "scores", torch.cat(across, dim=-1), -far, state, squares)
    chances = probabilities(builder, place, len(x), count, module.sharpness)
    totals = torch.kron(ones(1, len(x)), one)
    sums = builder.linear(place, "weighted sums", torch.einsum("if,kl->kfil", x, one).flatten(2).flatten(0, 1))
    builder.linear(place, "weights", totals, None, chances)
    reciprocal(builder, place)
    spread = builder.linear(place, "weights for all", torch.kron(one, ones(x.shape[1], 1)))
    builder.product(place, sums, spread)


class KernelRegression(nn.Module):
    """Nadaraya and Watson's estimate: the mean of all targets, weighted by exp(−‖x − xᵢ‖²/(2·bandwidth²)).

    It reads in-context examples: positions (x, y, 1), and last the query (x, 0, 0); what it says there is the answer.
    A query far from all samples weighs itself by at most e^(−`DISTANT`) times as much as them. 1/bandwidth² is rounded
    to float64 once, here.
    """

    def __init__(self, features: int, bandwidth: float, reach: float) -> None:
        """`reach` bounds ‖x‖."""
        super().__init__()
        self.features, self.precision = features, 1 / bandwidth**2
        self.apart = DISTANT + 2 * (reach / bandwidth) ** 2

    @staticmethod
    def prompt(
        x: Float[Tensor, "samples features"], y: Float[Tensor, " samples"], queries: Float[Tensor, "queries features"]
    ) -> Float[Tensor, "queries positions width"]:
        """One sequence a query."""
        examples = torch.cat([x, y.unsqueeze(-1), torch.ones_like(y).unsqueeze(-1)], dim=-1)
        asked = nn.functional.pad(queries, (0, 2)).unsqueeze(-2)
        return torch.cat([examples.expand(len(queries), -1, -1), asked], dim=-2).double()

    def forward(self, tokens: Float[Tensor, "rows positions width"]) -> Float[Tensor, "rows positions 1"]:
        x, y, known = tokens.split([self.features, 1, 1], dim=-1)
        scores = self.precision * (x @ x.mT - x.square().sum(dim=-1).unsqueeze(-2) / 2)
        scores = scores + self.apart * (known - 1).mT
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").triu(1)
        answers: Tensor = torch.softmax(scores.masked_fill(ahead, -torch.inf), dim=-1) @ y
        return answers


@lowers(KernelRegression)
def kernel_regression(builder: Builder, module: KernelRegression, place: str) -> None:
    state, d = builder.at, module.features
    squares = builder.square(place)
    w_q, w_k = zeros(2, 1, d + 1, 2 * (d + 2)).unbind()
    w_v = zeros(1, 1, 2 * (d + 2))
    b_q, b_k = zeros(2, 1, d + 1).unbind()
    w_q[0, :d, :d], w_k[0, :d, :d] = module.precision * eye(d), eye(d)
    b_q[0, d], b_k[0, d], w_v[0, 0, d] = 1.0, -module.apart, 1.0
    w_k[0, d, d + 1], w_k[0, d, d + 2 : 2 * d + 2] = module.apart, -module.precision / 2
    parts: dict[str, Any] = dict(zip(HEAD, (w_q, w_k, w_v, b_q, b_k, zeros(1, 1)), strict=True))
    builder.add(Attention(name=builder.name(place, "attention"), reads=(state, squares), causal=True, **parts), 1)
    builder.shape = (builder.shape[0], 1)


class GroupLassoStep(nn.Module):
    """A proximal step on ‖Xw − y‖²/(2n) + penalty·Σ_g √|g|·‖w_g‖₂ (Yuan and Lin 2006): a whole group leaves or stays.

    `groups` names the group of every feature. A group shrinks by max(0, 1 − t/‖w_g‖), which is 1 − 1/√(1 + z) with
    z = max(0, ‖w_g‖²/t² − 1): the kink is a ReLU, and the root stays away from its pole. The step on the squares is
    w ↦ `descent`·w + `towards`, and 1/t² stands in `scales`: these are rounded to float64 once, here.
    """

    def __init__(
        self,
        x: Float[Tensor, "samples features"],
        y: Float[Tensor, " samples"],
        groups: Int[Tensor, " features"],
        penalty: float = 0.1,
        step_size: float | None = None,
    ) -> None:
        super().__init__()
        require_finite(x=x, y=y)
        if not 0 < penalty < math.inf:
            raise EmulonError(f"a group lasso has a penalty that is positive and finite, not {penalty}")
        self.x, self.y, self.penalty = x.double(), y.double(), penalty
        _, self.groups = torch.unique(groups, return_inverse=True)
        eigenvalues = torch.linalg.svdvals(self.x).square() / len(x)
        self.steepest, self.flattest = eigenvalues[0].item(), eigenvalues[-1].item() if len(x) >= x.shape[1] else 0.0
        self.step_size = 1 / self.steepest if step_size is None else step_size
        self.members = nn.functional.one_hot(self.groups).double()
        part = self.step_size / len(x)
        self.descent = eye(x.shape[1]) - part * (self.x.T @ self.x)
        self.towards, self.scales = part * (self.y @ self.x), (self.members / self.thresholds.square()).contiguous()

    @property
    def lipschitz(self) -> float | None:
        """Of a step of descent on the squares; shrinking is 1-Lipschitz. None where the step is long.

        Eigenvalues are computed in float64, to within a part of 1e-9 for certain.
        """
        ends = (abs(1 - self.step_size * edge) for edge in (self.flattest, self.steepest * (1 + 1e-9)))
        found = max(ends) + 1e-9 * self.step_size * self.steepest
        return found if found <= 1 + 1e-6 else None

    @property
    def thresholds(self) -> Float[Tensor, " groups"]:
        return self.step_size * self.penalty * torch.bincount(self.groups).double().sqrt()

    def start(self) -> Float[Tensor, "1 features"]:
        return zeros(1, self.x.shape[1])

    def forward(self, state: Float[Tensor, "rows features"]) -> Float[Tensor, "rows features"]:
        moved = state @ self.descent.T + self.towards
        squares = moved.square() @ self.scales
        return moved * ((1 - squares.clamp(min=1.0).rsqrt()) @ self.members.T)


@lowers(GroupLassoStep)
def group_lasso(builder: Builder, module: GroupLassoStep, place: str) -> None:
    members = module.members
    moved = builder.linear(place, "descent", module.descent, module.towards)
    builder.square(place)
    one = ones(members.shape[1])
    builder.linear(place, "norms", module.scales.T.contiguous(), -one)
    builder.gate(place, "relu", 0.0, kinked=True)
    builder.linear(place, "norms above one", eye(len(one)), one)
    builder.root(place)
    kept = builder.linear(place, "what is kept", -members, members @ one)
    builder.product(place, moved, kept)
