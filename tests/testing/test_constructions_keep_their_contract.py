"""Every construction we ship passes `construction_checks`, in float64 and where it is offered in float32."""

from functools import cache

import pytest
import torch

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
from emulon.expressions import parse
from emulon.testing import Input, construction_checks
from emulon.testing.construction import CHECKS

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
    def exact(x, y, w):
        return parse(f)((x @ w.unsqueeze(-1)).squeeze(-1) - y).unsqueeze(-1) * x

    return exact


def step(loss, size, l2=0.0, l1=0.0):
    def exact(x, y, w):
        one = as_loss(loss)
        x, y, fixed = one.template_data(x, y)
        slopes = one.slope((x @ w.unsqueeze(-1)).squeeze(-1) - y)
        gradient = (slopes.unsqueeze(-1) * x).mean(dim=-2) - (0.0 if fixed is None else fixed.mean(dim=-2))
        moved = (1 - size * l2) * w - size * gradient
        return moved.sign() * (moved.abs() - size * l1).clamp(min=0)

    return exact


def head(x, w_k, w_q, w_v):
    k, q, v = (x @ w.mT for w in (w_k, w_q, w_v))
    return torch.softmax(q @ k.mT, dim=-1) @ v


def linear(x, theta):
    return x @ theta.mT


def clipped(x, w):
    return (x @ w.unsqueeze(-1)).squeeze(-1).clamp(-1.0, 2.0)


def sharp(x, w):
    return (x @ w.unsqueeze(-1)).squeeze(-1)


# What it is, how it is built, the exact map, and its inputs where they are not those of DOMAIN.
CASES = {
    "residual map": (lambda: ResidualMap("tanh(t)", DOMAIN, 1e-9), residual("tanh(t)")),
    "residual map, smooth": (lambda: ResidualMap("exp(-t**2)", DOMAIN, 1e-6), residual("exp(-t**2)")),
    "residual map, kink": (lambda: ResidualMap("Max(t, 0)", DOMAIN, 1e-3), residual("Max(t, 0)")),
    "residual map, paper": (lambda: ResidualMap("t", DOMAIN, points=65, grid="paper"), residual("t")),
    "residual map, float32": (lambda: ResidualMap("t", DOMAIN, 1e-2, dtype=f32), residual("t")),
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
    "linear layer, float32": (lambda: LinearLayer(5, 3, 4, 6.0, 1e-2, dtype=f32), linear, LINEAR),
    "scalar heads": (
        lambda: ScalarHeads("sin(t)", 5, 3, 4, 6.0, 1e-8),
        lambda x, theta: linear(x, theta).sin(),
        LINEAR,
    ),
    "truncated": (lambda: TruncatedLinear(12, 3, -1.0, 2.0, 1e-3), clipped, CLIPPED),
    "truncated, paper": (lambda: TruncatedLinear(12, 3, -3.0, 3.0, heads=4, grid="paper"), sharp, CLIPPED),
    "head in tokens": (lambda: HeadInTokens(6, 3, 2, 3.0, 1e-8), head, HEAD),
    "head in tokens, paper": (lambda: HeadInTokens(6, 3, 2, 3.0, points=17, grid="paper"), head, HEAD),
    "head in embedding": (lambda: HeadInEmbedding(6, 3, 2, 3.0, 1e-8), head, HEAD),
    "head in embedding, paper": (lambda: HeadInEmbedding(6, 3, 2, 3.0, heads=9, grid="paper"), head, HEAD),
}


@cache
def built(case):
    return CASES[case][0]()


@pytest.fixture(params=CASES)
def checks(request):
    return dict(construction_checks(built(request.param), *CASES[request.param][1:]))


@pytest.mark.parametrize("name", [check.__name__ for check in CHECKS])
def test_construction(checks, name):
    checks[name]()


def test_every_construction_is_checked():
    assert {type(built(case)).__name__ for case in CASES} == set(constructions.__all__)
