"""What a module computes, in Arb balls of many bits, by the formulas of PyTorch's documentation.

Weights, buffers and parameters such as eps are the float64 numbers that the module holds; nothing of emulon takes part.
Arrays are numpy's, of Arb balls: (features,), (positions, features) or (channels, height, width), without a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flint import arb, ctx
from torch import Tensor, nn

BITS = 700
RULES: dict[type, Callable[[Any, np.ndarray], np.ndarray]] = {}


def rule(*kinds: type) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def balls(numbers: Tensor) -> np.ndarray:
    flat = [arb(number) for number in numbers.detach().double().flatten().tolist()]
    return _array(flat).reshape(numbers.shape)


def exact(module: nn.Module, x: np.ndarray) -> np.ndarray:
    return RULES[type(module)](module, x)


def error(module: nn.Module, x: Tensor, outputs: Tensor) -> float:
    """Below the largest |output − exact output|, over all rows; NaN where the judge knows nothing."""
    before, ctx.prec = ctx.prec, BITS
    try:
        worst = 0.0
        for row, output in zip(x, outputs, strict=True):
            wanted, own = exact(module, balls(row)).flatten(), balls(output).flatten()
            for a, b in zip(wanted, own, strict=True):
                if not a.is_finite() or float(a.rad()) > 1e-40 * (1 + abs(float(a.mid()))):
                    return math.nan
                worst = max(worst, float(abs(a - b).lower()))
        return worst
    finally:
        ctx.prec = before


def _array(values: list[Any]) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def each(function: Callable[[Any], Any]) -> Callable[[Any, np.ndarray], np.ndarray]:
    return lambda module, x: _array([function(t) for t in x.flatten()]).reshape(x.shape)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """The one or the other; both where a ball may be on either side."""
    return yes if condition is True else no if condition is False else yes.union(no)


def below(t: Any, edge: Any) -> Any:
    return True if t < edge else False if t >= edge else None


def relu(t: Any) -> Any:
    return where(below(t, arb(0)), arb(0), t)


def gelu(t: Any) -> Any:
    return t * (1 + (t / arb(2).sqrt()).erf()) / 2


def tanh_gelu(t: Any) -> Any:
    return t * (1 + ((2 / arb.pi()).sqrt() * (t + arb("0.044715") * t**3)).tanh()) / 2


def softplus(t: Any) -> Any:
    return (1 + t.exp()).log()


RULES[nn.ReLU] = each(relu)
RULES[nn.Tanh] = each(lambda t: t.tanh())
RULES[nn.Sigmoid] = each(lambda t: 1 / (1 + (-t).exp()))
RULES[nn.SiLU] = each(lambda t: t / (1 + (-t).exp()))
RULES[nn.Mish] = each(lambda t: t * softplus(t).tanh())
RULES[nn.Identity] = RULES[nn.Dropout] = lambda module, x: x
RULES[nn.Flatten] = lambda module, x: x.reshape(-1)


@rule(nn.GELU)
def _gelu(module: nn.GELU, x: np.ndarray) -> np.ndarray:
    return each(gelu if module.approximate == "none" else tanh_gelu)(module, x)


@rule(nn.LeakyReLU)
def _leaky(module: nn.LeakyReLU, x: np.ndarray) -> np.ndarray:
    return each(lambda t: where(below(t, arb(0)), arb(module.negative_slope) * t, t))(module, x)


@rule(nn.ELU)
def _elu(module: nn.ELU, x: np.ndarray) -> np.ndarray:
    return each(lambda t: where(below(t, arb(0)), arb(module.alpha) * (t.exp() - 1), t))(module, x)


@rule(nn.Softplus)
def _softplus(module: nn.Softplus, x: np.ndarray) -> np.ndarray:
    beta, threshold = arb(module.beta), arb(module.threshold)
    inside = each(lambda t: where(below(beta * t, threshold), softplus(beta * t) / beta, t))
    return inside(module, x)


@rule(nn.Sequential)
def _sequential(module: nn.Sequential, x: np.ndarray) -> np.ndarray:
    for part in module:
        x = exact(part, x)
    return x


def affine(weight: Tensor, bias: Tensor | None, x: np.ndarray) -> np.ndarray:
    out = x @ balls(weight).T
    return out if bias is None else out + balls(bias)


@rule(nn.Linear)
def _linear(module: nn.Linear, x: np.ndarray) -> np.ndarray:
    return affine(module.weight, module.bias, x)


def mean(values: np.ndarray) -> Any:
    return values.sum() / arb(values.size)


@rule(nn.LayerNorm)
def _layer_norm(module: nn.LayerNorm, x: np.ndarray) -> np.ndarray:
    if x.ndim == 2:
        return np.stack([_layer_norm(module, row) for row in x])
    off = x - mean(x)
    out = off / (mean(off * off) + arb(module.eps)).sqrt()
    out = out if module.weight is None else out * balls(module.weight)
    return out if module.bias is None else out + balls(module.bias)


@rule(nn.RMSNorm)
def _rms_norm(module: nn.RMSNorm, x: np.ndarray) -> np.ndarray:
    if x.ndim == 2:
        return np.stack([_rms_norm(module, row) for row in x])
    eps = torch.finfo(torch.float64).eps if module.eps is None else module.eps
    out = x / (mean(x * x) + arb(eps)).sqrt()
    return out if module.weight is None else out * balls(module.weight)


@rule(nn.BatchNorm1d, nn.BatchNorm2d)
def _batch_norm(module: Any, x: np.ndarray) -> np.ndarray:
    """In evaluation, channel by channel."""
    ones = torch.ones(module.num_features)
    parts = (module.running_mean, module.running_var, module.weight, module.bias)
    parts = (
        balls(o if part is None else part) for o, part in zip((0 * ones, ones, ones, 0 * ones), parts, strict=True)
    )
    shape = (-1, *[1] * (x.ndim - 1))
    middle, variance, weight, bias = (part.reshape(shape) for part in parts)
    roots = each(lambda v: (v + arb(module.eps)).sqrt())(module, variance)
    return (x - middle) / roots * weight + bias


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: Any, causal: bool) -> np.ndarray:
    rows = []
    for i in range(len(q)):
        seen = range(i + 1 if causal else len(k))
        scores = [(q[i] * k[j]).sum() / scale for j in seen]
        weights = [(score - scores[0]).exp() for score in scores]
        rows.append(sum(w * v[j] for w, j in zip(weights, seen, strict=True)) / sum(weights, arb(0)))
    return np.stack(rows)


@rule(nn.MultiheadAttention)
def _multihead(module: nn.MultiheadAttention, x: np.ndarray) -> np.ndarray:
    width = module.embed_dim // module.num_heads
    q, k, v = np.split(affine(module.in_proj_weight, module.in_proj_bias, x), 3, axis=-1)
    heads = [slice(start, start + width) for start in range(0, module.embed_dim, width)]
    out = [attention(q[:, at], k[:, at], v[:, at], arb(width).sqrt(), False) for at in heads]
    return affine(module.out_proj.weight, module.out_proj.bias, np.concatenate(out, axis=-1))


@rule(nn.TransformerEncoderLayer)
def _encoder(module: Any, x: np.ndarray) -> np.ndarray:
    function = {nn.functional.relu: relu, nn.functional.gelu: gelu}[module.activation]

    def feed(x: np.ndarray) -> np.ndarray:
        return exact(module.linear2, each(function)(module, exact(module.linear1, x)))

    if module.norm_first:
        x = x + exact(module.self_attn, exact(module.norm1, x))
        return x + feed(exact(module.norm2, x))
    x = exact(module.norm1, x + exact(module.self_attn, x))
    return exact(module.norm2, x + feed(x))
