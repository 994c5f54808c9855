"""The layers of PyTorch's modules, and of scikit-learn's multilayer perceptrons."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from emulon.core.arrays import accepts_arraylike, eye, ones
from emulon.core.errors import BadNetwork
from emulon.expressions import parse
from emulon.networks.builder import HEAD, Builder, joined, lower_part, lowers

f64 = torch.float64
GELU = {"none": "t*(1 + erf(t/sqrt(2)))/2", "tanh": "t*(1 + tanh(sqrt(2/pi)*(t + 0.044715*t**3)))/2"}
# The function of a module, written in t.
FUNCTIONS: dict[type[nn.Module], Callable[[Any], str]] = {
    nn.Tanh: lambda module: "tanh(t)",
    nn.Sigmoid: lambda module: "(1 + tanh(t/2))/2",
    nn.Mish: lambda module: "t*tanh(log(1 + exp(t)))",
    nn.GELU: lambda module: GELU.get(module.approximate, f"gelu by {module.approximate}"),
    nn.ELU: lambda module: f"Max(t, 0) + {as_fraction(module.alpha)}*(exp(Min(t, 0)) - 1)",
    nn.Softplus: lambda module: _softplus(module),
}
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}


@lowers(nn.Sequential)
def sequential(builder: Builder, module: nn.Sequential, place: str) -> None:
    # `named_children` would skip a part that is used twice.
    for name, part in module._modules.items():
        lower_part(builder, part, joined(place, name))


@lowers(nn.Linear)
def linear(builder: Builder, module: nn.Linear, place: str) -> None:
    builder.affine(module, place)


@lowers(nn.Flatten)
def flatten(builder: Builder, module: nn.Flatten, place: str) -> None:
    if builder.is_sequence or (module.start_dim, module.end_dim) not in ((1, -1), (1, len(builder.shape))):
        raise BadNetwork(f"{place or 'Flatten'}: only a Flatten of all dimensions of an image is compiled")
    builder.shape = (math.prod(builder.shape),)


@lowers(nn.Conv2d, nn.Conv3d)
def convolution(builder: Builder, module: Any, place: str) -> None:
    """A convolution as a matrix."""
    name, plain = place or type(module).__name__, copy.deepcopy(module).to(f64)
    if plain.padding_mode != "zeros":
        raise BadNetwork(f"{name} pads by {plain.padding_mode!r}; only padding with zeros is compiled")
    bias, plain.bias = plain.bias, None
    images = _images(builder, plain, name)
    whole = None if bias is None else bias.repeat_interleave(images[0, 0].numel())
    builder.linear(place, type(module).__name__.lower(), images.flatten(1).T, whole)
    builder.shape = tuple(images.shape[1:])


@lowers(nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
def means(builder: Builder, module: nn.Module, place: str) -> None:
    """Weights are 1/n or 0; n is recovered from its float64 reciprocal."""
    name = place or type(module).__name__
    images = _images(builder, module, name)
    weight = images.flatten(1).T
    divisors = (1 / weight.abs().amax(dim=-1)).round()
    numerators = (weight * divisors.unsqueeze(-1)).round()
    if not bool(((numerators / divisors.unsqueeze(-1) - weight).abs() <= 1e-13 * weight.abs().amax()).all()):
        raise BadNetwork(f"{name} has weights that are no simple fractions of its sizes; only those are compiled")
    builder.divided(place, type(module).__name__.lower(), numerators, divisors)
    builder.shape = tuple(images.shape[1:])


def _images(builder: Builder, linear: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """The images of all unit vectors under a linear map."""
    if builder.is_sequence:
        raise BadNetwork(f"{name} reads an image, and is given positions of {builder.features} features")
    units = eye(builder.features).reshape(-1, *builder.shape)
    try:
        with torch.no_grad():
            return linear(units)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:100]
        raise BadNetwork(f"{name} does not take numbers of shape {builder.shape} ({why})") from None


@lowers(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(builder: Builder, module: Any, place: str) -> None:
    """In evaluation, channel by channel: (x − mean)/√(variance + ε)·γ + β."""
    if module.training or module.running_mean is None or module.running_var is None:
        raise BadNetwork(f"{place or 'BatchNorm'} is in training mode, or keeps no statistics; call .eval() first")
    wanted = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 3, nn.BatchNorm3d: 4}[type(module)]
    if builder.is_sequence or len(builder.shape) != wanted or builder.shape[0] != module.num_features:
        name, channels = place or type(module).__name__, module.num_features
        raise BadNetwork(f"{name} is given numbers of shape {builder.shape}, and normalises {channels} channels")
    each, one = builder.features // module.num_features, ones(module.num_features)
    parts = (module.weight, module.running_mean, module.running_var, module.bias)
    scale, mean, variance, bias = (
        (empty if part is None else part.detach().to(f64)).repeat_interleave(each)
        for part, empty in zip(parts, (one, 0 * one, one, 0 * one), strict=True)
    )
    if not bool((variance + module.eps > 0).all()):
        raise BadNetwork(f"{place or 'BatchNorm'} has a variance that is not positive")
    roots = (variance, torch.full_like(variance, module.eps))
    builder.divided(place, "batch norm", torch.diag(scale), roots, shift=mean, bias=bias)


@lowers(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
def nothing(builder: Builder, module: Any, place: str) -> None:
    if module.training and getattr(module, "p", 0) > 0:
        raise BadNetwork(f"{place or 'a Dropout'} is in training mode and would draw at random; call .eval() first")


class Expression(nn.Module):
    """Any function of one number as a module.

    Args:
        f: The function, written in t.

    Example:
        >>> nn.Sequential(nn.Linear(3, 2), Expression("sin(3*t)"))
    """

    def __init__(self, f: str) -> None:
        super().__init__()
        parse(f)
        self.f = f

    def forward(self, x: Any) -> Any:
        return parse(self.f)(x)


@lowers(*FUNCTIONS)
def plain(builder: Builder, module: nn.Module, place: str) -> None:
    builder.function(place, type(module).__name__.lower(), FUNCTIONS[type(module)](module))


def _softplus(module: nn.Softplus) -> str:
    """PyTorch's is t itself above the threshold: a jump of e^(−threshold), which is refused later."""
    if module.beta != 1:
        raise BadNetwork("a Softplus is compiled for beta=1; write it as an Expression")
    return f"Piecewise((Max(t, 0) + log(1 + exp(-Abs(t))), t <= {as_fraction(module.threshold)}), (t, True))"


