"""Data, exact answers and constructions that several tests share. Compiling takes a while: do it once."""

from functools import lru_cache

import torch

from emulon.algorithms import MARGIN, RATE
from emulon.certify import Domain
from emulon.constructions import (
    GradientStep,
    HopfieldResidualMap,
    LinearLayer,
    ResidualMap,
    TruncatedLinear,
)
from emulon.expressions import parse

f64 = torch.float64
DOMAIN = Domain(samples=6, features=3, x=2.0, y=1.5, w=1.0)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def uniform(*shape, bound=1.0, seed=0, dtype=f64):
    return ((torch.rand(*shape, dtype=f64, generator=generator(seed)) * 2 - 1) * bound).to(dtype)


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=f64, generator=generator(seed))


def data(domain=DOMAIN, *, batch=(), seed=0, dtype=f64):
    """x, y, w anywhere in the domain (which must be one that follows from its single bounds)."""
    n, d = domain.samples, domain.features
    x = uniform(*batch, n, d, bound=domain.x, seed=seed, dtype=dtype)
    y = uniform(*batch, n, bound=domain.y, seed=seed + 1, dtype=dtype)
    return x, y, uniform(*batch, d, bound=domain.w, seed=seed + 2, dtype=dtype)


def exact_map(f, x, y, w):
    x, y, w = x.double(), y.double(), w.double()
    residual = (x @ w.unsqueeze(-1)).squeeze(-1) - y
    return parse(f)(residual).unsqueeze(-1) * x


def exact_step(loss, x, y, w, step_size, l2=0.0, l1=0.0):
    x, y, fixed = loss.template_data(x.double(), y.double())
    w = w.double()
    slopes = loss.slope((x @ w.unsqueeze(-1)).squeeze(-1) - y)
    gradient = (slopes.unsqueeze(-1) * x).mean(dim=-2) - (0.0 if fixed is None else fixed.mean(dim=-2))
    moved = (1 - step_size * l2) * w - step_size * gradient
    return moved.sign() * (moved.abs() - step_size * l1).clamp(min=0)


def exact_head(x, w_k, w_q, w_v, beta=1.0):
    k, q, v = (x.double() @ w.double().mT for w in (w_k, w_q, w_v))
    return torch.softmax(beta * q @ k.mT, dim=-1) @ v


def random_head(tokens, features, width, *, batch=(), seed=0):
    """x, the three matrices, and a bound that admits them."""
    x = normal(*batch, tokens, features, seed=seed)
    weights = [normal(*batch, width, features, seed=seed + k) / features**0.5 for k in (1, 2, 3)]
    products = max((x @ w.mT).abs().max().item() for w in weights)
    absolute = max((x.abs() @ w.abs().mT).max().item() for w in weights)
    return x, weights, 1.01 * max(products, absolute / 4)


@lru_cache
def residual_map(f="tanh(t)", tolerance=1e-9, domain=DOMAIN, grid="auto", points=None, dtype=f64):
    return ResidualMap(f, domain, tolerance, grid=grid, points=points, dtype=dtype)


@lru_cache
def hopfield(f="tanh(t)", tolerance=1e-9, domain=DOMAIN, dtype=f64):
    return HopfieldResidualMap(f, domain, tolerance, dtype=dtype)


@lru_cache
def gradient_step(loss="log_cosh", tolerance=1e-9, l2=0.0, l1=0.0, domain=DOMAIN, step_size=None, dtype=f64):
    return GradientStep(loss, domain, tolerance, l2=l2, l1=l1, step_size=step_size, dtype=dtype)


@lru_cache
def linear_layer(tokens=5, features=3, width=4, bound=6.0, tolerance=1e-10, dtype=f64):
    return LinearLayer(tokens, features, width, bound, tolerance, dtype=dtype)


@lru_cache
def truncated(grid="auto", tolerance=1e-3, heads=None, tokens=12):
    return TruncatedLinear(tokens, 3, -1.0, 2.0, tolerance, reach=None, heads=heads, grid=grid)


def step_data(loss, domain=DOMAIN, *, batch=(), seed=0, dtype=f64):
    """Data that the loss can take: labels for a margin, counts for a rate."""
    x, y, w = data(domain, batch=batch, seed=seed, dtype=dtype)
    if loss.link == MARGIN:
        y = torch.where(y >= 0, 1.0, -1.0).to(dtype)
    if loss.link == RATE:
        y = y.abs().round()
    return x, y, w
