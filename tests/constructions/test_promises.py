"""Observed ≤ bound, always: random domains, functions and heads, data at the very edges, and the worst we can find."""

import statistics
from functools import lru_cache

import pytest
import torch
from construction_cases import exact_map, exact_step, f64, generator, gradient_step, residual_map
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulon.algorithms import as_loss
from emulon.certify import Domain
from emulon.constructions import HeadInEmbedding, HeadInTokens, LinearLayer

f32 = torch.float32
OFTEN = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
SELDOM = settings(OFTEN, max_examples=30)

DOMAINS = [
    Domain(samples=7, features=2, x=3.0, y=10.0, w=0.5),
    Domain(samples=12, features=5, x=0.2, y=1.0, w=4.0),
    Domain(samples=5, features=9, x=1.0, y=1.0, w=2.0, residual=2.0, absolute=19.0),
]
MAPS = [("t", 1e-9, f64), ("exp(-t**2)", 1e-6, f64), ("Max(t, 0)", 1e-3, f64), ("t", 1e-2, f32)]


@lru_cache
def worst_argument(f):
    """Where |F − f| is largest: a fine search in the grid's own interval."""
    reach = min(f.grid.hi, -f.grid.lo) * (1 - 1e-12)
    s = torch.linspace(-reach, reach, 20001, dtype=f64)
    return s[(f(s).double() - f.function(s)).abs().argmax()].item()


def edges(domain, dtype, seed):
    """Data with every entry at ±bound or 0, and signs at random."""
    g, n, d = generator(seed), domain.samples, domain.features

    def signs(*shape):
        return torch.randint(-1, 2, shape, generator=g, dtype=f64)

    return (domain.x * signs(n, d)).to(dtype), (domain.y * signs(n)).to(dtype), (domain.w * signs(d)).to(dtype)


def aimed(domain, s, dtype, cancel):
    """Data whose residuals are all s, |x| at its bound; with `cancel`, out of products that all but cancel."""
    n, d = domain.samples, domain.features
    y = max(-domain.y, min(domain.y, -s))
    rest = s + y
    x = torch.full((n, d), domain.x, dtype=f64)
    w = torch.zeros(d, dtype=f64)
    pairs = (d - 1) // 2 if cancel else 0
    w[: 2 * pairs : 2], w[1 : 2 * pairs : 2] = domain.w, -domain.w
    w[2 * pairs :] = rest / (domain.x * (d - 2 * pairs))
    w[2 * pairs :].clamp_(-domain.w, domain.w)
    return x.to(dtype), torch.full((n,), y, dtype=dtype), w.to(dtype)


def held(domain, x, y, w):
    """Scaled down where a domain with a narrower residual or absolute bound would refuse."""
    residual = ((x.double() @ w.double()) - y.double()).abs().max().item()
    absolute = ((x.double().abs() @ w.double().abs()) + y.double().abs()).max().item()
    scale = min(
        1.0, 0.999999 * domain.residual / max(residual, 1e-300), 0.999999 * domain.absolute / max(absolute, 1e-300)
    )
    return x, y * scale, w * scale


@OFTEN
@given(
    st.sampled_from(MAPS), st.sampled_from(DOMAINS), st.integers(0, 10**6), st.sampled_from(["edge", "aimed", "cancel"])
)
def test_residual_maps_keep_their_promise_at_the_edges_and_at_the_worst_residual(case, domain, seed, how):
    f, tolerance, dtype = case
    module = residual_map(f, tolerance * max(1.0, domain.x), domain, dtype=dtype)
    if how == "edge":
        x, y, w = edges(domain, dtype, seed)
    else:
        s = worst_argument(module.f)
        x, y, w = aimed(domain, s * (1 if seed % 2 else 1 - seed * 1e-8), dtype, how == "cancel")
    x, y, w = held(domain, x, y, w)
    module.certificate.verify(module(x, y, w), exact_map(f, x, y, w))


STEPS = [
    ("squared", 1e-8, 0.0, f64),
    ("log_cosh", 1e-3, 0.5, f64),
    ("huber", 1e-3, 0.0, f64),
    ("squared", 1e-3, 30.0, f64),  # the step overshoots: 1 − η·l2 is far below −1
    ("log_cosh", 1e-2, 3.0, f32),
]


@SELDOM
@given(st.sampled_from(STEPS), st.sampled_from(DOMAINS[:2]), st.integers(0, 10**6), st.booleans())
def test_gradient_steps_keep_their_promise(case, domain, seed, edge):
    name, tolerance, l2, dtype = case
    module = gradient_step(name, tolerance, l2, 0.0, domain, 0.1, dtype)
    x, y, w = edges(domain, dtype, seed)
    if not edge:
        x, y, w = aimed(domain, worst_argument(module.f), dtype, bool(seed % 2))
    module.certificate.verify(module(x, y, w), exact_step(as_loss(name), x, y, w, 0.1, l2))


def ratios():
    """bound/observed on data aimed at the worst point, where interpolation rules."""
    found = {}
    for f, tolerance in (
        ("t", 1e-4),
        ("1/(1 + t**2)", 1e-3),
        ("exp(-t**2)", 1e-4),
        ("sin(2*t)", 1e-3),
        ("Max(t, 0)", 1e-2),
    ):
        module = residual_map(f, tolerance, DOMAINS[1])
        x, y, w = aimed(DOMAINS[1], worst_argument(module.f), f64, False)
        found[f] = module, module(x, y, w) - exact_map(f, x, y, w)
    module = gradient_step("squared", 1e-4, 0.0, 0.0, DOMAINS[0], 0.1)
    x, y, w = aimed(DOMAINS[0], worst_argument(module.f), f64, False)
    found["step"] = module, module(x, y, w) - exact_step(as_loss("squared"), x, y, w, 0.1)
    layer = LinearLayer(4, 3, 2, 5.0, 1e-4)
    s = worst_argument(layer.f)
    x, theta = torch.full((4, 3), s / 3, dtype=f64), torch.ones(2, 3, dtype=f64)
    found["layer"] = layer, layer(x, theta) - x @ theta.mT
    return {name: module.certificate.bound / error.abs().max().item() for name, (module, error) in found.items()}


def test_bounds_are_tight_where_interpolation_rules():
    tightness = ratios()
    assert min(tightness.values()) >= 1
    assert statistics.median(tightness.values()) < 10, tightness
    assert max(tightness.values()) < 100, tightness


@pytest.mark.parametrize("cls", [HeadInTokens, HeadInEmbedding])
def test_the_bound_for_particular_data_is_tight_too(cls):
    """Equal weights on all tokens, so that the output is V's own error at the grid's worst point."""
    module = cls(4, 1, 1, 3.0, 1e-3)
    f = module.layer.f if cls is HeadInTokens else module.f
    s = worst_argument(f)
    x, zero = torch.ones(4, 1, dtype=f64), torch.zeros(1, 1, dtype=f64)
    value = torch.full((1, 1), s, dtype=f64)
    error = (module(x, zero, zero, value) - s).abs().max().item()
    assert 1 <= module.audit(x, zero, zero, value).bound / error < 10
