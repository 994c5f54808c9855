"""Modules whose forward pass the interpreter runs, and networks that make features for an algorithm."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from emulon.algorithms import Algorithm
from emulon.certify import Domain
from emulon.core.arrays import as_tensor
from emulon.core.errors import BadNetwork, EmulonError
from emulon.interpreter import Interpreter, Program, Run, compile
from emulon.interpreter.module import Capacity, Mode
from emulon.interpreter.plan import descent_of, domain_from_data
from emulon.networks.program import NetworkProgram, NetworkRun

Module = TypeVar("Module", bound=nn.Module)


def by_prompt(module: Module, program: NetworkProgram, interpreter: Interpreter | None = None) -> Module:
    """Replace a module's forward pass by a compiled program; its other methods stay, and use the new pass.

    Args:
        module: What `program` was compiled from, such as a learner; it is not changed.
        program: What `compile_network` made of it.
        interpreter: Runs the program; by default the smallest interpreter that fits.
    Returns:
        A shallow copy of the module.

    Example:
        >>> by_prompt(learner, compile_network(learner, data=tokens)).predict(xs, ys, x_query)  # doctest: +SKIP
    """
    machine = Interpreter.fitting(program) if interpreter is None else interpreter
    asked = copy.copy(module)

    @torch.no_grad()
    def forward(tokens: Tensor) -> Tensor:
        return machine.run(program, tokens).last

    asked.forward = forward
    return asked


# Features come out of the interpreter a little off: the algorithm's domain has room for it.
ROOM = 1 + 1e-6


@dataclass(frozen=True)
class Composition:
    """A network that makes features of every row of x, and an algorithm that learns y from them, on one interpreter.

    Attributes:
        network: The compiled network.
        algorithm: The algorithm, compiled for the network's features.

    Example:
        >>> both = then(network, Ridge(), x, y)
        >>> both.run(both.fitting(), x, y).predict(x)
    """

    network: NetworkProgram
    algorithm: Program

    @property
    def capacity(self) -> Capacity:
        return self.network.capacity | self.algorithm.capacity

    def run(self, interpreter: Interpreter, x: Any, y: Any, mode: Mode = "fast") -> ComposedRun:
        """Each part has its own certificate and audit, the algorithm's for the features as they came out.

        What the features' errors do to the weights has no bound.
        """
        features = interpreter.run(self.network, x, mode=mode)
        return ComposedRun(features, interpreter.run(self.algorithm, features.last, y, mode))

    def fitting(self) -> Interpreter:
        """The smallest interpreter that both fit into."""
        return Interpreter.fitting(self.network, self.algorithm)


@dataclass(frozen=True)
class ComposedRun:
    features: NetworkRun
    learned: Run

    @property
    def sha256(self) -> set[str]:
        return {*self.features.sha256, *self.learned.sha256}

    def predict(self, x: Any, mode: Mode = "fast") -> Any:
        """The mean response for new rows, their features made by prompt, too."""
        features = self.features.interpreter.run(self.features.program, x, mode=mode)
        return features.given.back(self.learned.predict(features.last), "rows")


def then(network: NetworkProgram, algorithm: Algorithm, x: Any, y: Any, tolerance: float | None = None) -> Composition:
    """Compile an algorithm for the features that a network makes of these data.

    Args:
        network: A compiled network whose output is a list of features.
        algorithm: What learns y from the features.
        x: Data, a row for each sample.
        y: Targets, one for each row.
        tolerance: Largest error of the algorithm's weights; None takes the algorithm's default.
    Returns:
        Both, to be run on one interpreter.
    Raises:
        BadNetwork: The network's output is no list of features.

    Example:
        >>> then(network, Ridge(penalty=0.1), x, y)
    """
    if len(network.out_shape) != 1:
        raise BadNetwork(
            f"{network.name} gives {network.out_shape} for a row, and an algorithm learns from a list of features"
        )
    features, y = network.exact(as_tensor(x, "x")), as_tensor(y, "y").double()
    if features.shape[:-1] != y.shape:
        raise EmulonError(f"there are {features.shape[0]} rows of features and {len(y)} of y; give one y a row")
    domain = roomy(domain_from_data(descent_of(algorithm), features, y))
    return Composition(network, compile(algorithm, domain, tolerance, data=(features, y)))


def roomy(domain: Domain) -> Domain:
    bounds = {name: getattr(domain, name) * ROOM for name in ("x", "y", "w", "residual", "absolute")}
    return replace(domain, **bounds, spectrum=domain.spectrum.widened(ROOM))
