"""The tasks of Gao et al. 2024: a representation that all datasets share, time series, and chains of thought.

Importing this module registers them, so that learners can be trained on them by name.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from emulon.algorithms import LeastSquares, RidgeRegression
from emulon.core.predictor import Predictor
from emulon.tasks import Prompts, RegressionTask, Task, normal
from emulon.tasks.task import Inputs, Values


@functools.cache
def fixed_network(seed: int, widths: tuple[int, ...], device: torch.device) -> tuple[Tensor, ...]:
    """The weight matrices (out, in) of one network for all: the same on every device, and made once.

    Entries are N(0, 2/fan_in), so that signals keep their size from layer to layer.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(widths)
    return tuple((torch.randn(b, a, generator=generator, device="cpu") * math.sqrt(2 / a)).to(device) for a, b in pairs)


def leaky_network(weights: Iterable[Tensor], x: Float[Tensor, "*batch fan_in"]) -> list[Float[Tensor, "*batch _"]]:
    """The state after every layer, leaky ReLU of slope 0.01 in each."""
    states = []
    for weight in weights:
        x = F.leaky_relu(x @ weight.to(x.dtype).mT)
        states.append(x)
    return states


@dataclass(frozen=True)
class Representation(RegressionTask, name="representation"):
    """y = a·Φ*(x) + noise·ε, a ~ N(0, I) for each dataset, Φ* one `depth`-layer leaky-ReLU network for all
    (Gao et al. 2024, sections 3.1 and 5.1).

    Φ* is drawn from `network_seed`; what it is has to be learned in training, what a is in context. The paper does not
    give Φ*'s scale: here signals keep their size, and a is divided by √features so that y's variance is of order one.

    Attributes:
        features: Of x.
        points: Examples in a prompt, the last query included.
        noise: Standard deviation of the noise on y.
        depth: Layers of Φ*.
        network_seed: Of Φ*.
    """

    features: int = 20
    points: int = 41
    noise: float = 0.0
    depth: int = 3
    network_seed: int = 0

    what = "linear functions of a representation"

    def represent(self, xs: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        widths = (self.features,) * (self.depth + 1)
        return leaky_network(fixed_network(self.network_seed, widths, xs.device), xs)[-1]

    def values(self, generator: torch.Generator, xs: Inputs) -> Values:
        a = normal(generator, xs.shape[0], self.features, dtype=xs.dtype) * math.pow(self.features, -0.5)
        return (self.represent(xs) @ a.unsqueeze(-1)).squeeze(-1)

    def predictors(self) -> dict[str, Predictor]:
        """Least squares on x itself, and on Φ*(x), which a learner that knows Φ* could reach."""
        oracle: Predictor = RidgeRegression(self.noise**2 * self.features) if self.noise > 0 else LeastSquares()
        return {"ols": LeastSquares(), "oracle": oracle}

    def features_for(self, name: str, xs: Inputs) -> Float[Tensor, "batch points seen"]:
        return (self.represent(xs) if name == "oracle" else xs).double()


class VectorTask(Task):
    """A task with tokens and answers of equally many features."""

    @property
    def width_in(self) -> int:
        return self.features

    @property
    def width_out(self) -> int:
        return self.features


@dataclass(frozen=True)
class AutoRegression(VectorTask, name="auto_regression"):
    """x_{t+1} = A·Φ*(x_{t+1−q}, …, x_t) + noise·ε, one A a dataset, one Φ* for all. x_{t+1} is asked at x_t
    (Gao et al. 2024, section 5.1).

    The paper draws A's entries from N(0, 1) and is silent about Φ*'s scale, on which it depends whether such a series
    explodes or dies. Here features are scaled to unit mean square and A's entries are N(0, 1/features), so it does
    neither. With ε ~ N(0, I), as the paper has it, no error against the next vector itself could be below 1, and its
    Figure 2b shows 1e-2; errors here are against the noise-free continuation.

    Attributes:
        features: Of a vector.
        points: Vectors that are asked.
        noise: Standard deviation of ε.
        lags: Vectors that the next one depends on.
        depth: Layers of Φ*.
        network_seed: Of Φ*.
    """

    features: int = 20
    points: int = 41
    noise: float = 1.0
    lags: int = 3
    depth: int = 3
    network_seed: int = 0

    @property
    def tokens(self) -> int:
        return self.points + self.lags - 1

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        return states[..., self.lags - 1 :, :]

    def represent(self, recent: Float[Tensor, "*batch window"]) -> Float[Tensor, "*batch features"]:
        widths = (self.lags * self.features,) + (self.features,) * self.depth
        states = leaky_network(fixed_network(self.network_seed, widths, recent.device), recent)[-1]
        return states * torch.rsqrt(states.square().mean(dim=-1, keepdim=True) + 1e-6)

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        a = normal(generator, batch, self.features, self.features) * self.features**-0.5
        past = list(normal(generator, batch, self.lags, self.features).unbind(dim=1))
        noise = self.noise * normal(generator, batch, self.points, self.features)
        truth = []
        for t in range(self.points):
            recent = torch.cat(past[-self.lags :], dim=-1)
            truth.append((a @ self.represent(recent).unsqueeze(-1)).squeeze(-1))
            past.append(truth[-1] + noise[:, t])
        series = torch.stack(past, dim=1)
        if live is not None:
            series, truth = series * live, [step * live for step in truth]
        return Prompts(series[:, :-1], series[:, self.lags :], torch.stack(truth, dim=1))

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        """The last vector again, and the Bayes predictor on Φ*, which a learner that knows Φ* could reach."""
        truth = prompts.truth
        last = self.asked(prompts.tokens)
        curves = super().baselines(prompts)
        curves["last"] = self.curve((last - truth).square())
        curves["oracle"] = self.curve((self._oracle(prompts) - truth.double()).square())
        return curves

    def _oracle(self, prompts: Prompts) -> Float[Tensor, "batch asked features"]:
        windows = prompts.tokens.unfold(1, self.lags, 1).transpose(-1, -2).flatten(2)
        features, seen = self.represent(windows).double(), prompts.targets.double()
        penalty, eye = self.noise**2 * self.features, torch.eye(self.features, device=seen.device).double()
        answers = [torch.zeros_like(seen[:, 0])]
        for t in range(1, seen.shape[1]):
            x, y = features[:, :t], seen[:, :t]
            a = torch.linalg.pinv(x) @ y if not penalty else torch.linalg.solve(x.mT @ x + penalty * eye, x.mT @ y)
            answers.append((features[:, t : t + 1] @ a).squeeze(1))
        return torch.stack(answers, dim=1)


@dataclass(frozen=True)
class ChainOfThought(VectorTask, name="chain_of_thought"):
    """x, s₁, …, s_depth, x′, s′₁, …: each chain shows the states of one `depth`-layer leaky-ReLU network.

    The network is drawn anew for each dataset; at every token but a chain's last, the next state is asked. The curve
    averages a chain's errors. (Gao et al. 2024, section 5.1.)

    Attributes:
        features: Of x and of every state.
        points: Chains in a prompt.
        depth: Layers of the network.
    """

    features: int = 20
    points: int = 41
    depth: int = 6

    @property
    def tokens(self) -> int:
        return self.points * (self.depth + 1)

    def asked(self, states: Float[Tensor, "*batch tokens width"]) -> Float[Tensor, "*batch asked width"]:
        chains = states.reshape(*states.shape[:-2], self.points, self.depth + 1, states.shape[-1])
        return chains[..., : self.depth, :].flatten(-3, -2)

    def sample(self, generator: torch.Generator, batch: int, live: Float[Tensor, " features"] | None = None) -> Prompts:
        scale = math.sqrt(2 / self.features)
        layers = normal(generator, self.depth, batch, self.features, self.features) * scale
        x = normal(generator, batch, self.points, self.features)
        if live is not None:
            x = x * live
        states = torch.stack([x, *leaky_network(layers.unbind(dim=0), x)], dim=2)
        following = states[:, :, 1:].flatten(1, 2)
        return Prompts(states.flatten(1, 2), following, following)

    def curve(self, squared_errors: Float[Tensor, "batch asked out"]) -> Float[Tensor, " curve"]:
        return super().curve(squared_errors).reshape(self.points, self.depth).mean(dim=1)

    def baselines(self, prompts: Prompts) -> dict[str, Float[Tensor, " curve"]]:
        return super().baselines(prompts) | {"last": self.curve((self.asked(prompts.tokens) - prompts.truth).square())}
