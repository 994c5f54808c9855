"""scikit-learn's multilayer perceptrons as torch modules: the same numbers, without the last step of a classifier.

A classifier's own last step (softmax, or the logistic function for two classes) is left out: its outputs are logits,
the largest of which, or the sign of the only one, is the class.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from emulon.core.arrays import accepts_arraylike
from emulon.core.errors import BadNetwork
from emulon.networks.activations import Expression

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "logistic": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
}


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
    """The class that a classifier's logits (..., outputs) name, counted from 0."""
    return (logits.squeeze(-1) > 0).long() if logits.shape[-1] == 1 else logits.argmax(dim=-1)
