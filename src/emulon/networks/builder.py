"""From a module to layers: `lower` asks the registry for the layers of each part, and names them by its place.

A part is added with `@lowers(nn.Something)`: a function of the builder, the module and the name of its place. It is
used for modules of exactly this class whose forward is the class's own. Of any other class, subclasses too, the forward
is followed by torch.fx; modules with hooks are refused.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules import module as module_calls
from torch.nn.utils import parametrize

from emulon.certify.domain import require_finite
from emulon.certify.rounding import two_product
from emulon.core.arrays import eye, ones, zeros
from emulon.core.errors import BadNetwork, nearest
from emulon.networks.attention import Attention
from emulon.networks.elementwise import Function, Gate
from emulon.networks.layers import Layer
from emulon.networks.maps import Constant, Linear, Norm, Product, ReciprocalRoot, Unrounded, rounded
from emulon.networks.softmaxes import SQUARE

f64 = torch.float64
Lowering = Callable[["Builder", Any, str], None]
REGISTRY: dict[type, Lowering] = {}
# What a head is made of.
HEAD = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")


def own_numbers(place: str, **parts: Tensor) -> list[Tensor]:
    """Finite float64 copies, which later training of the module does not change."""
    copies = {name: part.detach().to(f64, copy=True).contiguous() for name, part in parts.items()}
    require_finite(**{f"the {name} of {place}": part for name, part in copies.items()})
    return [*copies.values()]


def lowers(*kinds: type) -> Callable[[Lowering], Lowering]:
    """Register the lowering of modules of these classes."""

    def register(lowering: Lowering) -> Lowering:
        REGISTRY.update(dict.fromkeys(kinds, lowering))
        return lowering

    return register


class Builder:
    """Layers so far; `at` is the register that the next part reads, and `shape` the shape of its numbers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.layers: list[Layer] = []
        self.given = self.shape = shape
        self.at = 0
        self.is_sequence = len(shape) == 2
        self.positions = shape[0] if self.is_sequence else 1
        self.sizes = [shape[-1] if self.is_sequence else math.prod(shape)]

    @property
    def features(self) -> int:
        return self.sizes[self.at]

    def add(
        self,
        kind: Callable[..., Layer],
        place: str,
        what: str,
        size: int,
        reads: tuple[int, ...] | None = None,
        **own: Any,
    ) -> int:
        """Add a layer that writes `size` features; its name begins with its number and is therefore unique."""
        name = f"{len(self.layers)} {place} {what}" if place else f"{len(self.layers)} {what}"
        self.layers.append(kind(name=name, reads=(self.at,) if reads is None else reads, **own))
        self.sizes.append(size)
        self.at = len(self.layers)
        return self.at

    def linear(self, place: str, what: str, weight: Tensor, bias: Tensor | None = None, *reads: int) -> int:
        """Θ·(registers side by side) + b; without `reads`, of the register at hand."""
        weight, bias = own_numbers(place or what, weight=weight, bias=zeros(len(weight)) if bias is None else bias)
        reads = self._reading(place or what, weight.shape[1], reads)
        return self.add(Linear, place, what, len(weight), reads, weight=weight, bias=bias)

    def _reading(self, who: str, wanted: int, reads: tuple[int, ...]) -> tuple[int, ...]:
        """The registers to read, `wanted` features in all."""
        reads = reads or (self.at,)
        given = sum(self.sizes[read] for read in reads)
        if wanted != given:
            raise BadNetwork(f"{who} takes {wanted} features and is given {given}")
        return reads

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
        out, features = numerators.shape
        if not isinstance(by, tuple):
            divisors = torch.as_tensor(by, dtype=f64, device="cpu").expand(out).contiguous()
            by = two_product(divisors, divisors)
        exact = own_numbers(
            place or what,
            weight=numerators,
            mean=zeros(features) if shift is None else shift,
            variance=torch.stack([part.detach().to(f64).expand(out) for part in by]),
            bias=zeros(out) if bias is None else bias,
        )
        reads = self._reading(place or what, features, reads)
        return self.add(rounded, place, what, out, reads, exact=Unrounded(*exact))

    def function(self, place: str, what: str, f: str) -> int:
        """Of every feature, f written in t."""
        return self.add(Function, place, what, self.features, expression=f)

    def square(self, place: str) -> int:
        return self.function(place, "square", SQUARE)

    def gate(self, place: str, what: str, low: float, kinked: bool) -> int:
        """max(t, low·t) of every feature where `kinked`, else t·σ(t)."""
        return self.add(Gate, place, what, self.features, low=low, kinked=kinked)

    def root(self, place: str) -> int:
        """1/√t of every feature."""
        return self.add(ReciprocalRoot, place, "reciprocal root", self.features, features=self.features)

    def product(self, place: str, first: int, second: int) -> int:
        """Register times register, feature by feature; a second one of a single feature multiplies all."""
        size, other = self.sizes[first], self.sizes[second]
        if other not in (size, 1):
            raise BadNetwork(f"{place or 'a product'} multiplies {size} features by {other}; give as many, or one")
        weight, bias, broadcast = ones(size), zeros(size), other == 1 < size
        return self.add(Product, place, "product", size, (first, second), weight=weight, bias=bias, broadcast=broadcast)

    def norm(self, place: str, weight: Tensor | None, bias: Tensor | None, eps: float) -> int:
        """weight·x/√(mean x² + ε) + bias of the register at hand."""
        weight, bias = own_numbers(
            place or "norm",
            weight=ones(self.features) if weight is None else weight,
            bias=zeros(self.features) if bias is None else bias,
        )
        return self.add(Norm, place, "norm", self.features, weight=weight, bias=bias, eps=float(eps))

    def constant(self, place: str, values: Tensor) -> int:
        (values,) = own_numbers(place, values=values)
        return self.add(Constant, place, "constant", values.shape[1], (), values=values)

    def attention(self, place: str, parts: dict[str, Tensor], causal: bool, scale: float = 1.0) -> int:
        if not self.is_sequence:
            raise BadNetwork(
                f"{place or 'the network'} attends between positions; give data or a shape of (positions, features)"
            )
        parts = dict(zip(parts, own_numbers(place, **parts), strict=True))
        own: dict[str, Any] = {**parts, "causal": causal, "scale": scale}
        return self.add(Attention, place, "attention", parts["b_v"].numel(), **own)

    def self_attention(self, place: str, weight: Tensor, bias: Tensor | None, heads: int, *, causal: bool) -> int:
        """From stacked rows for q, k and v of all heads, as in torch and GPT-2; scores q·k/√width."""
        width = len(weight) // 3 // heads
        bias = zeros(len(weight)) if bias is None else bias
        parts = (each for part in (weight, bias) for each in part.unflatten(0, (3, heads, width)))
        return self.attention(place, dict(zip(HEAD, parts, strict=True)), causal, float(width))

    def part(self, module: nn.Module, place: str) -> int:
        """The layers of any module."""
        lower_part(self, module, place)
        return self.at

    def plus(self, first: int, second: int, place: str, sign: float = 1.0) -> int:
        """The sum, or the difference, of two registers."""
        one = eye(self.sizes[first])
        return self.linear(place, "sum", torch.cat([one, sign * one], dim=-1), None, first, second)

    def affine(self, module: nn.Linear, place: str) -> None:
        """A map of the features at every position."""
        if not self.is_sequence and len(self.shape) > 1:
            raise BadNetwork(f"{place or 'a Linear'} is given numbers of shape {self.shape}; put a Flatten before it")
        self.linear(place, "linear", module.weight, module.bias)
        self.shape = (*self.shape[:-1], len(module.weight))

    def require(self, module: nn.Module, place: str, *kinds: type) -> None:
        """`require_own_forward`, for modules that lower their parts themselves."""
        require_own_forward(module, place, *kinds)

    def weights_of(self, module: nn.Module, place: str, *kinds: type) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of such a part."""
        self.require(module, place, *kinds)
        part: Any = module
        return part.weight, part.bias

    def add_to(self, before: int, place: str, weight: Tensor, bias: Tensor | None = None) -> int:
        """before + Θ·(the register at hand) + b, the residual sum being part of the linear map."""
        both = torch.cat([eye(len(weight)), weight.detach().to(f64)], dim=-1)
        return self.linear(place, "linear, plus what was before", both, bias, before, self.at)


def lower(module: nn.Module, shape: tuple[int, ...]) -> Builder:
    """The layers of a module on inputs of this shape: (features,), (positions, features) or (channels, …)."""
    if module_calls._global_forward_hooks or module_calls._global_forward_pre_hooks:
        raise BadNetwork("forward hooks for all modules are registered; remove them, they may change what modules do")
    builder = Builder(shape)
    lower_part(builder, module, "")
    if not builder.layers:
        raise BadNetwork("the network has no layer that computes anything")
    return builder


def lower_part(builder: Builder, module: Any, place: str) -> None:
    """By the module's own `lower_into`, by the registry, or by a trace of its forward."""
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
    written = hasattr(kind, "lower_into")
    own = [name for name, value in vars(module).items() if value is not None]
    as_a_whole = written or kind in REGISTRY
    replaced = [
        name for name in own if name in (*CALLS, "lower_into") or (as_a_whole and callable(getattr(kind, name, None)))
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


# Methods that a call of a module runs: `forward` first, the others are nn.Module's.
CALLS = ("forward", "__call__", "_call_impl", "_wrapped_call_impl", "_compiled_call_impl")
# A method and the method that lowers it: a subclass that overrides the first must override the second.
WRITTEN = (("forward", "lower_into"), ("states", "lower_states"))


def joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


OPERATORS: dict[Any, str] = {
    **dict.fromkeys((operator.add, torch.add, "add"), "+"),
    **dict.fromkeys((operator.sub, torch.sub, "sub"), "-"),
    **dict.fromkeys((operator.mul, torch.mul, "mul"), "*"),
    **dict.fromkeys((operator.truediv, torch.div, "div"), "/"),
}
FLATTEN = (torch.flatten, "flatten")
ACTIVATIONS: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((functional.relu, torch.relu, "relu"), nn.ReLU),
    **dict.fromkeys((functional.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((functional.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    functional.silu: nn.SiLU,
    functional.gelu: nn.GELU,
    functional.softplus: nn.Softplus,
    functional.leaky_relu: nn.LeakyReLU,
}


# A register and the shape of its numbers.
At = tuple[int, tuple[int, ...]]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return hasattr(m, "lower_into") or type(m) in REGISTRY or type(m).__module__.startswith("torch.nn.")


@lowers(nn.Module)
def traced(builder: Builder, module: nn.Module, place: str) -> None:
    """Lower a module that is in no registry, by following its forward with torch.fx, node by node.

    Args:
        builder: Gets the layers.
        module: Any, with a forward that torch.fx can trace.
        place: Its name in the network.
    Raises:
        BadNetwork: The forward cannot be followed, or computes something that is not compiled.

    Example:
        >>> traced(Builder((3,)), module, "")
    """
    try:
        graph = _Tracer().trace(module)
    except Exception as error:  # whatever somebody's forward does with a proxy for a tensor
        why = " ".join(f"{type(error).__name__}: {error}".split())[:100]
        raise BadNetwork(f"the forward of a {type(module).__name__} cannot be followed ({why})") from None
    places, given, changed = dict[fx.Node, At](), (builder.at, builder.shape), dict[int, str]()
    for node in graph.nodes:
        for register in {places[read][0] for read in node.all_input_nodes if read in places} & changed.keys():
            raise BadNetwork(f"{joined(place, node.name)} reads what {changed[register]} changed in place")
        if node.op == "placeholder":
            if places:
                raise BadNetwork(f"a {type(module).__name__} has several inputs; one is compiled")
            places[node] = given
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node) or node.args[0] not in places:
                raise BadNetwork(f"a {type(module).__name__} gives several outputs; one is compiled")
            builder.at, builder.shape = places[node.args[0]]
        else:
            _node(builder, module, node, places, place)
            places[node] = (builder.at, builder.shape)
            if _is_in_place(module, node):
                changed |= dict.fromkeys((places[read][0] for read in node.all_input_nodes), node.name)
                changed.pop(builder.at, None)


def _is_in_place(module: nn.Module, node: fx.Node) -> bool:
    """Whether a node may change the tensor that it reads."""
    if node.op == "call_module":
        return any(getattr(part, "inplace", False) for part in module.get_submodule(str(node.target)).modules())
    return bool(node.kwargs.get("inplace", False)) or any(arg is True for arg in node.args[1:])


def _node(builder: Builder, module: nn.Module, node: fx.Node, places: dict[fx.Node, At], place: str) -> None:
    first = next((arg for arg in node.args if isinstance(arg, fx.Node)), None)
    if first is None or not set(node.all_input_nodes) <= set(places):
        raise BadNetwork(f"{node.name} in a {type(module).__name__} reads what is no result of its input")
    builder.at, builder.shape = places[first]
    here, target, more, options = joined(place, node.name), node.target, node.args[1:], dict(node.kwargs)
    if node.op == "call_module" and not more and not options:
        lower_part(builder, module.get_submodule(str(target)), joined(place, str(target)))
    elif node.op != "call_module" and (target in ACTIVATIONS or (target in FLATTEN and not builder.is_sequence)):
        if target in FLATTEN and not more:  # the function from dimension 0, the module from 1
            options = {"start_dim": 0} | options
        made: Any = ACTIVATIONS.get(target, nn.Flatten)
        try:
            part = made(*more, **options)
        except (TypeError, ValueError) as error:
            raise BadNetwork(f"{here} is not compiled ({error})") from None
        builder.part(part, here)
    elif target in OPERATORS and len(node.args) == 2 and not options:
        operands = [places[arg] if isinstance(arg, fx.Node) else arg for arg in node.args]
        _arithmetic(builder, here, OPERATORS[target], *operands)
    else:
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        raise BadNetwork(f"{name} in the forward of a {type(module).__name__} is not compiled")


def _arithmetic(builder: Builder, place: str, symbol: str, left: Any, right: Any) -> None:
    """Between two registers, or a register and a number."""
    one, first = eye(builder.features), isinstance(left, tuple)
    if first and isinstance(right, tuple):
        (register, shape), (other, other_shape) = left, right
        if shape != other_shape and not (symbol == "*" and builder.sizes[other] == 1):
            raise BadNetwork(f"{place} joins numbers of shapes {shape} and {other_shape}; give equal ones")
        if symbol == "/":
            raise BadNetwork(f"{place} divides by what the network computes; write it as an Expression and a product")
        if symbol == "*":
            builder.product(place, register, other)
        else:
            builder.plus(register, other, place, 1.0 if symbol == "+" else -1.0)
        return
    number = right if first else left
    if not isinstance(number, int | float) or (symbol == "/" and not (first and number)):
        raise BadNetwork(f"{place} is not compiled: give numbers, and divide by no register and not by zero")
    if symbol == "*":
        builder.linear(place, "linear", one * number)
    elif symbol == "/":
        builder.divided(place, "linear", math.copysign(1.0, number) * one, abs(float(number)))
    else:
        sign = -1.0 if symbol == "-" else 1.0
        weight, shift = (one, sign * number) if first else (sign * one, float(number))
        builder.linear(place, "linear", weight, shift * ones(builder.features))
