"""From a module to layers: `lower` asks the registry how each part is written, and names it by its place.

A part is added with `@lowers(nn.Something)`: a function of the builder, the module and the name of its place. It is
used for modules of exactly this class whose forward is the class's own. Of any other class, subclasses too, the forward
is followed by torch.fx; modules with hooks are refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from emulon.certify.domain import require_finite
from emulon.certify.error_free import two_product
from emulon.core.errors import BadNetwork, nearest
from emulon.networks.layers import Attention, Constant, Elementwise, Gated, Layer, Linear, Root, Unrounded

f64 = torch.float64
Lowering = Callable[["Builder", Any, str], None]
REGISTRY: dict[type, Lowering] = {}
SQUARE, ROOT = "t**2", "1/sqrt(t)"
# What a head is made of.
HEAD = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")


def lowers(*kinds: type) -> Callable[[Lowering], Lowering]:
    """Registers how modules of these classes are written in layers."""

    def register(lowering: Lowering) -> Lowering:
        REGISTRY.update(dict.fromkeys(kinds, lowering))
        return lowering

    return register


class Builder:
    """Layers so far; `at` is the register that the next part reads, and `shape` how its numbers are to be read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.layers: list[Layer] = []
        self.given = self.shape = shape
        self.at = 0
        self.is_sequence = len(shape) == 2
        self.sizes = [shape[-1] if self.is_sequence else math.prod(shape)]

    @property
    def features(self) -> int:
        return self.sizes[self.at]

    def add(self, layer: Layer, features: int) -> int:
        """The register that it writes, which is the next part's to read."""
        self.layers.append(layer)
        self.sizes.append(features)
        self.at = len(self.layers)
        return self.at

    @staticmethod
    def name(place: str, what: str) -> str:
        return f"{place} {what}" if place else what

    @property
    def numbered(self) -> list[Layer]:
        """With names of their own: a place may have several layers of one kind."""
        return [replace(layer, name=f"{number} {layer.name}") for number, layer in enumerate(self.layers)]

    def linear(self, place: str, what: str, weight: Tensor, bias: Tensor | None = None, *reads: int) -> int:
        """Θ·(registers side by side) + b; without `reads`, of the register at hand."""
        weight = weight.detach().to(f64)
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(f64)
        require_finite(**{f"the weight of {place or what}": weight, f"the bias of {place or what}": bias})
        reads = reads or (self.at,)
        if weight.shape[1] != sum(self.sizes[i] for i in reads):
            raise BadNetwork(
                f"{place or what} takes {weight.shape[1]} features and is given {sum(self.sizes[i] for i in reads)}"
            )
        layer = Linear(name=self.name(place, what), reads=reads, weight=weight.contiguous(), bias=bias.contiguous())
        return self.add(layer, len(weight))

    def divided(
        self,
        place: str,
        what: str,
        numerators: Tensor,
        by: float | Tensor | tuple[Tensor, Tensor],
        *,
        shift: Tensor | None = None,
        bias: Tensor | None = None,
        reads: tuple[int, ...] = (),
    ) -> int:
        """N(x − shift)/by + bias, row by row, rounded to Θx + b only in the prompt.

        `by` is a number, one for every row, or two tensors: the root of their sum divides.
        """
        numerators = numerators.detach().to(f64).contiguous()
        out, features = numerators.shape
        if not isinstance(by, tuple):
            divisors = torch.as_tensor(by, dtype=f64, device="cpu").expand(out).contiguous()
            by = two_product(divisors, divisors)
        zeros = [
            torch.zeros(size, dtype=f64, device="cpu") if given is None else given
            for size, given in ((features, shift), (out, bias))
        ]
        shift, bias = (part.detach().to(f64).contiguous() for part in zeros)
        squares = torch.stack([part.detach().to(f64).expand(out) for part in by])
        given = {"the weight": numerators, "the mean": shift, "the variance": squares, "the bias": bias}
        require_finite(**{f"{name} of {place or what}": part for name, part in given.items()})
        exact = Unrounded(numerators, shift, squares, bias)
        weight, rounded = (ball.high for ball in exact.balls())
        at = self.linear(place, what, weight, rounded, *reads)
        layer = self.layers[-1]
        assert isinstance(layer, Linear)
        self.layers[-1] = replace(layer, unrounded=exact)
        return at

    def elementwise(self, place: str, what: str, f: str, gated: Gated | None = None, most: float = math.inf) -> int:
        layer = Elementwise(name=self.name(place, what), reads=(self.at,), f=f, gated=gated, most=most)
        return self.add(layer, self.features)

    def root(self, place: str, within: tuple[float, float] | None = None) -> int:
        name = self.name(place, "reciprocal root")
        return self.add(Root(name=name, reads=(self.at,), f=ROOT, within=within), self.features)

    def constant(self, place: str, values: Tensor) -> int:
        values = values.detach().to(f64)
        require_finite(**{place: values})
        layer = Constant(name=self.name(place, "constant"), reads=(), values=values.contiguous())
        return self.add(layer, values.shape[1])

    def attention(self, place: str, parts: dict[str, Tensor], causal: bool, scale: float = 1.0) -> int:
        parts = {name: part.detach().to(f64).contiguous() for name, part in parts.items()}
        require_finite(**{f"{name} of {place}": part for name, part in parts.items()})
        name = self.name(place, "attention")
        layer = Attention(name=name, reads=(self.at,), causal=causal, scale=scale, **parts)
        return self.add(layer, parts["b_v"].numel())

    def self_attention(self, place: str, weight: Tensor, bias: Tensor | None, heads: int, *, causal: bool) -> int:
        """Of the rows for q, then k, then v, each of all heads, as torch and GPT-2 stack them; scores q·k/√width."""
        weight = weight.detach().to(f64)
        width = len(weight) // 3 // heads
        bias = weight.new_zeros(len(weight)) if bias is None else bias.detach().to(f64)
        (w_q, w_k, w_v), (b_q, b_k, b_v) = (part.unflatten(0, (3, heads, width)) for part in (weight, bias))
        parts = (w_q, w_k, w_v, b_q, b_k, b_v)
        return self.attention(place, dict(zip(HEAD, parts, strict=True)), causal, float(width))

    def part(self, module: nn.Module, place: str) -> int:
        """Whatever the module is made of."""
        lower_part(self, module, place)
        return self.at

    def plus(self, first: int, second: int, place: str, sign: float = 1.0) -> int:
        """The sum, or the difference, of two registers."""
        one = torch.eye(self.sizes[first], dtype=f64, device="cpu")
        return self.linear(place, "sum", torch.cat([one, sign * one], dim=-1), None, first, second)

    def affine(self, module: nn.Linear, place: str) -> None:
        """A map of the features at every position."""
        if not self.is_sequence and len(self.shape) > 1:
            raise BadNetwork(f"{place or 'a Linear'} is given numbers of shape {self.shape}; put a Flatten before it")
        self.linear(place, "linear", module.weight, module.bias)
        self.shape = (*self.shape[:-1], len(module.weight))

    def require(self, module: nn.Module, place: str, *kinds: type) -> None:
        """Of a part that is lowered with others: exactly one of these classes, with its own forward."""
        require_own_forward(module, place, *kinds)

    def weights_of(self, module: nn.Module, place: str, *kinds: type) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of such a part."""
        self.require(module, place, *kinds)
        part: Any = module
        return part.weight, part.bias

    def add_to(self, before: int, place: str, weight: Tensor, bias: Tensor | None = None) -> int:
        """before + Θ·(the register at hand) + b, the residual sum being part of the linear map."""
        weight = weight.detach().to(f64)
        both = torch.cat([torch.eye(len(weight), dtype=f64, device="cpu"), weight], dim=-1)
        return self.linear(place, "linear, plus what was before", both, bias, before, self.at)


def lower(module: nn.Module, shape: tuple[int, ...]) -> Builder:
    """The layers of a module on inputs of this shape: (features,), (positions, features) or (channels, …)."""
    if _global_hooks():
        raise BadNetwork("forward hooks for all modules are registered; remove them, they may change what modules do")
    builder = Builder(shape)
    lower_part(builder, module, "")
    if not builder.layers:
        raise BadNetwork("the network has no layer that computes anything")
    return builder


def lower_part(builder: Builder, module: Any, place: str) -> None:
    """By what the module says of itself (`lower_into`), by the registry, or by a trace of its forward."""
    require_own_forward(module, place)
    if hasattr(module, "lower_into"):
        module.lower_into(builder, place)
    elif type(module) in REGISTRY:
        REGISTRY[type(module)](builder, module, place)
    elif not type(module).__module__.startswith("torch.nn."):
        REGISTRY[nn.Module](builder, module, place)
    else:
        known = sorted({kind.__name__ for kind in REGISTRY} - {"Module"})
        name, where = type(module).__name__, f" at {place}" if place else ""
        hint = nearest(name, known) or f"; compiled are {', '.join(known)}"
        raise BadNetwork(f"a {name}{where} is not compiled{hint}")


def knows(module: nn.Module) -> bool:
    """Whether a module is lowered as a whole, and not by following its forward."""
    kind = type(module)
    return hasattr(module, "lower_into") or kind in REGISTRY or kind.__module__.startswith("torch.nn.")


def require_own_forward(module: Any, place: str, *kinds: type) -> None:
    """Refuse a module that may compute something else than the forward of its class.

    Args:
        module: a part of a network.
        place: where it is, for the message.
        kinds: classes of which it must be one, exactly; none means any.

    Raises:
        BadNetwork: it has hooks, a method or weight replaced on the instance, or is of another class.
    """
    if not isinstance(module, nn.Module):
        raise BadNetwork(f"{place or 'the network'} is a {type(module).__name__}, not a torch.nn.Module")
    kind = type(module)
    who = f"a {kind.__name__}{f' at {place}' if place else ''}"
    if kinds and kind not in kinds:
        raise BadNetwork(f"{who} is not compiled there; a {' or '.join(each.__name__ for each in kinds)} is")
    if parametrize.is_parametrized(module):
        raise BadNetwork(f"{who} has parametrised weights; fix them with parametrize.remove_parametrizations")
    if module._forward_hooks or module._forward_pre_hooks:
        raise BadNetwork(f"{who} has forward hooks, which may change what it computes; remove them")
    written, followed = hasattr(kind, "lower_into"), not (hasattr(kind, "lower_into") or kind in REGISTRY)
    replaced = [
        name
        for name, value in vars(module).items()
        if value is not None
        and (name in CALLS or name == "lower_into" or (not followed and callable(getattr(kind, name, None))))
    ]
    replaced += [name for name in CALLS[1:] if getattr(kind, name, None) is not getattr(nn.Module, name, None)]
    if replaced:
        raise BadNetwork(f"{who} has {replaced[0]} replaced; write a module whose forward does the same")
    for what, lowering in WRITTEN if written else ():
        owner = next((each for each in kind.__mro__ if {what, lowering} & set(vars(each))), None)
        if owner is not None and lowering not in vars(owner):
            raise BadNetwork(f"{who} changes {what} and inherits {lowering}, which describes another; write both")
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    written_in = getattr(kind.forward, "__globals__", {}).get("__name__")
    if kind in REGISTRY and owner.__module__.startswith("torch.") and written_in != owner.__module__:
        raise BadNetwork(f"the forward of {kind.__name__} is not PyTorch's own; put it back")
    for name, part in [*module._parameters.items(), *module._buffers.items()]:
        if part is None:
            continue
        if type(part) not in (Tensor, nn.Parameter):
            raise BadNetwork(f"{name} of {who} is a {type(part).__name__}; only plain tensors are compiled")
        if part.is_complex() or part.is_quantized or part.is_meta or part.layout is not torch.strided:
            raise BadNetwork(f"{name} of {who} is no plain tensor of real numbers in memory; only those are compiled")


# What runs a module, and what it runs: `forward` first, the others are nn.Module's.
CALLS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")
# What a class computes, and how it says so in layers: a subclass that changes the first changes the second.
WRITTEN = (("forward", "lower_into"), ("states", "lower_states"))


def _global_hooks() -> bool:
    from torch.nn.modules import module

    return bool(module._global_forward_hooks or module._global_forward_pre_hooks)


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


@lowers(nn.Sequential)
def sequential(builder: Builder, module: nn.Sequential, place: str) -> None:
    # Not `named_children`, which passes over a part that is used twice.
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
    """The matrix that it is; padding other than zeros copies numbers first, for their weights would be added up."""
    plain = copy.deepcopy(module).to(f64)
    if plain.padding_mode != "zeros":
        widths, mode = plain._reversed_padding_repeated_twice, plain.padding_mode
        images = _images(builder, lambda units: nn.functional.pad(units, widths, mode=mode), place or "padding")
        builder.linear(place, "padding", images.flatten(1).T)
        builder.shape = tuple(images.shape[1:])
        plain.padding_mode, plain.padding = "zeros", (0,) * len(plain.kernel_size)
    bias, plain.bias = plain.bias, None
    images = _images(builder, plain, place or type(module).__name__)
    whole = None if bias is None else bias.repeat_interleave(images[0, 0].numel())
    builder.linear(place, type(module).__name__.lower(), images.flatten(1).T, whole)
    builder.shape = tuple(images.shape[1:])


@lowers(nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.Upsample)
def means(builder: Builder, module: nn.Module, place: str) -> None:
    """Weights are whole numbers over one divisor for every row, which are found again from what float64 makes of them.

    A mean of n numbers has 1/n or 0; interpolation between neighbours has whole multiples of 1/∏ 2·size.
    """
    name = place or type(module).__name__
    images = _images(builder, module, name)
    weight = images.flatten(1).T
    if isinstance(module, nn.Upsample):
        out, corners = images.shape[2:], bool(module.align_corners)
        each = math.prod(max(size - 1, 1) if corners else 2 * size for size in out)
        divisors = torch.full((len(weight),), float(each), dtype=f64, device="cpu")
    else:
        divisors = (1 / weight.abs().amax(dim=-1)).round()
    numerators = (weight * divisors.unsqueeze(-1)).round()
    if not bool(((numerators / divisors.unsqueeze(-1) - weight).abs() <= 1e-13 * weight.abs().amax()).all()):
        raise BadNetwork(f"{name} has weights that are no simple fractions of its sizes; only those are compiled")
    builder.divided(place, type(module).__name__.lower(), numerators, divisors)
    builder.shape = tuple(images.shape[1:])


def _images(builder: Builder, linear: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """What a linear map makes of unit vectors, one for every number of the image at hand."""
    if builder.is_sequence:
        raise BadNetwork(f"{name} reads an image, and is given positions of {builder.features} features")
    units = torch.eye(builder.features, dtype=f64, device="cpu").reshape(-1, *builder.shape)
    try:
        with torch.no_grad():
            return linear(units)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:100]
        raise BadNetwork(f"{name} does not take numbers of shape {builder.shape} ({why})") from None


@lowers(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def batch_norm(builder: Builder, module: Any, place: str) -> None:
    """Once trained it is a scale and a shift for every channel: (x − mean)/√(variance + ε)·γ + β."""
    if module.training or module.running_mean is None or module.running_var is None:
        raise BadNetwork(f"{place or 'BatchNorm'} is in training mode, or keeps no statistics; call .eval() first")
    wanted = {nn.BatchNorm1d: 1, nn.BatchNorm2d: 3, nn.BatchNorm3d: 4}[type(module)]
    if builder.is_sequence or len(builder.shape) != wanted or builder.shape[0] != module.num_features:
        name, channels = place or type(module).__name__, module.num_features
        raise BadNetwork(f"{name} is given numbers of shape {builder.shape}, and normalises {channels} channels")
    each, one = builder.features // module.num_features, torch.ones(module.num_features, dtype=f64, device="cpu")
    parts = (module.weight, module.running_mean, module.running_var, module.bias)
    scale, mean, variance, bias = (
        (empty if part is None else part.detach().to(f64)).repeat_interleave(each)
        for part, empty in zip(parts, (one, 0 * one, one, 0 * one), strict=True)
    )
    if not bool((variance + module.eps > 0).all()):
        raise BadNetwork(f"{place or 'BatchNorm'} has a variance that is not positive")
    roots = (variance, torch.full_like(variance, module.eps))
    builder.divided(place, "batch norm", torch.diag(scale), roots, shift=mean, bias=bias)


@lowers(nn.Identity)
def identity(builder: Builder, module: nn.Module, place: str) -> None:
    """Nothing."""


@lowers(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)
def dropout(builder: Builder, module: Any, place: str) -> None:
    if module.training and module.p > 0:
        raise BadNetwork(f"{place or 'a Dropout'} is in training mode and would draw at random; call .eval() first")
