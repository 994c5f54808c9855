"""Modules with a forward of their own, by torch.fx: sums, products and activations between parts that are known."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from emulon.core.errors import BadNetwork
from emulon.networks.builder import Builder, is_whole, joined, lower_part, lowers

ADD, SUBTRACT = (operator.add, torch.add, "add"), (operator.sub, torch.sub, "sub")
MULTIPLY, DIVIDE = (operator.mul, torch.mul, "mul"), (operator.truediv, torch.div, "div")
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


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return is_whole(m)


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
    places: dict[fx.Node, tuple[int, tuple[int, ...]]] = {}
    given, changed = (builder.at, builder.shape), dict[int, str]()
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


def _node(
    builder: Builder, module: nn.Module, node: fx.Node, places: dict[fx.Node, tuple[int, tuple[int, ...]]], place: str
) -> None:
    operands = [places[arg][0] if isinstance(arg, fx.Node) and arg in places else arg for arg in node.args]
    first = next((arg for arg in node.args if isinstance(arg, fx.Node)), None)
    if first is None or not set(node.all_input_nodes) <= set(places):
        raise BadNetwork(f"{node.name} in a {type(module).__name__} reads what is no result of its input")
    builder.at, builder.shape = places[first]
    here, target, more = joined(place, node.name), node.target, node.args[1:]
    if node.op == "call_module" and not more and not node.kwargs:
        lower_part(builder, module.get_submodule(str(target)), joined(place, str(target)))
    elif node.op != "call_module" and (target in ACTIVATIONS or (target in FLATTEN and not builder.is_sequence)):
        options: Any = node.kwargs
        if target in FLATTEN:  # the function from dimension 0, the module from 1
            made: Callable[..., nn.Module] = nn.Flatten
            more = more or (() if "start_dim" in options else (0,))
        else:
            made = ACTIVATIONS[target]
        try:
            part = made(*more, **options)
        except (TypeError, ValueError) as error:
            raise BadNetwork(f"{here} is not compiled ({error})") from None
        builder.part(part, here)
    elif target in (*ADD, *SUBTRACT, *MULTIPLY, *DIVIDE) and len(operands) == 2 and not node.kwargs:
        shapes = [places[arg][1] for arg in node.args if isinstance(arg, fx.Node)]
        _arithmetic(builder, here, target, node.args, operands, shapes)
    else:
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        raise BadNetwork(f"{name} in the forward of a {type(module).__name__} is not compiled")


def _arithmetic(
    builder: Builder, place: str, target: Any, args: tuple[Any, ...], operands: list[Any], shapes: list[tuple[int, ...]]
) -> None:
    """Between two registers, or a register and a number."""
    left, right = (isinstance(arg, fx.Node) for arg in args)
    one = torch.eye(builder.features, dtype=torch.float64, device="cpu")
    if left and right:
        one_number = target in MULTIPLY and builder.sizes[operands[1]] == 1
        if shapes[0] != shapes[1] and not one_number:
            raise BadNetwork(f"{place} joins numbers of shapes {shapes[0]} and {shapes[1]}; give equal ones")
        if target in DIVIDE:
            raise BadNetwork(f"{place} divides by what the network computes; write it as an Expression and a product")
        if target in MULTIPLY:
            builder.product(place, *operands)
        else:
            builder.plus(operands[0], operands[1], place, 1.0 if target in ADD else -1.0)
        return
    number = operands[1] if left else operands[0]
    if not isinstance(number, int | float) or (target in DIVIDE and not left):
        raise BadNetwork(f"{place} is not compiled: give numbers, and no number divided by a register")
    if target in MULTIPLY or target in DIVIDE:
        if target in MULTIPLY:
            builder.linear(place, "linear", one * number)
        elif number == 0:
            raise BadNetwork(f"{place} divides by zero")
        else:
            builder.divided(place, "linear", math.copysign(1.0, number) * one, abs(float(number)))
    else:
        sign = -1.0 if target in SUBTRACT and not left else 1.0
        shift = -float(number) if target in SUBTRACT and left else float(number)
        builder.linear(
            place, "linear", sign * one, torch.full((builder.features,), shift, dtype=torch.float64, device="cpu")
        )
