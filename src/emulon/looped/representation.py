"""The representation Φ* of Gao et al. 2024: an MLP, run outside (`forward`) or in the pre-transformer (`layers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from emulon.attention import Slots
from emulon.certify.domain import require_within
from emulon.certify.rounding import gamma
from emulon.core.errors import BadShape, OutOfDomain
from emulon.looped.exact import affine, leaky
from emulon.looped.layer import Circuit, Layer, no_heads, read, zeros
from emulon.looped.transformer import Query


class RepresentationNetwork(nn.Module):
    """Φ(x) = σ(W_L … σ(W_1 x + b_1) … + b_L), σ a leaky ReLU, for inputs |x| ≤ bound.

    Args:
        weights: W_1, …, W_L.
        biases: b_1, …, b_L; zero by default.
        slope: Of σ below zero, in [0, 1].
        bound: Largest |x|.
    """

    def __init__(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, *, slope: float = 0.01, bound: float
    ) -> None:
        super().__init__()
        if not 0 <= slope <= 1:
            raise OutOfDomain(f"slope must be in [0, 1] so that errors do not grow in the activation, got {slope}")
        biases = [weight.new_zeros(weight.shape[0]) for weight in weights] if biases is None else biases
        self.slope, self.bound, self.depth = slope, bound, len(weights)
        for level, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            if level and weight.shape[1] != weights[level - 1].shape[0]:
                raise BadShape(
                    f"weight {level} reads {weight.shape[1]} features, {weights[level - 1].shape[0]} come in"
                )
            self.register_buffer(f"weight_{level}", weight.double())
            self.register_buffer(f"bias_{level}", bias.double())

    def level(self, level: int) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"weight_{level}"), self.get_buffer(f"bias_{level}")

    @property
    def inputs(self) -> int:
        return self.level(0)[0].shape[1]

    @property
    def outputs(self) -> int:
        return self.level(self.depth - 1)[0].shape[0]

    def require(self, features: int, **inputs: Tensor) -> None:
        """Refuse a regression of another size, and inputs above the bound."""
        if self.outputs != features:
            raise BadShape(f"the representation returns {self.outputs} features, the domain has {features}")
        for name, tensor in inputs.items():
            if tensor.shape[-1] != self.inputs:
                raise BadShape(f"{name} has {tensor.shape[-1]} features, the representation reads {self.inputs}")
        require_within(self.bound, **inputs)

    def forward(self, x: Query) -> Float[Tensor, "... outputs"]:
        for level in range(self.depth):
            weight, bias = self.level(level)
            z = x @ weight.to(x.dtype).mT + bias.to(x.dtype)
            x = torch.relu(z) - self.slope * torch.relu(-z)
        return x

    def exact(self, x: Any) -> Any:
        """Φ of the rows of an Arb matrix."""
        for level in range(self.depth):
            x = leaky(affine(x, *self.level(level)), self.slope)
        return x

    @property
    def slots(self) -> dict[str, int]:
        """Two buffers that take turns; the input is in `ping`."""
        sizes = [self.inputs, *(self.level(level)[0].shape[0] for level in range(self.depth - 1))]
        return {"ping": max(sizes[::2]), "pong": max(sizes[1::2], default=0)}

    def layers(self, slots: Slots, into: str, off: Tensor, dtype: torch.dtype) -> list[Layer]:
        """Claim: L layers of identity attention that put Φ(ping) into a slot, and clear the buffers behind them.

        Tokens on which `off` is 1 are left alone, biases included. Bound: `error` (rounding only; ReLU does the rest).
        """
        out, reach = [], self.reach()
        for level in range(self.depth):
            weight, bias = self.level(level)
            source = ("ping", "pong")[level % 2]
            target = into if level == self.depth - 1 else ("pong", "ping")[level % 2]
            rows = read(slots, **{source: _padded(weight, slots.size(source), 1)})
            rows, offset = _padded(rows, slots.size(target), 0), _padded(bias, slots.size(target), 0)
            circuit = Circuit(slots).leaky(rows, target, slope=self.slope, bias=offset, off=off, bound=reach[level + 1])
            circuit.clear(source)
            out.append(Layer(no_heads(slots), circuit.matrices, dtype=dtype, name=f"representation {level + 1}"))
        return out

    def reach(self) -> list[float]:
        """Bounds on the magnitudes after 0, 1, …, L levels."""
        sizes, bounds = (
            torch.full((self.inputs,), float(self.bound), dtype=torch.float64, device="cpu"),
            [float(self.bound)],
        )
        for level in range(self.depth):
            weight, bias = self.level(level)
            sizes = weight.abs() @ sizes + bias.abs()
            bounds.append(sizes.max().item())
        return bounds

    def error(self, dtype: torch.dtype) -> float:
        """‖computed Φ(x) − Φ(x)‖₂ ≤ this, for all inputs within the bound.

        Proof. A level rounds by γ·(|W||h| + |b|) ≤ γ·(‖|W|‖₂‖h‖₂ + ‖b‖₂), and passes on ‖W‖₂ times the error that comes
        in, σ being 1-Lipschitz; ‖h‖₂ ≤ ‖W‖₂‖h'‖₂ + ‖b‖₂ likewise. QED
        """
        size, error = self.bound * self.inputs**0.5, 0.0
        for level in range(self.depth):
            weight, bias = self.level(level)
            spread, norm = torch.linalg.matrix_norm(weight.abs(), 2).item(), torch.linalg.matrix_norm(weight, 2).item()
            shift = bias.norm().item()
            error = norm * error + gamma(weight.shape[1] + 6, dtype) * (spread * (size + error) + shift)
            size = norm * size + shift
        return error * (1 + 1e-9)


def _padded(tensor: Tensor, size: int, dim: int) -> Tensor:
    """Zeros appended along `dim` up to `size`."""
    shape = list(tensor.shape)
    shape[dim] = size - shape[dim]
    return torch.cat([tensor.double(), zeros(*shape)], dim=dim)