def as_fraction(number: float) -> str:
    """The exact value of a float64 number, not its shortest decimal."""
    if not math.isfinite(number):
        raise BadNetwork(f"an activation has {number} for a parameter; give a finite number")
    return f"({Fraction(float(number))})"


@lowers(Expression)
def expression(builder: Builder, module: Expression, place: str) -> None:
    builder.function(place, module.f, module.f)


@lowers(nn.ReLU, nn.LeakyReLU, nn.SiLU)
def gate(builder: Builder, module: nn.Module, place: str) -> None:
    low = float(getattr(module, "negative_slope", 0.0))
    if not -math.inf < low < 1:
        raise BadNetwork(f"{place or 'a LeakyReLU'} has slope {low} below zero; slopes below 1 are compiled")
    builder.gate(place, type(module).__name__.lower(), low, kinked=not isinstance(module, nn.SiLU))


@lowers(nn.LayerNorm, nn.RMSNorm)
def norm(builder: Builder, module: Any, place: str) -> None:
    size, shape = builder.features, tuple(module.normalized_shape)
    if shape != (size,):
        name = place or type(module).__name__
        raise BadNetwork(f"{name} normalises {shape} and is given {size} features; only all of them at once")
    if isinstance(module, nn.LayerNorm):
        builder.divided(place, "less its mean", size * eye(size) - 1, float(size))
    eps = torch.finfo(f64).eps if module.eps is None else module.eps
    builder.norm(place, module.weight, getattr(module, "bias", None), eps)


