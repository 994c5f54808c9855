"""The contract of a construction: a frozen module that is within its certificate of an exact map, on a domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from emulon.certify import Certificate, Domain
from emulon.testing.contract import (
    COMMON,
    ContractBroken,
    NamedCheck,
    TensorFunction,
    named,
    require,
    require_agreement,
    require_refusal,
    run_checks,
)

# The largest difference between two evaluations of the same inputs, next to their size: sharp gates amplify the last
# place.
NEAR = {torch.float64: 1e-9, torch.float32: 1e-3}
# As many random inputs, and as many at the edges, are tried.
TRIED = 32


@dataclass(frozen=True)
class Input:
    """One input of a construction.

    Attributes:
        shape: Sizes of its last dimensions.
        bound: Largest |entry|.
        values: What entries are instead, where they are one of a few numbers.
    """

    shape: tuple[int, ...]
    bound: float
    values: tuple[float, ...] = ()

    def drawn(self, how: str, generator: torch.Generator, *batch: int) -> Tensor:
        """Entries anywhere "inside" the domain; or at "corners", "faces" (extreme or zero) or "zeros"."""
        if how == "inside" and not self.values:
            numbers = torch.rand(*batch, *self.shape, generator=generator, dtype=torch.float64, device="cpu")
            return self.bound * (2 * numbers - 1)
        ends = {"corners": (-self.bound, self.bound), "faces": (-self.bound, 0.0, self.bound), "zeros": (0.0,)}
        values = (self.values[:1] if how == "zeros" else self.values) or ends[how]
        which = torch.randint(len(values), (*batch, *self.shape), generator=generator, device="cpu")
        return torch.tensor(values, dtype=torch.float64, device="cpu")[which]


@dataclass(frozen=True)
class Subject(TensorFunction):
    module: nn.Module
    exact: Callable[..., Tensor]
    inputs: Mapping[str, Input]
    batch: tuple[int, ...] = (2, 3)

    @property
    def certificate(self) -> Certificate:
        certificate = getattr(self.module, "certificate", None)
        if not isinstance(certificate, Certificate):
            raise ContractBroken(f"its certificate is {certificate!r}")
        return certificate

    @property
    def parts(self) -> dict[str, Tensor]:
        return self.draw("inside", *self.batch)

    def draw(self, how: str, *batch: int, seed: int = 0) -> dict[str, Tensor]:
        """Inputs of this kind, by name, as the construction's dtype stores them."""
        generator, dtype = torch.Generator().manual_seed(seed), self.certificate.dtype
        return {name: one.drawn(how, generator, *batch).to(dtype) for name, one in self.inputs.items()}

    def call(self, parts: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.module(*parts.values())
        return out

    def tolerance(self, answer: Tensor) -> float:
        """Both evaluations are within the bound."""
        size = max(1.0, answer.abs().max().item())
        return min(2 * self.certificate.bound, NEAR[self.certificate.dtype] * size)


def construction_checks(
    module: nn.Module, exact: Callable[..., Tensor], inputs: Mapping[str, Input] | None = None
) -> Iterator[NamedCheck]:
    """The checks of `check_construction` one by one, as (name, check).

    Args:
        module: The construction, called with its inputs in order.
        exact: The map that it emulates, computed in float64.
        inputs: The domain, by the names that refusals use and in the order of the call: any inputs within these bounds
            must be accepted. Without them x, y and w of `module.domain`, whose `residual` and `absolute` must then be
            those that follow from the others. A certificate that excludes bands is checked on inputs that stay clear
            of them: give such.
    """
    if inputs is None:
        domain = getattr(module, "domain", None)
        if not isinstance(domain, Domain):
            raise ContractBroken(f"{type(module).__name__} has no Domain; say what its inputs are with inputs=")
        n, d = domain.samples, domain.features
        inputs = {"x": Input((n, d), domain.x), "y": Input((n,), domain.y), "w": Input((d,), domain.w)}
    return named(Subject(module, exact, inputs), CHECKS)


def check_construction(
    module: nn.Module, exact: Callable[..., Tensor], inputs: Mapping[str, Input] | None = None
) -> None:
    """Check that a construction is frozen, within its certificate of an exact map, batched, and refuses bad inputs.

    Args:
        module: The construction.
        exact: The map that it emulates, computed in float64.
        inputs: The domain, as for `construction_checks`.

    Raises:
        ContractBroken: The name of the first check that fails, and what was seen.

    Example:
        >>> check_construction(module, exact, {"x": Input((20, 4), 1.0), "w": Input((4,), 2.0)})
    """
    run_checks(construction_checks(module, exact, inputs))


def weights_are_frozen(subject: Subject) -> None:
    """Buffers only: no optimiser can ever see them."""
    require(not list(subject.module.parameters()), "it has parameters")
    require(bool(list(subject.module.buffers())), "it has no buffers, so what it is cannot be moved or stored")
    require(not subject.call(subject.draw("inside")).requires_grad, "its output asks for a gradient")


def certificate_is_finite_and_for_the_domain(subject: Subject) -> None:
    """Named terms, none negative, and a finite bound that holds for every input."""
    certificate = subject.certificate
    require(certificate.scope == "domain", f"its scope is {certificate.scope}")
    require(0 <= certificate.bound < math.inf, f"its bound is {certificate.bound}")
    bad = [name for name, value in certificate.terms.items() if not value >= 0]
    require(bool(certificate.terms) and not bad, f"terms {list(certificate.terms)}, negative or NaN: {bad}")


def repr_shows_the_bound(subject: Subject) -> None:
    shown, bound = repr(subject.module), f"{subject.certificate.bound:.2e}"
    require(bound in shown, f"{shown!r} does not show the bound {bound}")


def certificate_holds_inside_the_domain(subject: Subject) -> None:
    """|observed − exact| ≤ bound for random inputs."""
    _verify(subject, subject.draw("inside", TRIED))


def certificate_holds_at_the_edges(subject: Subject) -> None:
    """|observed − exact| ≤ bound at corners, where entries are extreme or zero, and at zero."""
    for how in ("corners", "faces", "zeros"):
        _verify(subject, subject.draw(how, TRIED, seed=1))


def _verify(subject: Subject, parts: Mapping[str, Tensor]) -> None:
    exact = subject.exact(*(part.double() for part in parts.values()))
    out = subject.call(parts)
    require(out.shape == exact.shape, f"its output has shape {tuple(out.shape)}, the exact one {tuple(exact.shape)}")
    subject.certificate.verify(out, exact)


def dtype_is_the_certificates(subject: Subject) -> None:
    out, dtype = subject.call(subject.draw("inside")), subject.certificate.dtype
    require(out.dtype == dtype, f"its output is {out.dtype}, its certificate about {dtype}")


def batch_dimensions_broadcast(subject: Subject) -> None:
    """Each input may be given once for a whole batch of the others, or the others once for a batch of it."""
    parts = subject.parts
    for name, part in parts.items():
        for mixed in (
            parts | {name: part[0, 0]},
            parts | {name: part[:, :1]},
            {other: one if other == name else one[1, 2] for other, one in parts.items()},
            {other: one[:, :1] if other == name else one[1] for other, one in parts.items()},
        ):
            expected = subject.call({key: one.expand_as(parts[key]) for key, one in mixed.items()})
            require_agreement(subject.call(mixed), expected, subject.tolerance(expected), f"{name} given once")


def non_finite_inputs_are_refused(subject: Subject) -> None:
    """NaN and infinity are refused in a line that names the input."""
    for name in subject.inputs:
        for bad in (math.nan, math.inf):
            parts = subject.draw("corners")
            parts[name].view(-1)[0] = bad
            require_refusal(partial(subject.call, parts), f"{bad} in {name}", name)


def inputs_outside_the_domain_are_refused(subject: Subject) -> None:
    """A thousand times an extreme value of one input, the others at theirs, is refused in a line."""
    for name in subject.inputs:
        parts = subject.draw("corners")
        parts[name] = 1000 * parts[name]
        require_refusal(partial(subject.call, parts), f"1000 times the largest {name}")


def wrong_shapes_are_refused(subject: Subject) -> None:
    """A size that is off by one, or a dimension too few, is refused in a line that names the input and its shape."""
    for name, one in subject.inputs.items():
        sizes = [(*one.shape[:k], one.shape[k] + 1, *one.shape[k + 1 :]) for k in range(len(one.shape))]
        for size in [*sizes, one.shape[1:]]:
            parts = subject.draw("inside") | {name: torch.zeros(size, dtype=subject.certificate.dtype, device="cpu")}
            require_refusal(partial(subject.call, parts), f"{name} of shape {size}", name, str(size))


def batches_that_do_not_fit_are_refused(subject: Subject) -> None:
    first = next(iter(subject.inputs))
    parts = subject.draw("inside", 3)
    parts[first] = parts[first][:2]
    if len(parts) > 1:
        require_refusal(partial(subject.call, parts), f"a batch of 2 for {first} and of 3 for the others", first)


CHECKS: tuple[Callable[[Subject], None], ...] = (
    weights_are_frozen,
    certificate_is_finite_and_for_the_domain,
    repr_shows_the_bound,
    certificate_holds_inside_the_domain,
    certificate_holds_at_the_edges,
    dtype_is_the_certificates,
    *COMMON,
    batch_dimensions_broadcast,
    non_finite_inputs_are_refused,
    inputs_outside_the_domain_are_refused,
    wrong_shapes_are_refused,
    batches_that_do_not_fit_are_refused,
)
