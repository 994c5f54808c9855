"""Constructions are frozen, within their certificates of an exact map, batched, and refuse bad inputs."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from construction_cases import exact_head, exact_map, exact_step
from torch import Tensor, nn

from emulon import constructions
from emulon.algorithms import LinearRegression, as_loss
from emulon.certify import Certificate, Domain
from emulon.constructions import (
    DescentInContext,
    GradientStep,
    HeadInEmbedding,
    HeadInTokens,
    HopfieldResidualMap,
    LinearLayer,
    ResidualMap,
    ScalarHeads,
    TruncatedLinear,
)
from emulon.testing import COMMON, require, require_agreement, require_refusal

# The largest difference between two evaluations of the same inputs, next to their size: sharp gates amplify the last
# place.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-3}
# As many random inputs, and as many at the edges, are tried.
TRIED = 32


@dataclass(frozen=True)
class Input:
    """One input of a construction.

    Attributes:
        shape: Sizes of its last dimensions.
        bound: Largest |entry|.
        values: What entries are instead, where they are one of a few numbers.
    """

    shape: tuple[int, ...]
    bound: float
    values: tuple[float, ...] = ()

    def drawn(self, how: str, generator: torch.Generator, *batch: int) -> Tensor:
        """Entries anywhere "inside" the domain; or at "corners", "faces" (extreme or zero) or "zeros"."""
        if how == "inside" and not self.values:
            numbers = torch.rand(*batch, *self.shape, generator=generator, dtype=torch.float64, device="cpu")
            return self.bound * (2 * numbers - 1)
        ends = {"corners": (-self.bound, self.bound), "faces": (-self.bound, 0.0, self.bound), "zeros": (0.0,)}
        values = (self.values[:1] if how == "zeros" else self.values) or ends[how]
        which = torch.randint(len(values), (*batch, *self.shape), generator=generator, device="cpu")
        return torch.tensor(values, dtype=torch.float64, device="cpu")[which]


@dataclass(frozen=True)
class Construction:
    """A module with the exact map that it emulates, in float64, and its inputs by the names that refusals use."""

    module: nn.Module
    exact: Callable[..., Tensor]
    inputs: Mapping[str, Input]
    batch: tuple[int, ...] = (2, 3)

    @property
    def certificate(self) -> Certificate:
        certificate = getattr(self.module, "certificate", None)
        assert isinstance(certificate, Certificate)
        return certificate

    @property
    def parts(self) -> dict[str, Tensor]:
        return self.draw("inside", *self.batch)

    def draw(self, how: str, *batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of this kind, by name, as the construction's dtype stores them."""
        generator, dtype = torch.Generator().manual_seed(seed), self.certificate.dtype
        return {name: one.drawn(how, generator, *batch).to(dtype) for name, one in self.inputs.items()}

    def call(self, parts: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.module(*parts.values())
        return out

    def tolerance(self, answer: Tensor) -> float:
        """Both evaluations are within the bound."""
        size = max(1.0, answer.abs().max().item())
        return min(2 * self.certificate.bound, NEAR[self.certificate.dtype] * size)


def construction_subject(
    module: nn.Module, exact: Callable[..., Tensor], inputs: Mapping[str, Input] | None = None
) -> Construction:
    """`inputs`: any within these bounds must be accepted; without them x, y and w of the module's domain."""
    if inputs is None:
        n, d, domain = module.domain.samples, module.domain.features, module.domain
        inputs = {"x": Input((n, d), domain.x), "y": Input((n,), domain.y), "w": Input((d,), domain.w)}
    return Construction(module, exact, inputs)


def weights_are_frozen(subject: Construction) -> None:
    """Buffers only: no optimiser can ever see them."""
    require(not list(subject.module.parameters()), "it has parameters")
    require(bool(list(subject.module.buffers())), "it has no buffers, so what it is cannot be moved or stored")
    require(not subject.call(subject.draw("inside")).requires_grad, "its output asks for a gradient")


def certificate_is_finite_and_for_the_domain(subject: Construction) -> None:
    """Named terms, none negative, and a finite bound that holds for every input."""
    certificate = subject.certificate
    require(certificate.scope == "domain", f"its scope is {certificate.scope}")
    require(0 <= certificate.bound < math.inf, f"its bound is {certificate.bound}")
    bad = [name for name, value in certificate.terms.items() if not value >= 0]
    require(bool(certificate.terms) and not bad, f"terms {list(certificate.terms)}, negative or NaN: {bad}")


def repr_shows_the_bound(subject: Construction) -> None:
    shown, bound = repr(subject.module), f"{subject.certificate.bound:.2e}"
    require(bound in shown, f"{shown!r} does not show the bound {bound}")


def certificate_holds_inside_the_domain(subject: Construction) -> None:
    """|observed − exact| ≤ bound for random inputs."""
    _verify(subject, subject.draw("inside", TRIED))


def certificate_holds_at_the_edges(subject: Construction) -> None:
    """|observed − exact| ≤ bound at corners, where entries are extreme or zero, and at zero."""
    for how in ("corners", "faces", "zeros"):
        _verify(subject, subject.draw(how, TRIED, seed=1))


def _verify(subject: Construction, parts: Mapping[str, Tensor]) -> None:
    exact = subject.exact(*(part.double() for part in parts.values()))
    out = subject.call(parts)
    require(out.shape == exact.shape, f"its output has shape {tuple(out.shape)}, the exact one {tuple(exact.shape)}")
    subject.certificate.verify(out, exact)


def dtype_is_the_certificates(subject: Construction) -> None:
    out, dtype = subject.call(subject.draw("inside")), subject.certificate.dtype
    require(out.dtype == dtype, f"its output is {out.dtype}, its certificate about {dtype}")


def batch_dimensions_broadcast(subject: Construction) -> None:
    """Each input may be given once for a whole batch of the others, or the others once for a batch of it."""
    parts = subject.parts
    for name, part in parts.items():
        for mixed in (
            parts | {name: part[0, 0]},
            parts | {name: part[:, :1]},
            {other: one if other == name else one[1, 2] for other, one in parts.items()},
            {other: one[:, :1] if other == name else one[1] for other, one in parts.items()},
        ):
            expected = subject.call({key: one.expand_as(parts[key]) for key, one in mixed.items()})
            require_agreement(subject.call(mixed), expected, subject.tolerance(expected), f"{name} given once")


def non_finite_inputs_are_refused(subject: Construction) -> None:
    """NaN and infinity are refused in a line that names the input."""
    for name in subject.inputs:
        for bad in (math.nan, math.inf):
            parts = subject.draw("corners")
            parts[name].view(-1)[0] = bad
            require_refusal(partial(subject.call, parts), f"{bad} in {name}", name)


def inputs_outside_the_domain_are_refused(subject: Construction) -> None:
    """A thousand times an extreme value of one input, the others at theirs, is refused in a line."""
    for name in subject.inputs:
        parts = subject.draw("corners")
        parts[name] = 1000 * parts[name]
        require_refusal(partial(subject.call, parts), f"1000 times the largest {name}")


def wrong_shapes_are_refused(subject: Construction) -> None:
    """A size that is off by one, or a dimension too few, is refused in a line that names the input and its shape."""
    for name, one in subject.inputs.items():
        sizes = [(*one.shape[:k], one.shape[k] + 1, *one.shape[k + 1 :]) for k in range(len(one.shape))]
        for size in [*sizes, one.shape[1:]]:
            parts = subject.draw("inside") | {name: torch.zeros(size, dtype=subject.certificate.dtype, device="cpu")}
            require_refusal(partial(subject.call, parts), f"{name} of shape {size}", name, str(size))


def batches_that_do_not_fit_are_refused(subject: Construction) -> None:
    first = next(iter(subject.inputs))
    parts = subject.draw("inside", 3)
    parts[first] = parts[first][:2]
    if len(parts) > 1:
        require_refusal(partial(subject.call, parts), f"a batch of 2 for {first} and of 3 for the others", first)


CHECKS: tuple[Callable[[Construction], None], ...] = (
    weights_are_frozen,
    certificate_is_finite_and_for_the_domain,
    repr_shows_the_bound,
    certificate_holds_inside_the_domain,
    certificate_holds_at_the_edges,
    dtype_is_the_certificates,
    *COMMON,
    batch_dimensions_broadcast,
    non_finite_inputs_are_refused,
    inputs_outside_the_domain_are_refused,
    wrong_shapes_are_refused,
    batches_that_do_not_fit_are_refused,
)


f32 = torch.float32
DOMAIN = Domain(samples=6, features=3, x=2.0, y=1.5, w=1.0)
LABELS = {"x": Input((6, 3), 2.0), "y": Input((6,), 1.0, (-1.0, 1.0)), "w": Input((3,), 1.0)}
COUNTS = {"x": Input((6, 3), 2.0), "y": Input((6,), 1.0, (0.0, 1.0)), "w": Input((3,), 1.0)}
# |θ·x| ≤ 3·(bound/3)·1, so that corners reach the bound.
LINEAR = {"x": Input((5, 3), 1.0), "Θ": Input((4, 3), 2.0)}
CLIPPED = {"x": Input((12, 3), 1.0), "w": Input((3,), 1.0)}
HEAD = {"x": Input((6, 3), 1.0), **{name: Input((2, 3), 1.0) for name in ("W_K", "W_Q", "W_V")}}
SAMPLES = {"x": Input((6, 3), 1.0), "y": Input((6,), 1.0)}


def residual(f):
    return partial(exact_map, f)


def step(loss, size, l2=0.0, l1=0.0):
    return lambda *parts: exact_step(as_loss(loss), *parts, size, l2, l1)


def linear(x, theta):
    return x @ theta.mT


def clipped(x, w):
    return (x @ w.unsqueeze(-1)).squeeze(-1).clamp(-1.0, 2.0)


# What it is, how it is built, the exact map, and its inputs where they are not those of DOMAIN.
CASES = {
    "residual map": (lambda: ResidualMap("tanh(t)", DOMAIN, 1e-9), residual("tanh(t)")),
    "residual map, kink": (lambda: ResidualMap("Max(t, 0)", DOMAIN, 1e-3), residual("Max(t, 0)")),
    "residual map, paper": (lambda: ResidualMap("t", DOMAIN, points=65, grid="paper"), residual("t")),
    "hopfield": (lambda: HopfieldResidualMap("tanh(t)", DOMAIN, 1e-9), residual("tanh(t)")),
    "step": (lambda: GradientStep("log_cosh", DOMAIN, 1e-6, step_size=0.1, l2=0.5), step("log_cosh", 0.1, 0.5)),
    "step, float32": (lambda: GradientStep("squared", DOMAIN, 1e-2, step_size=0.1, dtype=f32), step("squared", 0.1)),
    "proximal step": (
        lambda: GradientStep("squared", DOMAIN, 1e-3, step_size=0.1, l2=0.3, l1=4.0),
        step("squared", 0.1, 0.3, 4.0),
    ),
    "step on labels": (
        lambda: GradientStep("logistic", DOMAIN, 1e-3, step_size=0.1, l2=0.5),
        step("logistic", 0.1, 0.5),
        LABELS,
    ),
    "step on counts": (
        lambda: GradientStep("poisson", DOMAIN, 1e-3, step_size=0.1, l2=0.2),
        step("poisson", 0.1, 0.2),
        COUNTS,
    ),
    "descent": (
        lambda: DescentInContext("squared", Domain(6, 3, 1.0, 1.0, 4.0), 1e-6, steps=5, step_size=0.2),
        lambda x, y: LinearRegression(5, 0.2).run(x, y),
        SAMPLES,
    ),
    "linear layer": (lambda: LinearLayer(5, 3, 4, 6.0, 1e-10), linear, LINEAR),
    "scalar heads": (
        lambda: ScalarHeads("sin(t)", 5, 3, 4, 6.0, 1e-8),
        lambda x, theta: linear(x, theta).sin(),
        LINEAR,
    ),
    "truncated": (lambda: TruncatedLinear(12, 3, -1.0, 2.0, 1e-3), clipped, CLIPPED),
    "head in tokens": (lambda: HeadInTokens(6, 3, 2, 3.0, 1e-8), exact_head, HEAD),
    "head in embedding": (lambda: HeadInEmbedding(6, 3, 2, 3.0, 1e-8), exact_head, HEAD),
    "head in embedding, paper": (lambda: HeadInEmbedding(6, 3, 2, 3.0, heads=9, grid="paper"), exact_head, HEAD),
}


@cache
def built(case):
    return CASES[case][0]()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_construction(case, check):
    check(construction_subject(built(case), *CASES[case][1:]))


def test_every_construction_is_checked():
    assert {type(built(case)).__name__ for case in CASES} == set(constructions.__all__)