def as_module(network: Any) -> nn.Module:
    """A module as it is; a fitted MLPClassifier or MLPRegressor as a Sequential in float64."""
    if isinstance(network, nn.Module):
        return network
    name = type(network).__name__
    if not type(network).__module__.startswith("sklearn.neural_network") or not hasattr(network, "hidden_layer_sizes"):
        raise BadNetwork(f"a {name} is no network; give a torch.nn.Module, or an MLP of scikit-learn")
    if not hasattr(network, "coefs_"):
        raise BadNetwork(f"this {name} is not fitted; call fit first")
    parts: list[nn.Module] = []
    # A regressor of counts (loss="poisson") answers with an exponential; a classifier's last step is left out.
    last = [Expression("exp(t)")] if network.out_activation_ == "exp" else []
    for theta, bias in zip(network.coefs_, network.intercepts_, strict=True):
        if parts:
            parts.append(ACTIVATIONS[network.activation]())
        layer = nn.Linear(theta.shape[0], theta.shape[1], device="cpu").double()
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(theta.T.astype(float)))
            layer.bias.copy_(torch.from_numpy(bias.astype(float)))
        parts.append(layer)
    return nn.Sequential(*parts, *last)


@accepts_arraylike("logits", like="logits")
def classes_of(logits: Tensor) -> Tensor:
    """The classes that a classifier's logits name.

    Args:
        logits: (..., outputs); a single output is a logit of the second class.
    Returns:
        Classes (...), counted from 0.

    Example:
        >>> classes_of(run.outputs)
    """
    return (logits.squeeze(-1) > 0).long() if logits.shape[-1] == 1 else logits.argmax(dim=-1)


class Heads(nn.Module):
    """Heads of self-attention side by side, with the weights softmax(q·k/√scale).

    Args:
        w_q: Query matrices (heads, width, features).
        w_k: Key matrices, likewise.
        w_v: Value matrices (heads, out, features).
        biases: b_q, b_k and b_v (heads, ·), all or none.
        causal: Whether position i sees 0..i alone.
        scale: The square of what scores are divided by.

    Example:
        >>> Heads(*torch.randn(3, 2, 4, 8).unbind(), causal=True, scale=4.0)
    """

    def __init__(
        self, w_q: Tensor, w_k: Tensor, w_v: Tensor, *biases: Tensor, causal: bool = False, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.causal, self.scale = causal, scale
        given = biases or tuple(w.new_zeros(w.shape[:2]) for w in (w_q, w_k, w_v))
        for name, part in zip(HEAD, (w_q, w_k, w_v, *given), strict=True):
            self.register_buffer(name, part)

    def forward(self, x: Tensor) -> Tensor:
        parts = [getattr(self, name) for name in HEAD]
        q, k, v = (x.unsqueeze(-3) @ w.mT + b.unsqueeze(-2) for w, b in zip(parts[:3], parts[3:], strict=True))
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale**-0.5)
        return out.movedim(-3, -2).flatten(-2)


def heads_of(attention: Any, heads: Sequence[int] | None = None) -> Heads:
    """Heads of the attention of a Hugging Face GPT-2, before its output projection c_proj.

    Args:
        attention: `model.h[layer].attn`.
        heads: Their numbers; None takes all.
    Returns:
        The heads as a module in float64.

    Example:
        >>> heads_of(model.h[0].attn, [3])
    """
    count, width = attention.num_heads, attention.head_dim
    stacked = attention.c_attn.weight.detach().to(f64).T.unflatten(0, (3, count, width))
    biases = attention.c_attn.bias.detach().to(f64).unflatten(0, (3, count, width))
    chosen = list(range(count)) if heads is None else list(heads)
    (w_q, w_k, w_v), (b_q, b_k, b_v) = stacked[:, chosen], biases[:, chosen]
    return Heads(w_q, w_k, w_v, b_q, b_k, b_v, causal=True, scale=float(width))


