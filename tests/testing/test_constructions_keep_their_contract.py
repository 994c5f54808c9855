"""Constructions are frozen, within their certificates of an exact map, batched, and refuse bad inputs."""

import math
from dataclasses import dataclass
from functools import cache, partial

import pytest
import torch
from construction_cases import exact_head, exact_map, exact_step

from emulon import constructions
from emulon.algorithms import LinearRegression, as_loss
from emulon.certify import Domain
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
from emulon.core.errors import EmulonError
from emulon.testing import COMMON, Subject, require_agreement

# The largest difference between two evaluations of the same inputs, next to their size: sharp gates amplify the last
# place.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-3}
# As many random inputs, and as many at the edges, are tried.
TRIED = 32


@dataclass(frozen=True)
class Input:
    """One input: sizes of its last dimensions, its largest |entry|, or the few numbers that its entries are."""

    shape: tuple[int, ...]
    bound: float
    values: tuple[float, ...] = ()

    def drawn(self, how, generator, *batch):
        """Entries anywhere "inside" the domain; or at "corners", "faces" (extreme or zero) or "zeros"."""
        if how == "inside" and not self.values:
            return self.bound * (2 * torch.rand(*batch, *self.shape, generator=generator, dtype=torch.float64) - 1)
        ends = {"corners": (-self.bound, self.bound), "faces": (-self.bound, 0.0, self.bound), "zeros": (0.0,)}
        values = (self.values[:1] if how == "zeros" else self.values) or ends[how]
        which = torch.randint(len(values), (*batch, *self.shape), generator=generator)
        return torch.tensor(values, dtype=torch.float64)[which]


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


@dataclass(frozen=True)
class Construction(Subject):
    """A module with the exact map that it emulates, in float64, and its inputs by the names that refusals use."""

    exact: object
    inputs: dict

    def drawn(self, how, *batch, seed=0):
        """Inputs of this kind, by name, as the construction's dtype stores them."""
        generator, dtype = torch.Generator().manual_seed(seed), self.thing.certificate.dtype
        return {name: one.drawn(how, generator, *batch).to(dtype) for name, one in self.inputs.items()}

    def tolerance(self, answer):
        """Both evaluations are within the bound."""
        return min(2 * self.thing.certificate.bound, super().tolerance(answer))


@cache
def built(case):
    make, exact, *given = CASES[case]
    module, batch = make(), (2, 3)
    if given:
        [inputs] = given
    else:
        domain = module.domain
        n, d = domain.samples, domain.features
        inputs = {"x": Input((n, d), domain.x), "y": Input((n,), domain.y), "w": Input((d,), domain.w)}
    made = Construction(
        module, {}, batch, lambda parts: module(*parts.values()), NEAR[module.certificate.dtype], exact, inputs
    )
    made.given.update(made.drawn("inside", *batch))
    return made


@pytest.fixture(params=CASES)
def subject(request):
    return built(request.param)


def refused(subject, parts, *words):
    """In one line that has these words."""
    with pytest.raises(EmulonError) as caught:
        subject.call(parts)
    line = str(caught.value)
    assert "\n" not in line and all(word in line for word in words), line


@pytest.mark.parametrize("check", COMMON, ids=lambda check: check.__name__)
def test_it_keeps_what_all_contracts_ask(subject, check):
    check(subject)


def test_weights_are_frozen_and_the_certificate_is_finite_for_the_domain_and_shown(subject):
    module, certificate = subject.thing, subject.thing.certificate
    assert not list(module.parameters()) and list(module.buffers())
    out = subject.call(subject.drawn("inside"))
    assert not out.requires_grad and out.dtype == certificate.dtype
    assert certificate.scope == "domain" and 0 <= certificate.bound < math.inf
    assert certificate.terms and all(value >= 0 for value in certificate.terms.values())
    assert f"{certificate.bound:.2e}" in repr(module)


@pytest.mark.parametrize(("how", "seed"), [("inside", 0), ("corners", 1), ("faces", 1), ("zeros", 1)])
def test_the_certificate_holds(subject, how, seed):
    """|observed − exact| ≤ bound inside the domain, and at its edges, where entries are extreme or zero."""
    parts = subject.drawn(how, TRIED, seed=seed)
    exact, out = subject.exact(*(part.double() for part in parts.values())), subject.call(parts)
    assert out.shape == exact.shape
    subject.thing.certificate.verify(out, exact)


def test_batch_dimensions_broadcast(subject):
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


def test_inputs_that_are_not_finite_or_outside_the_domain_are_refused(subject):
    for name in subject.inputs:
        for bad in (math.nan, math.inf):
            parts = subject.drawn("corners")
            parts[name].view(-1)[0] = bad
            refused(subject, parts, name)
        parts = subject.drawn("corners")
        refused(subject, parts | {name: 1000 * parts[name]})


def test_wrong_shapes_are_refused(subject):
    """A size that is off by one, or a dimension too few; batches that do not fit."""
    for name, one in subject.inputs.items():
        sizes = [(*one.shape[:k], one.shape[k] + 1, *one.shape[k + 1 :]) for k in range(len(one.shape))]
        for size in [*sizes, one.shape[1:]]:
            bad = {name: torch.zeros(size, dtype=subject.thing.certificate.dtype)}
            refused(subject, subject.drawn("inside") | bad, name, str(size))
    first, parts = next(iter(subject.inputs)), subject.drawn("inside", 3)
    if len(parts) > 1:
        refused(subject, parts | {first: parts[first][:2]}, first)


def test_every_construction_is_checked():
    assert {type(built(case).thing).__name__ for case in CASES} == set(constructions.__all__)
