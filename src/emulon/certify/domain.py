"""The bounds a construction is built for. Data outside them is refused, never silently wrong."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from emulon.errors import BadShape, OutOfDomain


def require_finite(**tensors: Tensor) -> None:
    """Refuse NaN and infinity, naming the tensor."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise OutOfDomain(f"{name} contains NaN or infinity; clean or impute it first")


def require_within(bound: float, **tensors: Tensor) -> None:
    """Refuse non-finite entries and entries above `bound` in magnitude, naming the tensor."""
    require_finite(**tensors)
    for name, tensor in tensors.items():
        if tensor.numel() and (worst := tensor.abs().max().item()) > bound:
            beyond = f"|{name}| reaches {worst:.6g} but the domain was built for {bound:.6g}"
            raise OutOfDomain(f"{beyond}; rescale or build a wider domain")


def require_shape(tensor: Tensor, name: str, *sizes: int) -> None:
    """Refuse a tensor whose last dimensions are not `sizes`; every leading dimension is a batch."""
    if tuple(tensor.shape[-len(sizes) :]) != sizes or tensor.ndim < len(sizes):
        wanted = ", ".join(["...", *map(str, sizes)])
        raise BadShape(f"{name} has shape {tuple(tensor.shape)}, wanted ({wanted})")


@dataclass(frozen=True)
class Domain:
    """Bounds on in-context data: `samples` rows of `features` numbers, |x| ≤ x, |y| ≤ y, |w| ≤ w in every entry.

    `residual` bounds |w·x − y|, `absolute` bounds Σ|w_k x_k| + |y|, which rounding errors are proportional to. By
    default both follow from the others (features·x·w + y); smaller ones, where they are known, make a finer
    construction with the same keys, and are checked on the data as everything else. `eigenvalue`, where known, is
    λmax(XᵀX/n).
    """

    samples: int
    features: int
    x: float
    y: float
    w: float
    residual: float = 0.0
    absolute: float = 0.0
    eigenvalue: float = 0.0

    def __post_init__(self) -> None:
        for name in ("samples", "features"):
            if int(getattr(self, name)) < 1:
                raise OutOfDomain(f"Domain needs at least one of {name}, got {getattr(self, name)}")
        for name in ("x", "y", "w", "residual", "absolute", "eigenvalue"):
            value = float(getattr(self, name))
            if not 0.0 <= value < float("inf"):
                raise OutOfDomain(f"Domain bound {name} must be finite and not negative, got {value}")
        for name in ("absolute", "residual"):
            if getattr(self, name) == 0.0 or getattr(self, name) > self.widest:
                object.__setattr__(self, name, self.widest)
        if self.residual == 0.0:
            raise OutOfDomain("Domain allows only zero residuals; give x and w, or y, a positive bound")

    @property
    def widest(self) -> float:
        """The largest residual that bounds on single entries allow: features·x·w + y."""
        return float(self.features * self.x * self.w + self.y)

    @classmethod
    def of(cls, x: Tensor, y: Tensor, w: Tensor | float | None = None) -> Domain:
        """The domain of this data; `w` is a tensor of weights, or a bound on them.

        Without `w` the weights are those of descent from zero towards a least-squares fit: ‖w‖₂ ≤ 2‖w*‖₂ along it,
        which bounds the residuals, too. Other losses may leave it, and are told so when they do.
        """
        require_finite(x=x, y=y)
        if x.ndim < 2 or x.shape[:-1] != y.shape:
            raise BadShape(
                f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}, wanted (..., samples, features), (..., samples)"
            )
        x, y = x.double(), y.double()
        sizes = (x.shape[-2], x.shape[-1], x.abs().max().item(), y.abs().max().item())
        eigenvalue = torch.linalg.eigvalsh(x.mT @ x / x.shape[-2])[..., -1].max().clamp(min=0).item()
        if w is not None:
            bound = w.abs().max().item() if isinstance(w, Tensor) else float(w)
            return cls(*sizes, bound, eigenvalue=eigenvalue)
        fit = torch.linalg.pinv(x, rtol=1e-10) @ y.unsqueeze(-1)
        length = 2 * fit.squeeze(-1).norm(dim=-1).max().item() + 1e-3
        widest = x.norm(dim=-1).max().item() * length + sizes[3]
        return cls(*sizes, length, residual=widest, absolute=widest, eigenvalue=eigenvalue)

    def check(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        """Refuse data of the wrong shape, not finite, or outside the bounds."""
        require_shape(x, "x", self.samples, self.features)
        require_shape(y, "y", self.samples)
        require_shape(w, "w", self.features)
        require_within(self.x, x=x)
        require_within(self.y, y=y)
        require_within(self.w, w=w)
        if self.residual < self.widest:
            require_within(self.residual, **{"w·x − y": (x @ w.unsqueeze(-1)).squeeze(-1) - y})
        if self.absolute < self.widest:
            sums = (x.abs() @ w.abs().unsqueeze(-1)).squeeze(-1) + y.abs()
            require_within(self.absolute, **{"w|·|x| + |y": sums})
