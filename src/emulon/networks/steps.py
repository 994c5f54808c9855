"""Algorithms that are no descent on a linear model with one output, as modules that know their layers.

Of those that repeat a step, `compile_iteration` feeds the state back, and the data stand in the prompt as weights;
`KernelRegression` is a head of attention as it stands, which `compile_network` takes. Probabilities are quotients:
exp, a sum, 1/√t squared, and a product, which is two squares.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from emulon.certify.domain import require_finite
from emulon.errors import BadShape, EmulonError
from emulon.networks.activations import RELU
from emulon.networks.layers import Attention
from emulon.networks.lowering import SQUARE, Builder, lowers
from emulon.networks.normalisation import product

f64 = torch.float64
# In log weight: below 1e-17.
APART = 40.0


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
        return torch.zeros(1, self.x.shape[1] * self.classes, dtype=f64, device="cpu")

    def forward(self, state: Float[Tensor, "rows entries"]) -> Float[Tensor, "rows entries"]:
        weights = state.reshape(len(state), -1, self.classes)
        off = torch.softmax(self.x @ weights, dim=-1) - self.targets
        gradient = (self.x.T @ off / len(self.x)).flatten(1)
        return (1 - self.step_size * self.penalty) * state - self.step_size * gradient


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
    return builder.elementwise(place, "square", SQUARE)


def probabilities(builder: Builder, place: str, groups: int, size: int) -> int:
    """Softmax of the register at hand, group by group of so many neighbours."""
    ones, eye = torch.ones(1, size, dtype=f64, device="cpu"), torch.eye(groups, dtype=f64, device="cpu")
    powers = builder.elementwise(place, "exp", "exp(t)")
    builder.linear(place, "sums", torch.kron(eye, ones))
    reciprocal(builder, place)
    quotients = builder.linear(place, "sums for all", torch.kron(eye, ones.reshape(size, 1)))
    return product(builder, place, powers, quotients)


@lowers(SoftmaxRegressionStep)
def softmax_regression(builder: Builder, module: SoftmaxRegressionStep, place: str) -> None:
    state, samples, eye = builder.at, len(module.x), torch.eye(module.classes, dtype=f64, device="cpu")
    builder.linear(place, "scores", torch.kron(module.x, eye))
    chances = probabilities(builder, place, samples, module.classes)
    back = torch.kron(module.x.T.contiguous(), eye) * (module.step_size / samples)
    kept = (1 - module.step_size * module.penalty) * torch.eye(builder.sizes[state], dtype=f64, device="cpu")
    builder.linear(place, "step", torch.cat([kept, -back], dim=-1), back @ module.targets.flatten(), state, chances)


@lowers(SoftKMeansStep)
def soft_k_means(builder: Builder, module: SoftKMeansStep, place: str) -> None:
    state, count, x = builder.at, module.centres, module.x
    squares = builder.elementwise(place, "square", SQUARE)
    eye, ones = torch.eye(count, dtype=f64, device="cpu"), torch.ones_like(x)
    # Scores (sample, centre) from states (centre, feature): −‖x − c‖² = 2x·c − Σc² − ‖x‖², so that sums stay small.
    across = [torch.einsum("if,kl->iklf", part, eye).flatten(2).flatten(0, 1) for part in (2 * x, -ones)]
    far = x.square().sum(dim=-1).repeat_interleave(count)
    sharp = module.sharpness
    builder.linear(place, "scores", sharp * torch.cat(across, dim=-1), -sharp * far, state, squares)
    chances = probabilities(builder, place, len(x), count)
    totals = torch.kron(torch.ones(1, len(x), dtype=f64, device="cpu"), eye)
    sums = builder.linear(place, "weighted sums", torch.einsum("if,kl->kfil", x, eye).flatten(2).flatten(0, 1))
    builder.linear(place, "weights", totals, None, chances)
    reciprocal(builder, place)
    spread = builder.linear(
        place, "weights for all", torch.kron(eye, torch.ones(x.shape[1], 1, dtype=f64, device="cpu"))
    )
    product(builder, place, sums, spread)


class KernelRegression(nn.Module):
    """Nadaraya and Watson's estimate: the mean of all targets, weighted by exp(−‖x − xᵢ‖²/(2·bandwidth²)).

    It reads in-context examples: positions (x, y, 1), and last the query (x, 0, 0); what it says there is the answer.
    A query far from all samples weighs itself by at most e^(−`APART`) times as much as them.
    """

    def __init__(self, features: int, bandwidth: float, reach: float) -> None:
        """`reach` bounds ‖x‖."""
        super().__init__()
        self.features, self.bandwidth = features, bandwidth
        self.apart = APART + 2 * (reach / bandwidth) ** 2

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
        scores = x @ x.mT / self.bandwidth**2 - (x.square().sum(dim=-1) / (2 * self.bandwidth**2)).unsqueeze(-2)
        scores = scores + self.apart * (known - 1).mT
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").triu(1)
        answers: Tensor = torch.softmax(scores.masked_fill(ahead, -torch.inf), dim=-1) @ y
        return answers


@lowers(KernelRegression)
def kernel_regression(builder: Builder, module: KernelRegression, place: str) -> None:
    state, d = builder.at, module.features
    squares = builder.elementwise(place, "square", SQUARE)
    w_q, w_k = torch.zeros(2, 1, d + 1, 2 * (d + 2), dtype=f64, device="cpu").unbind()
    w_v = torch.zeros(1, 1, 2 * (d + 2), dtype=f64, device="cpu")
    b_q, b_k = torch.zeros(2, 1, d + 1, dtype=f64, device="cpu").unbind()
    for part in (w_q, w_k):
        part[0, :d, :d] = torch.eye(d, dtype=f64, device="cpu") / module.bandwidth
    b_q[0, d], b_k[0, d], w_v[0, 0, d] = 1.0, -module.apart, 1.0
    w_k[0, d, d + 1], w_k[0, d, d + 2 : 2 * d + 2] = module.apart, -1 / (2 * module.bandwidth**2)
    parts = {
        "w_q": w_q,
        "w_k": w_k,
        "w_v": w_v,
        "b_q": b_q,
        "b_k": b_k,
        "b_v": torch.zeros(1, 1, dtype=f64, device="cpu"),
    }
    builder.add(Attention(name=builder.name(place, "attention"), reads=(state, squares), causal=True, **parts), 1)
    builder.shape = (builder.shape[0], 1)


class GroupLassoStep(nn.Module):
    """A proximal step on ‖Xw − y‖²/(2n) + penalty·Σ_g √|g|·‖w_g‖₂ (Yuan and Lin 2006): groups leave or stay together.

    `groups` names the group of every feature. A group shrinks by max(0, 1 − t/‖w_g‖), which is 1 − 1/√(1 + z) with
    z = max(0, ‖w_g‖²/t² − 1): the kink is a ReLU, and the root stays away from its pole.
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

    @property
    def lipschitz(self) -> float | None:
        """Of a step of descent on the squares; shrinking moves nothing apart. None where the step is long.

        Eigenvalues are computed in float64, to within a part of 1e-9 for certain.
        """
        ends = (abs(1 - self.step_size * edge) for edge in (self.flattest, self.steepest * (1 + 1e-9)))
        found = max(ends) + 1e-9 * self.step_size * self.steepest
        return found if found <= 1 + 1e-6 else None

    @property
    def thresholds(self) -> Float[Tensor, " groups"]:
        return self.step_size * self.penalty * torch.bincount(self.groups).double().sqrt()

    def start(self) -> Float[Tensor, "1 features"]:
        return torch.zeros(1, self.x.shape[1], dtype=f64, device="cpu")

    def forward(self, state: Float[Tensor, "rows features"]) -> Float[Tensor, "rows features"]:
        moved = state - self.step_size * (state @ self.x.T - self.y) @ self.x / len(self.x)
        members = nn.functional.one_hot(self.groups).double()
        squares = moved.square() @ members / self.thresholds.square()
        return moved * ((1 - squares.clamp(min=1.0).rsqrt()) @ members.T)


@lowers(GroupLassoStep)
def group_lasso(builder: Builder, module: GroupLassoStep, place: str) -> None:
    x, eta, n = module.x, module.step_size, len(module.x)
    members = nn.functional.one_hot(module.groups).double()
    descend = torch.eye(x.shape[1], dtype=f64, device="cpu") - eta * (x.T @ x) / n
    moved = builder.linear(place, "descent", descend, eta * (module.y @ x) / n)
    builder.elementwise(place, "square", SQUARE)
    one, eye = (
        torch.ones(members.shape[1], dtype=f64, device="cpu"),
        torch.eye(members.shape[1], dtype=f64, device="cpu"),
    )
    builder.linear(place, "norms", (members / module.thresholds.square()).T.contiguous(), -one)
    builder.elementwise(place, "relu", *RELU)
    builder.linear(place, "norms above one", eye, one)
    builder.root(place)
    kept = builder.linear(place, "what is kept", -members, members @ one)
    product(builder, place, moved, kept)