@lowers(Heads)
def heads(builder: Builder, module: Heads, place: str) -> None:
    if not 0 < module.scale < math.inf:
        raise BadNetwork(f"{place or 'Heads'} has the scale {module.scale}; it must be positive and finite")
    builder.attention(place, {name: getattr(module, name) for name in HEAD}, module.causal, float(module.scale))
    builder.shape = (builder.shape[0], builder.features)


@lowers(nn.TransformerEncoderLayer)
def encoder_layer(builder: Builder, module: Any, place: str) -> None:
    """Self-attention and two linear layers, each added to its input; normalised before or after."""
    attention, inner = module.self_attn, joined(place, "self_attn")
    for name in ("norm1", "norm2", "linear1", "linear2", "dropout", "dropout1", "dropout2"):
        kind = {"n": nn.LayerNorm, "l": nn.Linear, "d": nn.Dropout}[name[0]]
        builder.require(getattr(module, name), joined(place, name), kind)
    builder.require(attention, inner, nn.MultiheadAttention)
    builder.require(attention.out_proj, joined(inner, "out_proj"), NonDynamicallyQuantizableLinear, nn.Linear)
    if not attention.batch_first or attention.in_proj_weight is None:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is compiled with batch_first=True only")
    if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
        raise BadNetwork(f"{inner} attends to more than its positions (add_bias_kv or add_zero_attn); not compiled")
    drops = (module.dropout, module.dropout1, module.dropout2)
    if any(each.training and each.p for each in drops) or (attention.training and attention.dropout):
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} is in training mode with dropout; call .eval() first")
    before = builder.at
    if module.norm_first:
        builder.part(module.norm1, joined(place, "norm1"))
    stacked = (attention.in_proj_weight, attention.in_proj_bias, attention.num_heads)
    builder.self_attention(inner, *stacked, causal=False)
    after = builder.add_to(before, joined(inner, "out_proj"), attention.out_proj.weight, attention.out_proj.bias)
    if module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))
    else:
        after = builder.part(module.norm1, joined(place, "norm1"))
    builder.linear(joined(place, "linear1"), "linear", module.linear1.weight, module.linear1.bias)
    builder.part(_activation(module, place), joined(place, "activation"))
    builder.add_to(after, joined(place, "linear2"), module.linear2.weight, module.linear2.bias)
    if not module.norm_first:
        builder.part(module.norm2, joined(place, "norm2"))


@lowers(nn.TransformerEncoder)
def encoder(builder: Builder, module: Any, place: str) -> None:
    builder.require(module.layers, joined(place, "layers"), nn.ModuleList)
    for number, layer in enumerate(module.layers):
        builder.require(layer, joined(place, f"layers.{number}"), nn.TransformerEncoderLayer)
        builder.part(layer, joined(place, f"layers.{number}"))
    if module.norm is not None:
        builder.part(module.norm, joined(place, "norm"))


def _activation(module: Any, place: str) -> nn.Module:
    """The layer's activation, which must agree with `activation_relu_or_gelu`, the one of its fast kernel."""
    function, kernel = module.activation, module.activation_relu_or_gelu
    known: dict[Any, nn.Module] = {nn.functional.relu: nn.ReLU(), nn.functional.gelu: nn.GELU()}
    found = function if isinstance(function, nn.Module) else known.get(function)
    if found is None:
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} has an activation that is not relu or gelu")
    plain_gelu = type(found) is nn.GELU and found.approximate == "none"
    if kernel != (1 if type(found) is nn.ReLU else 2 if plain_gelu else 0):
        raise BadNetwork(f"{place or 'a TransformerEncoderLayer'} computes another activation in PyTorch's fast kernel")
    return found
