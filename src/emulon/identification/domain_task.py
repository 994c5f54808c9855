"""Data for a compiled program: inside the domain that it was compiled for, where its certificate holds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from emulon.core.errors import EmulonError, OutOfDomain
from emulon.interpreter import Program
from emulon.tasks.regression import RegressionTask
from emulon.tasks.task import Datasets, normal, uniform

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

    def values(
        self, generator: torch.Generator, xs: Float[Tensor, "batch points features"]
    ) -> Float[Tensor, "batch points"]:
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
